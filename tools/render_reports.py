"""Write the reports and figures below docs/results again from their results.json.

python tools/render_reports.py           # all
python tools/render_reports.py memory    # docs/results/memory
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fanin.deploy.bench import load_result, report_of
from fanin.deploy.bench.report.document import Document
from fanin.deploy.bench.report.files import write_figures
from fanin.deploy.bench.report.markdown import to_markdown
from fanin.deploy.bench.suites.paper import PaperResult
from fanin.deploy.bench.suites.paper_report import paper_document
from fanin.deploy.bench.suites.zoo import read_zoo
from fanin.deploy.bench.suites.zoo_report import zoo_document

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def document_of(folder: Path) -> Document:
    """Make the report of a committed result."""
    summary = json.loads((folder / "results.json").read_text())
    if summary["kind"] == "zoo":
        return zoo_document(read_zoo(folder))
    if summary["kind"] == "paper":
        parts = tuple(load_result(folder / part) for part in summary["parts"].values())
        return paper_document(PaperResult(parts, summary["facts"]["missing_cases"]))
    return report_of(load_result(folder))


def main(names: list[str]) -> None:
    """Write the reports of the named folders, or of all."""
    folders = [RESULTS / name for name in names] or [
        path.parent for path in sorted(RESULTS.rglob("results.json"))
    ]
    for folder in folders:
        document = document_of(folder)
        (folder / "results.md").write_text(to_markdown(document))
        write_figures(document, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
