"""LoadGen's log, and a model served under it."""

import json

import pytest

from fanin.deploy.bench import RequirementError, report_of, save_result
from fanin.deploy.bench.measure.loadgen import LoadSettings, read_log, run_loadgen
from fanin.deploy.bench.suites.serving import BenchServingSpec, bench_serving

SETTINGS = LoadSettings("Server", 0.2, 50.0, 0.1, 1e-3, 2)
LOG = {
    "result_query_count": 12,
    "result_50.00_percentile_latency_ns": 1_000_000,
    "result_90.00_percentile_latency_ns": 2_000_000,
    "result_99.00_percentile_latency_ns": 3_000_000,
    "result_mean_latency_ns": 1_500_000,
    "result_completed_samples_per_sec": 48.5,
    "result_validity": "INVALID",
}


def test_the_log_is_read_in_seconds(tmp_path):
    lines = [":::MLLOG " + json.dumps({"key": key, "value": value}) for key, value in LOG.items()]
    (tmp_path / "log").write_text("\n".join(["a line of something else", *lines]))
    result = read_log(tmp_path / "log", SETTINGS)
    assert result.latencies == {"p50": 1e-3, "p90": 2e-3, "p99": 3e-3}
    assert (result.queries, result.rate, result.valid) == (12, 48.5, False)


def test_without_loadgen_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mlperf_loadgen", None)
    with pytest.raises(RequirementError, match=r"mlperf_loadgen is not .*fanin\[loadgen\]"):
        run_loadgen(lambda _: None, 1, SETTINGS, 0)


@pytest.mark.parametrize("scenario", ["SingleStream", "Server"])
def test_loadgen_asks_for_samples_until_the_time_is_over(scenario):
    pytest.importorskip("mlperf_loadgen")
    asked = []
    settings = LoadSettings(scenario, 0.2, 100.0, 0.1, 1e-4, 2)
    result = run_loadgen(asked.append, 8, settings, 0)
    assert result.queries == len(asked) > 5
    assert set(asked) <= set(range(8))
    assert 0 < result.latencies["p50"] <= result.latencies["p90"] <= result.latencies["p99"]


def test_an_error_of_the_model_comes_back():
    pytest.importorskip("mlperf_loadgen")

    def fails(_):
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        run_loadgen(fails, 2, SETTINGS, 0)


def test_both_engines_are_asked_in_turn_and_right(save_condensed, save_dense, tmp_path):
    pytest.importorskip("mlperf_loadgen")
    model = save_condensed()
    save_dense()
    result = bench_serving(BenchServingSpec(model, seconds=0.1, turns=2, rate=100.0))
    assert [(row.engine, row.scenario, row.excluded, len(row.turns)) for row in result.cases] == [
        ("dense", "SingleStream", None, 2),
        ("condensed", "SingleStream", None, 2),
        ("dense", "Server", None, 2),
        ("condensed", "Server", None, 2),
    ]
    assert [row[0] for row in report_of(result).screen[0].rows] == ["SingleStream"] * 2 + [
        "Server"
    ] * 2
    assert any("no MLPerf results" in note for note in report_of(result).notes)
    paths = save_result(result, tmp_path / "out")
    data = json.loads(paths[0].read_text())
    assert (data["kind"], data["spec"]["model"]) == ("serving", "model.onnx")
    assert str(tmp_path) not in paths[0].read_text()


def test_an_engine_that_answers_wrongly_is_left_out(save_condensed, save_dense):
    pytest.importorskip("mlperf_loadgen")
    save_dense(noise=0.01)
    result = bench_serving(
        BenchServingSpec(save_condensed(), scenarios=("SingleStream",), seconds=0.05, turns=1)
    )
    dense, condensed = result.cases
    assert dense.excluded is None
    assert "is wrong by" in condensed.excluded
    assert report_of(result).screen[0].rows[1][2] == "excluded"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scenarios": ("Offline",)}, "there are SingleStream, Server"),
        ({"workers": 0}, "workers is 0"),
        ({"rate": 0.0}, "rate is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchServingSpec("model.onnx", **changes)
