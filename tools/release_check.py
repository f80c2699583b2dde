"""Checks what a release needs before its tag is set; docs/releasing.md has the steps.

    python tools/release_check.py --versions [vX.Y.Z]

The version stands in pyproject.toml, CMakeLists.txt, CITATION.cff and in
packaging/cuda/pyproject.toml. With a tag, all must be the tag's, and CHANGELOG.md must have its
heading with a date instead of "(unreleased)".
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def versions(root: Path) -> Iterator[tuple[str, str]]:
    """Yield every place that states the version, and what it states."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    yield "pyproject.toml", project["version"]
    found = re.search(r"^project\(fanin VERSION (\S+)", (root / "CMakeLists.txt").read_text(), re.M)
    yield "CMakeLists.txt", found[1] if found else "nothing"
    found = re.search(r"^version: \"?([^\"\s]+)", (root / "CITATION.cff").read_text(), re.M)
    yield "CITATION.cff", found[1] if found else "nothing"
    place = "packaging/cuda/pyproject.toml"
    cuda = tomllib.loads((root / place).read_text())["project"]
    yield place, cuda["version"]
    (pinned,) = cuda["dependencies"]
    yield f"{place}, its dependency", pinned.removeprefix("fanin==")


def problems(root: Path, tag: str | None) -> Iterator[str]:
    """Yield what contradicts the version, or the tag of a release."""
    stated = dict(versions(root))
    version = tag.removeprefix("v") if tag else stated["pyproject.toml"]
    for place, found in stated.items():
        if found != version:
            yield f"{place} states {found}, not {version}"
    changes = (root / "CHANGELOG.md").read_text()
    heading = re.search(r"^## (\S+) \((.+)\)$", changes, re.M)
    if heading is None or heading[1] != version:
        yield f"the first heading of CHANGELOG.md is not that of {version}"
    elif tag and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        yield f"CHANGELOG.md says ({heading[2]}) of {version}: a release has a date, (2026-01-31)"


def main() -> int:
    """Check this tree; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--versions", nargs="?", metavar="TAG", help="the tag of the release")
    found = list(problems(ROOT, parser.parse_args().versions))
    print("\n".join(found) or "versions and changelog agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
