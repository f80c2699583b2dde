"""results.json, results.md, results.svg and the terminal's table, from made-up measurements."""

import io
import json
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.console import Console

from fanin.deploy.bench import RequirementError, report_of, save_result
from fanin.deploy.bench.measure.timing import Measurement, Timing, Warmup
from fanin.deploy.bench.report import files
from fanin.deploy.bench.report.document import Table
from fanin.deploy.bench.report.figure import describe
from fanin.deploy.bench.report.markdown import to_markdown
from fanin.deploy.bench.report.terminal import print_report
from fanin.deploy.bench.results.case import make_case
from fanin.deploy.bench.results.result import Result

SVG = "{http://www.w3.org/2000/svg}"
MACHINE = {
    "host": "box",
    "cpu": "Test CPU",
    "cpus": 2,
    "load_average": [0.5, 0.4, 0.3],
    "onnxruntime": {"onnxruntime": "1.30.0"},
    "kernels": {"isas": ["scalar", "avx2"], "isa_in_force": "avx2", "table": ["row"]},
}


def measured(name, *micros, excluded=None, steady=True):
    return Measurement(
        name=name,
        version="onnxruntime 1.30.0",
        form=f"form of {name}",
        threads=1,
        load_seconds=0.1,
        first_run_seconds=1e-3,
        warmup=Warmup(0.5, 100, steady),
        repeats=50,
        rounds_seconds=[micro * 1e-6 for micro in micros],
        error_before=1e-7,
        error_after=2e-7,
        excluded=excluded,
    )


def layer_result(*cases):
    return Result(
        kind="layer",
        title="Layer 3072 → 768, 1 thread",
        created="2026-01-02T03:04:05+00:00",
        seconds=12.0,
        spec={"in_features": 3072, "batches": (1,)},
        timing=Timing(rounds=3),
        machine=MACHINE,
        load_average_after=[1.0, 0.5, 0.4],
        cases=cases,
    )


@pytest.fixture
def result():
    null = measured("null", 5, 5, 5)
    return layer_result(
        make_case(
            "90 % sparse, batch 1",
            1,
            0.9,
            {"fan_in": 307, "kernel": "k"},
            [measured("dense", 105, 125, 115), measured("condensed", 25, 25, 27)],
            null,
        ),
        make_case(
            "99 % sparse, batch 1",
            1,
            0.99,
            {"fan_in": 31, "kernel": "k"},
            [
                measured("dense", 105, 105, 105),
                measured("condensed", 5, 6, 6, steady=False),
                measured("fallback", excluded="OSError: no license"),
            ],
            null,
        ),
    )


def test_the_json_holds_everything_and_its_schema_version(result, tmp_path):
    save_result(result, tmp_path)
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["schema_version"] == 2
    assert set(data) == {
        "schema_version",
        "kind",
        "title",
        "created",
        "seconds",
        "spec",
        "timing",
        "machine",
        "load_average_after",
        "cases",
        "facts",
        "parts",
    }
    assert data["timing"]["rounds"] == 3
    assert data["machine"] == MACHINE
    first, second = data["cases"]
    assert set(first) == {
        "title",
        "batch",
        "sparsity",
        "facts",
        "engines",
        "null",
        "comparisons",
        "rivals",
        "breakdowns",
        "limit",
    }
    assert set(first["engines"][0]) == {
        "name",
        "version",
        "form",
        "threads",
        "load_seconds",
        "first_run_seconds",
        "warmup",
        "repeats",
        "run",
        "op",
        "percentiles",
        "conditions",
        "precision",
        "error_before",
        "error_after",
        "rms_error",
        "excluded",
        "call_seconds",
    }
    assert first["comparisons"][0]["op_ratio"]["median"] == pytest.approx(5)
    assert first["comparisons"][0]["run_ratio"]["max"] == pytest.approx(5)
    assert second["comparisons"][0]["op_ratio"] is None
    assert "1 of 3 rounds" in second["comparisons"][0]["op_note"]
    assert second["engines"][2]["excluded"] == "OSError: no license"
    assert second["engines"][2]["run"] is None


