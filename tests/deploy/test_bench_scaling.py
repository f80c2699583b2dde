"""Lines over threads and batches, the crossover, and its comparison with the exporter's choice."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy.bench import report_of, save_result
from fanin.deploy.bench.engines.child.conditions import cache_sizes
from fanin.deploy.bench.suites.crossover import BenchCrossoverSpec, bench_crossover, crossing
from fanin.deploy.bench.suites.kernels import roof_sizes
from fanin.deploy.bench.suites.scaling import BenchScalingSpec, bench_scaling
from fanin.export.forms import Chooser

SMALL = {"in_features": 32, "out_features": 24, "rounds": 2, "turn": 1e-3}


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([0.5, 2.0, 4.0], 0.35),  # half way in the logarithm, from 0.2 to 0.5
        ([2.0, 0.5, 2.0], 0.65),  # only the last rise counts
        ([1.5, 2.0, 3.0], 0.0),
        ([0.5, 0.7, 0.9], None),
        ([0.5, 2.0, 0.9], None),
    ],
)
def test_the_crossing_is_where_the_ratio_rises_through_one_for_good(ratios, expected):
    assert crossing([0.2, 0.5, 0.8], ratios) == pytest.approx(expected)


@pytest.fixture(scope="module")
def crossover():
    return bench_crossover(
        BenchCrossoverSpec(**SMALL, sparsities=(0.3, 0.9), batches=(1, 2), threads=(1, 2))
    )


def test_every_point_says_what_auto_takes_and_whether_that_was_right(crossover):
    assert crossover.facts["excluded"] == []
    points = [(one.threads, one.batch, one.sparsity) for one in crossover.cases]
    assert points == [(t, b, s) for t in (1, 2) for b in (1, 2) for s in (0.3, 0.9)]
    for one in crossover.cases:
        costs = Chooser.of("auto", one.batch, portable=False, threads=one.threads).costs
        stored = 24 * round((1 - one.sparsity) * 32)
        predicted = costs.dense(one.batch, 24, 32) / costs.condensed(one.batch, 24, 32, stored)
        assert one.predicted == pytest.approx(predicted)
        faster = "condensed" if one.speedup.median > 1 else "dense"
        tie = 1 / 1.1 <= one.speedup.median <= 1.1
        assert one.agrees == (tie or one.auto == faster)


def test_the_table_has_a_row_per_batch_and_the_figure_is_drawn(crossover, tmp_path):
    (grid,) = report_of(crossover).screen
    assert grid.headings == [
        "batch",
        *("1 thread", "predicted by auto"),
        *("2 threads", "predicted by auto"),
    ]
    assert [row[0] for row in grid.rows] == ["1", "2"]
    agreeing = sum(one.agrees for one in crossover.cases)
    assert any(f"at {agreeing} of 8 points" in note for note in report_of(crossover).notes)
    paths = save_result(crossover, tmp_path)
    data = json.loads(paths[0].read_text())
    assert (data["kind"], len(data["cases"]), len(data["facts"]["crossovers"])) == (
        "crossover",
        8,
        4,
    )
    assert paths[2].read_text().startswith("<svg ")


def test_older_results_have_one_prediction_for_all_threads(crossover):
    facts = {key: one for key, one in crossover.facts.items() if key != "predicted_by_threads"}
    (grid,) = report_of(replace(crossover, facts=facts)).screen
    assert grid.headings == ["batch", "1 thread", "2 threads", "predicted by auto"]
    assert {len(row) for row in grid.rows} == {4}


@pytest.mark.parametrize("axis", ["threads", "batch"])
def test_a_line_has_a_case_for_each_value(axis, tmp_path):
    spec = BenchScalingSpec(axis, (1, 2), (1, 3), **SMALL)
    result = bench_scaling(spec)
    assert [(case.facts["threads"], case.batch) for case in result.cases] == [
        (1, 1),
        (1, 3),
        (2, 1),
        (2, 3),
    ]
    for case in result.cases:
        for engine in case.engines:
            assert (engine.excluded, engine.threads) == (None, case.facts["threads"])
    names = [path.name for path in save_result(result, tmp_path)]
    assert names == ["results.json", "results.md", "results.svg", "results-narrow.svg"]


def test_the_roofs_are_halves_of_the_caches_and_one_size_beyond_them():
    *inside, beyond = roof_sizes()
    caches = cache_sizes()
    if caches:
        assert inside == [size // 2 for level, size in caches.items() if level > 1]
        assert list(caches.values()) == sorted(caches.values())
    assert beyond >= 4 * inside[-1]


def test_the_command_shows_the_parts_that_are_there_on_one_page(tmp_path, monkeypatch):
    def small(**options):
        return BenchScalingSpec("threads", (1,), (1,), 32, 24, turn=1e-3, **options)

    monkeypatch.setattr(BenchScalingSpec, "over_threads", small)
    arguments = ["bench", "scaling", "--of", "threads", "--quick", "-o", str(tmp_path)]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert (tmp_path / "threads" / "results.json").is_file()
    assert (tmp_path / "index.html").read_text().count("<section>") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparsities": (0.5,)}, "two or more"),
        ({"sparsities": (0.9, 0.5)}, "increasing"),
        ({"sparsities": (0.5, 1.0)}, "below 1"),
        ({"batches": ()}, "batches are"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchCrossoverSpec(**{**SMALL, **changes})
