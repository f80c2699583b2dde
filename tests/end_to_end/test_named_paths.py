"""Files that the documentation names by their path are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
NAMED = re.compile(r"`((?:trainer|export|ort_ops|deploy|src|tests|tools|docs|examples)/[\w./*-]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_named_in_a_page_exist(page):
    named = NAMED.findall(page.read_text(encoding="utf-8"))
    assert [path for path in named if not any(ROOT.glob(path.rstrip("/")))] == []
