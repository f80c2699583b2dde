"""results.json: compact, without raw figures unless asked for; older files; what is committed."""

import importlib.util
import io
import itertools
import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fanin.deploy.bench import (
    BenchKernelsSpec,
    BenchLayerSpec,
    ResultFileError,
    bench_kernels,
    bench_layer,
    compare_results,
    load_result,
    report_of,
    save_result,
)
from fanin.deploy.bench.report.markdown import to_markdown
from fanin.deploy.bench.report.terminal import to_sheet
from fanin.deploy.bench.results.files import compact_json

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "docs" / "results"
_spec = importlib.util.spec_from_file_location("tool", ROOT / "tools" / "render_reports.py")
tool = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tool)


@pytest.fixture(scope="module")
def layer():
    spec = BenchLayerSpec(24, 10, (0.8,), batches=(1, 2), rounds=3, turn=1e-3)
    return bench_layer(spec)


@pytest.fixture(scope="module")
def kernels():
    spec = {"shapes": ((64, 40),), "sparsities": (0.9,), "batches": (1,), "rounds": 2}
    return bench_kernels(BenchKernelsSpec(**spec, turn=1e-3, dispatched=True))


def without_raw(result):
    cases = []
    for case in result.cases:
        engines = tuple(replace(one, rounds_seconds=()) for one in case.engines)
        cases.append(replace(case, engines=engines, null=replace(case.null, rounds_seconds=())))
    return replace(result, cases=tuple(cases))


def test_a_case_and_each_of_its_engines_have_a_line_and_no_rounds(layer, tmp_path):
    save_result(layer, tmp_path)
    text = (tmp_path / "results.json").read_text()
    lines = text.splitlines()
    assert sum(line.startswith('    {"name": ') for line in lines) == 4
    assert sum(line.startswith('  {"title": ') for line in lines) == 2
    assert len(lines) < 20
    assert "rounds_seconds" not in text
    assert not (tmp_path / "raw.json").exists()


def test_a_result_that_is_read_is_the_one_that_was_written_but_for_its_rounds(layer, tmp_path):
    save_result(layer, tmp_path)
    read = load_result(tmp_path)
    assert json.loads(json.dumps(read.to_dict())) == json.loads(json.dumps(layer.to_dict()))
    assert [case.engines for case in read.cases] == [
        case.engines for case in without_raw(layer).cases
    ]
    # And its report is the same.
    assert to_markdown(report_of(read)) == (tmp_path / "results.md").read_text()


def test_the_rounds_are_in_a_file_of_their_own_on_request(layer, kernels, tmp_path):
    *_, path = save_result(layer, tmp_path, raw=True)
    assert path == tmp_path / "raw.json"
    engine = json.loads(path.read_text())["cases"][0]["engines"][0]
    assert engine["rounds_seconds"] == list(layer.cases[0].engines[0].rounds_seconds)
    assert load_result(path).cases[1].engine("condensed") == layer.cases[1].engine("condensed")
    case = json.loads(save_result(kernels, tmp_path, raw=True)[-1].read_text())["cases"][0]
    assert len(case["rounds_seconds"]) == len(case["read_rounds_seconds"]) == 2


def test_files_of_version_1_with_their_rounds_are_read_and_compared(layer, tmp_path):
    data = layer.to_dict(raw=True)
    del data["facts"], data["parts"]
    for case in data["cases"]:
        for engine in case["engines"]:
            # As the first releases wrote it.
            del engine["percentiles"], engine["conditions"], engine["run"]["interval"]
    (tmp_path / "results.json").write_text(json.dumps({**data, "schema_version": 1}, indent=1))
    save_result(layer, tmp_path / "new")
    read = load_result(tmp_path)
    assert read.cases[0].engine("dense").rounds_seconds == layer.cases[0].engines[0].rounds_seconds
    assert "dense" in to_markdown(report_of(read))
    compared = compare_results(tmp_path, tmp_path / "new")
    assert [one.ratio for one in compared.changes] == [1.0] * 2
    assert compared.unmatched == compared.conditions == ()