def test_op_times_are_run_times_less_the_null_session_of_the_round(result):
    dense = result.cases[0].engine("dense")
    assert dense.run.median == pytest.approx(115e-6)
    assert dense.op.median == pytest.approx(110e-6)


def test_the_best_form_of_each_family_is_the_rival():
    engines = [
        measured("dense", 105, 125, 115),
        measured("condensed", 25, 25, 27),
        replace(measured("deepsparse-gemm", 80, 80, 80), call_seconds=10e-6),
        replace(measured("deepsparse-conv", 50, 70, 54), call_seconds=10e-6),
        measured("deepsparse-spatial", 1, 1, 1, excluded="WrongOutputError: x"),
        # Faster as a call, slower as an op.
        replace(measured("torch-csr", 40, 40, 40), call_seconds=1e-6),
        replace(measured("scipy-csr", 45, 45, 45), call_seconds=9e-6),
    ]
    names = [engine.name for engine in engines]
    families = {"DeepSparse": names[2:5], "CSR": names[5:], "Other": ["absent"]}
    case = make_case("c", 1, 0.9, {}, engines, measured("null", 5, 5, 5), families)
    assert [one.engine for one in case.comparisons] == ["condensed", *names[2:4], *names[5:]]
    deepsparse, csr = case.rivals
    assert deepsparse.forms == ("deepsparse-gemm", "deepsparse-conv")
    assert deepsparse.comparison.baseline == "deepsparse-conv"
    assert deepsparse.comparison.engine == "condensed"
    # Each less its own null call: 40/20, 60/20, 44/22.
    assert deepsparse.comparison.op_ratio.median == pytest.approx(2)
    assert deepsparse.comparison.run_ratio.median == pytest.approx(2)
    assert csr.comparison.baseline == "scipy-csr"
    text = to_markdown(report_of(layer_result(case)))
    assert "| c | deepsparse-conv (of 2) | 54.0 µs | 44.0 µs | 2.00× [2.00–2.80] |" in text
    assert (
        "deepsparse-conv: onnxruntime 1.30.0, form of deepsparse-conv, 1 thread, call overhead"
        in text
    )


def test_other_masks_are_compared_with_the_random_one():
    cases = [
        make_case(
            f"{mask}, batch {batch}",
            batch,
            0.9,
            {"mask": mask, "padding": padding},
            [measured("dense", 100), measured("condensed", ours)],
            None,
        )
        for mask, padding, batch, ours in (
            ("random", 1.2, 1, 12),  # on more threads: no other mask
            ("random", 1.2, 1, 20),
            ("clustered", 1.5, 1, 25),
            ("clustered", 1.5, 8, 25),  # has no random one beside it
        )
    ]
    assert report_of(layer_result(*cases)).notes == [
        "clustered, batch 1: padding 1.50 (random 1.20), speed-up 0.80 of the random mask's"
    ]


def test_an_engine_that_every_case_lacks_is_noted_once():
    cases = [
        make_case(
            f"c{number}",
            1,
            0.9,
            {},
            [measured("dense", 10), measured("deepsparse", excluded="not there")],
            None,
        )
        for number in range(3)
    ]
    assert report_of(layer_result(*cases)).notes == ["deepsparse is excluded (not there)"]


def test_an_unknown_engine_is_a_key_error(result):
    with pytest.raises(KeyError):
        result.cases[0].engine("magic")


def test_without_a_usable_null_session_there_is_no_op_time():
    broken = measured("null", excluded="OSError: no")
    case = make_case("c", 1, 0.9, {}, [measured("dense", 10), measured("condensed", 5)], broken)
    assert case.engine("condensed").op is None
    assert case.comparisons[0].op_ratio is None
    assert case.comparisons[0].run_ratio.median == pytest.approx(2)


