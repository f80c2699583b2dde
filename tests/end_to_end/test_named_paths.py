"""Files and headings that the documentation names exist."""

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_native_sources_named_in_a_page_exist(page):
    sources = list(ROOT.glob("ort_ops/csrc/**/*.*"))
    named = set(re.findall(r"`([\w./]+\.(?:cc|h|cu|inc))`", page.read_text(encoding="utf-8")))
    named -= {"onnxruntime_c_api.h", "onnxruntime_cxx_api.h"}  # ONNX Runtime's own
    assert [name for name in named if not any(file.match(name) for file in sources)] == []


def _anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files_and_headings(page):
    lost = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            lost.append(target)
    assert lost == []