def test_the_envelopes_of_version_1_become_the_one_of_now(kernels, tmp_path):
    data = kernels.to_dict(raw=True)
    facts = data.pop("facts")
    del data["parts"]
    (tmp_path / "results.json").write_text(json.dumps({**data, **facts, "schema_version": 1}))
    read = load_result(tmp_path)
    assert read.facts["call_seconds"] == kernels.facts["call_seconds"]
    assert read.cases == kernels.cases
    layer = {"kind": "layer", "schema_version": 1, "spec": {"axis": "batch"}, "cases": []}
    common = {"title": "t", "created": "", "seconds": 1.0, "machine": {}}
    (tmp_path / "results.json").write_text(json.dumps({**layer, **common}))
    assert load_result(tmp_path).kind == "scaling"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"kind": "layer", "schema_version": 3}, "schema_version 3, this fanin reads 1 and 2"),
        ({"kind": "layer", "schema_version": 2}, "is damaged: KeyError: 'cases'"),
        ({"kind": "layer", "schema_version": 2, "cases": 7}, "is damaged"),
        ({"kind": "layer", "schema_version": 2, "cases": [7]}, "is damaged"),
        ({"kind": "soup"}, "is not a result of"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(content, said, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(ResultFileError, match=rf"results\.json .*{said}"):
        load_result(tmp_path)


def test_a_result_that_does_not_say_how_it_was_timed_has_no_report(layer):
    with pytest.raises(ResultFileError, match="does not say how it was timed"):
        report_of(replace(layer, timing=None))


def test_numbers_that_json_does_not_have_are_refused():
    with pytest.raises(ValueError, match="JSON compliant"):
        compact_json({"seconds": float("nan")})


def committed(kinds):
    files = sorted(COMMITTED.rglob("results.json"))
    return [file.parent for file in files if json.loads(file.read_text())["kind"] in kinds]


every_committed = pytest.mark.parametrize(
    "folder",
    committed({"layer", "model", "scaling", "kernels", "crossover", "memory", "serving"})
    + committed({"cuda", "server", "decoder"})
    + committed({"zoo", "paper"}),
    ids=lambda folder: str(folder.relative_to(COMMITTED)),
)


@every_committed
def test_a_committed_report_is_what_its_result_gives(folder):
    data = json.loads((folder / "results.json").read_text())
    assert compact_json(data) == (folder / "results.json").read_text()
    assert "rounds_seconds" not in (folder / "results.json").read_text()
    assert to_markdown(tool.document_of(folder)) == (folder / "results.md").read_text()


@every_committed
def test_a_report_fits_terminals_without_broken_words_or_numbers(folder):
    for table, width in itertools.product(tool.document_of(folder).screen, (80, 60)):
        sheet = to_sheet(table)
        console = Console(width=width, file=io.StringIO())
        console.print(sheet.to_rich(width))
        text = console.file.getvalue()
        assert max(map(len, text.splitlines())) <= width
        headings = [column.header for column in sheet.columns]
        texts = [
            *(cell for row in sheet.rows for cell in row),
            *sheet.notes,
            sheet.title,
            *headings,
        ]
        words = {word for text in texts for word in text.split()}
        parts = {part for heading in headings for part in re.split(r"(?<=-)| ", heading)}
        shown = text.replace("─", "").partition("a wider terminal also shows")[0]
        assert set(shown.split()) <= words | parts


def test_the_committed_results_stay_small():
    listed = subprocess.run(
        ["git", "ls-files", "-z", COMMITTED], capture_output=True, cwd=COMMITTED, check=False
    )
    if listed.returncode:
        pytest.skip("no git checkout")
    files = [COMMITTED / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    assert sum(file.read_bytes().count(b"\n") for file in files if file.is_file()) < 17_000