def test_without_a_usable_baseline_there_are_no_ratios():
    wrong = measured("dense", 10, excluded="WrongOutputError: x")
    assert make_case("c", 1, 0.9, {}, [wrong, measured("condensed", 5)], None).comparisons == ()


def test_the_markdown_has_the_table_the_notes_and_the_conditions(result):
    text = to_markdown(report_of(result))
    assert "| 90 % sparse, batch 1 | dense | 115 µs [105–125] | 110 µs [100–120] |" in text
    assert "4.60× [4.20–5.00]" not in text.splitlines()[0]
    assert "|  | condensed | 25.0 µs [25.0–27.0] |" in text
    assert "within noise" in text
    assert "|  | fallback | excluded |" in text
    assert "- cpu: Test CPU" in text
    assert "fan_in 307" in text
    for note in report_of(result).notes:
        assert note in text


def test_without_a_null_session_there_is_no_op_column(result):
    engines = [measured("dense", 100, 110, 120), measured("condensed", 20, 20, 20)]
    model = replace(result, kind="model", cases=(make_case("batch 1", 1, None, {}, engines, None),))
    text = to_markdown(report_of(model))
    assert "| case | engine | run | run speed-up | first run | error |" in text
    assert (
        "|  | condensed | 20.0 µs [20.0–20.0] | 5.50× (5.00–6.00) [5.00–6.00] | 1.00 ms | 2e-07 |"
        in text
    )
    assert "noise" not in text
    assert list(report_of(model).screen[0].headings) == [
        "case",
        "engine",
        "run",
        "run speed-up",
    ]


def test_percentiles_conditions_and_narrow_types_have_tables_of_their_own():
    def engine(name, micro, precision="float32", cold=None):
        made = measured(name, micro, micro, micro)
        made.precision = precision
        made.runs_seconds = [(micro + number) * 1e-6 for number in range(100)]
        made.conditions = {"cold": [cold * 1e-6] * 3} if cold else {}
        return made

    engines = [
        engine("dense", 100, cold=300),
        engine("condensed", 20, cold=30),
        engine("dense-int8", 40, "int8"),
    ]
    text = to_markdown(report_of(layer_result(make_case("c", 1, 0.9, {}, engines, None))))
    first, types, runs = text.split("\n## ")[:3]
    assert "dense-int8" not in first
    assert "| dense-int8 | int8 | 40.0 µs | 2.50× (2.50–2.50) [2.50–2.50] |" in types
    assert "speed-up, caches flushed" in runs
    # p99 of 20, 21, …, 119 µs.
    assert "| condensed | 69.5 µs | 109 µs | 118 µs | 1.00 ms | 30.0 µs | 10.00× (10.0" in runs
    assert "after a pause" not in runs.splitlines()[2]


def test_the_notes_say_what_qualifies_the_numbers(result):
    assert report_of(result).notes == [
        "99 % sparse, batch 1: condensed was not steady after 0.5 s of warm-up",
        "99 % sparse, batch 1: fallback is excluded (OSError: no license)",
        "99 % sparse, batch 1: no op speed-up of condensed, since condensed took no longer than "
        "the null session in 1 of 3 rounds",
    ]


def test_a_busy_machine_is_noted(result):
    busy = replace(result, machine={**MACHINE, "load_average": [1.5, 1, 1]})
    assert "load average 1.5 on 2 CPUs" in report_of(busy).notes[0]
    unknown = replace(result, machine={**MACHINE, "load_average": None})
    assert report_of(unknown).notes == report_of(result).notes


def test_the_terminal_table_fits_110_columns(result):
    console = Console(width=110, file=io.StringIO())
    print_report(report_of(result), console)
    text = console.file.getvalue()
    assert "…" not in text
    assert "4.26× [4.20–5.00]" in text
    assert "5.00× [" in text


def test_the_figure_has_a_panel_per_batch_in_text_that_is_text(result, tmp_path):
    save_result(result, tmp_path)
    for name in ("results.svg", "results-narrow.svg"):
        drawn = ElementTree.parse(tmp_path / name).getroot()
        texts = ["".join(one.itertext()) for one in drawn.iter(f"{SVG}text")]
        assert {"batch 1", "90 %", "99 %", "4.26×", "5.00×"} <= set(texts)
        assert drawn.find(f"{SVG}title").text == describe(report_of(result).figure)
    (panel,) = report_of(result).figure.panels
    assert panel.title == "batch 1"
    assert list(panel.x.ticks.values()) == ["90 %", "99 %"]
    run, op = panel.series
    assert (run.xs, op.xs) == ([0, 1], [0])  # an op ratio is in the noise
    assert op.ys == [pytest.approx(5)]
    assert (op.least, op.most) == ([pytest.approx(5)], [pytest.approx(6)])


def test_many_batches_are_drawn_in_rows_that_fit_a_page(tmp_path):
    cases = [
        make_case(
            f"c{batch}", batch, 0.9, {}, [measured("dense", 9), measured("condensed", 3)], None
        )
        for batch in range(1, 8)
    ]
    figure = report_of(layer_result(*cases)).figure
    assert (len(figure.panels), figure.columns) == (7, 3)
    sizes = []
    for path in save_result(layer_result(*cases), tmp_path)[2:]:
        drawn = ElementTree.parse(path).getroot()
        points = [float(drawn.get(side).removesuffix("pt")) for side in ("width", "height")]
        sizes.append([96 / 72 * one for one in points])
    (wide, _), (narrow, height) = sizes
    assert wide < 800  # beside the navigation of a page of 1,200 pixels
    assert narrow < 360 < height


def test_brackets_in_names_reach_the_terminal(result):
    console = Console(width=110, file=io.StringIO())
    print_report(replace(report_of(result), screen=[Table(("a", "b"), [["x[red]", "y"]])]), console)
    assert "x[red]" in console.file.getvalue()


def test_a_result_without_any_ratio_still_has_a_figure(tmp_path):
    wrong = measured("dense", excluded="WrongOutputError: x")
    result = layer_result(make_case("c", 1, 0.9, {}, [wrong, measured("condensed", 5)], None))
    save_result(result, tmp_path)
    assert "No values" not in (tmp_path / "results.svg").read_text()


def test_the_folder_is_made_and_old_files_are_replaced(result, tmp_path):
    folder = tmp_path / "a" / "b"
    first = save_result(result, folder)
    second = save_result(result, str(folder))
    names = ["results.json", "results.md", "results.svg", "results-narrow.svg"]
    assert first == second == [folder / name for name in names]
    assert {path.name for path in folder.iterdir()} == set(names)


def test_a_result_that_is_a_link_stays_one_and_its_target_is_replaced(result, tmp_path):
    (tmp_path / "kept").mkdir()
    target = tmp_path / "kept" / "latest.json"
    target.write_text("old")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "results.json").symlink_to(target)
    (folder / "results.md").symlink_to(tmp_path / "kept" / "new.md")
    save_result(result, folder)
    assert (folder / "results.json").readlink() == target
    assert json.loads(target.read_text())["schema_version"] == 2
    assert (tmp_path / "kept" / "new.md").read_text().startswith("# ")
    assert sorted(path.name for path in target.parent.iterdir()) == ["latest.json", "new.md"]


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(result, tmp_path, monkeypatch):
    save_result(result, tmp_path)
    before = (tmp_path / "results.md").read_text()

    def fails(_):
        raise OSError("disk full")

    monkeypatch.setattr(files, "to_markdown", fails)
    with pytest.raises(OSError, match="disk full"):
        save_result(result, tmp_path)
    assert (tmp_path / "results.md").read_text() == before
    assert len(list(tmp_path.iterdir())) == 4


def test_a_missing_matplotlib_is_named_before_anything_is_written(result, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RequirementError, match="matplotlib is not installed"):
        save_result(result, tmp_path / "new")
    assert not (tmp_path / "new").exists()
