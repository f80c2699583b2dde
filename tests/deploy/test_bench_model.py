"""bench_model on two tiny models."""

import itertools

import numpy as np
import onnx
import pytest

from fanin.deploy import SessionError
from fanin.deploy.bench import BenchModelSpec, bench_model
from fanin.deploy.bench.measure import profiling
from fanin.deploy.bench.measure.breakdown import Breakdown, NodeTime, _breakdown, amdahl_limit
from fanin.deploy.bench.measure.profiling import EmptyNode, time_empty_nodes
from fanin.deploy.bench.suites.model import ENGINES

QUICK = {"rounds": 3, "turn": 1e-3}


def test_dense_and_condensed_are_compared_at_each_batch(save_condensed, save_dense):
    model = save_condensed()
    save_dense()
    told = []
    spec = BenchModelSpec(model, batches=(1, 3), **QUICK)
    result = bench_model(spec, progress=lambda title, share: told.append((title, share)))
    assert told == [("batch 1", 0), ("batch 3", 0.5)]
    assert [case.batch for case in result.cases] == [1, 3]
    for case in result.cases:
        assert [engine.name for engine in case.engines] == ["dense", "condensed"]
        assert all(engine.excluded is None for engine in case.engines)
        assert case.engine("condensed").error_after <= 1e-6
        (comparison,) = case.comparisons
        assert (comparison.baseline, comparison.engine) == ("dense", "condensed")
        assert comparison.run_ratio.count == 3
        assert comparison.op_ratio is None
        assert case.facts["condensed_nodes"] == 1
        assert case.facts["condensed_bytes"] == model.stat().st_size
        assert case.facts["size_ratio"] == pytest.approx(
            model.stat().st_size / model.with_suffix(".dense.onnx").stat().st_size
        )


def test_external_data_counts_as_file_size(save_condensed, save_dense):
    model = save_condensed()
    dense = save_dense()
    onnx.save(
        onnx.load(dense), dense, save_as_external_data=True, location="w.data", size_threshold=0
    )
    (case,) = bench_model(BenchModelSpec(model, **QUICK)).cases
    expected = dense.stat().st_size + (dense.parent / "w.data").stat().st_size
    assert case.facts["dense_bytes"] == expected


def test_file_names_but_no_folders_enter_the_result(save_condensed, save_dense):
    model = save_condensed()
    save_dense()
    result = bench_model(BenchModelSpec(model, **QUICK))
    assert str(model.parent) not in str(result.to_dict())
    assert result.spec["model"] == "model.onnx"


def test_models_that_differ_by_more_than_rounding_give_no_ratio(save_condensed, save_dense):
    model = save_condensed()
    save_dense(noise=0.01)
    (case,) = bench_model(BenchModelSpec(model, **QUICK)).cases
    assert case.engine("dense").excluded is None
    assert "output 0 is wrong" in case.engine("condensed").excluded
    assert case.comparisons == ()


def test_a_missing_baseline_names_the_option_that_makes_it(save_condensed):
    with pytest.raises(SessionError, match=r"model\.dense\.onnx.*fanin export --dense-baseline"):
        bench_model(BenchModelSpec(save_condensed()))


def test_a_baseline_may_be_named(save_condensed, save_dense):
    spec = BenchModelSpec(save_condensed(), dense=save_dense("other.onnx"), **QUICK)
    assert bench_model(spec).spec["dense"] == "other.onnx"


def test_a_missing_model_is_the_session_error(tmp_path):
    with pytest.raises(SessionError, match="no such file"):
        bench_model(BenchModelSpec(tmp_path / "none.onnx"))


def test_a_dense_model_has_nothing_to_compare(save_dense):
    path = save_dense()
    with pytest.raises(SessionError, match=r"no ai\.fanin node"):
        bench_model(BenchModelSpec(path, dense=path))


def test_a_baseline_of_another_model_is_refused(save_condensed, save_dense):
    spec = BenchModelSpec(save_condensed(), dense=save_dense(out="Z"))
    with pytest.raises(SessionError, match="inputs and outputs are"):
        bench_model(spec)


def fix_dimension(path, at, value):
    model = onnx.load(path)
    for info in (*model.graph.input, *model.graph.output):
        dimension = info.type.tensor_type.shape.dim[at]
        if isinstance(value, int):
            dimension.dim_value = value
        else:
            dimension.dim_param = value
    onnx.save(model, path)


def test_a_fixed_batch_allows_only_itself(save_condensed, save_dense):
    model, dense = save_condensed(), save_dense()
    for path in (model, dense):
        fix_dimension(path, 0, 2)
    assert bench_model(BenchModelSpec(model, batches=(2,), **QUICK)).cases[0].batch == 2
    with pytest.raises(SessionError, match="fixed batch of 2"):
        bench_model(BenchModelSpec(model, batches=(1,), **QUICK))


def test_a_second_free_dimension_is_refused(save_condensed, save_dense):
    model, dense = save_condensed(), save_dense()
    for path in (model, dense):
        fix_dimension(path, 1, "features")
    with pytest.raises(SessionError, match="only its first dimension"):
        bench_model(BenchModelSpec(model, **QUICK))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batches", ()),
        ("batches", (0,)),
        ("batches", (4, 4)),
        ("threads", 0),
        ("rounds", 0),
        ("seed", -1),
        ("tolerance", 0),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        BenchModelSpec("m.onnx", **{name: value})


def test_inputs_do_not_depend_on_anything_but_the_seed(save_condensed, save_dense):
    model = save_condensed()
    save_dense()
    errors = [
        bench_model(BenchModelSpec(model, seed=seed, **QUICK)).cases[0].engines[1].error_before
        for seed in (3, 3)
    ]
    assert errors[0] == errors[1]
    assert np.isfinite(errors[0])


def test_the_breakdown_has_every_node_and_the_limit_without_the_condensed_ones(
    save_condensed, save_dense
):
    spec = BenchModelSpec(save_condensed(), dense=save_dense(), **QUICK)
    (case,) = bench_model(spec).cases
    dense, condensed = case.breakdowns
    assert [node.op_type for node in condensed.nodes] == ["CondensedGemm"]
    assert condensed.nodes[0].name == "fc1"
    assert condensed.condensed_seconds == condensed.nodes_seconds
    assert dense.condensed_seconds == 0
    assert dense.runs >= 5
    share = condensed.nodes_seconds / condensed.total_seconds
    ratio = case.engine("dense").run.median / case.engine("condensed").run.median
    assert case.limit == pytest.approx(ratio / (1 - share))


def test_a_node_in_a_loop_is_summed_and_the_profilers_own_time_belongs_to_no_row():
    events = [{"name": "model_run", "cat": "Session", "ts": at, "dur": 100} for at in (0, 1000)]
    for start in (0, 1000):
        for step in range(3):
            events.append(
                {
                    "name": "body_kernel_time",
                    "cat": "Node",
                    "ts": start + step,
                    "dur": 10 + step,
                    "args": {"op_name": "Add"},
                }
            )
    empty = EmptyNode(profiled_seconds=5e-6, seconds=1e-6, call_seconds=20e-6)
    found = _breakdown("dense", events, [40e-6, 42e-6], empty)
    (node,) = found.nodes
    assert node.seconds == pytest.approx((5 + 6 + 7) * 1e-6)
    assert found.runtime_seconds == pytest.approx(3e-6)
    assert found.call_seconds == pytest.approx(20e-6)
    assert found.explained == pytest.approx(1.0)


def test_an_empty_node_is_the_difference_of_a_long_and_a_short_chain(monkeypatch):
    """Of 101 nodes and one; the profiled chain's own wall time does not count."""
    seconds = itertools.cycle([9.0, 12e-6, 112e-6])

    def run(session, inputs, runs):
        session.run(None, inputs)
        return [next(seconds)] * runs

    monkeypatch.setattr(profiling, "_run_seconds", run)
    empty = time_empty_nodes(1)
    assert (empty.seconds, empty.call_seconds) == pytest.approx((1e-6, 11e-6))
    assert 0 <= empty.profiled_seconds < 9


def test_without_a_breakdown_nothing_is_profiled(save_condensed, save_dense):
    spec = BenchModelSpec(save_condensed(), dense=save_dense(), breakdown=False, **QUICK)
    (case,) = bench_model(spec).cases
    assert (case.breakdowns, case.limit) == ((), None)


def test_times_are_kept_when_the_profiler_fails(save_condensed, save_dense, monkeypatch):
    def broken(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr("fanin.deploy.bench.suites.model.profile", broken)
    (case,) = bench_model(BenchModelSpec(save_condensed(), dense=save_dense(), **QUICK)).cases
    assert case.engine("condensed").run is not None
    assert (case.breakdowns, case.facts["breakdown_failed"]) == ((), "OSError: no space left")


def test_a_limit_that_nothing_was_measured_of_is_left_out():
    node = NodeTime("fc", "CondensedGemm", 1e-3)
    assert amdahl_limit(2e-3, 1e-3, Breakdown("condensed", 5, (node,), 1e-3, 0.0, 0.0, 1.0)) is None


def test_openvino_runs_the_dense_file_beside(save_condensed, save_dense):
    pytest.importorskip("openvino")
    spec = BenchModelSpec(
        save_condensed(), dense=save_dense(), engines=(*ENGINES[:2], "openvino"), **QUICK
    )
    (case,) = bench_model(spec).cases
    assert case.engine("openvino").excluded is None
    (rival,) = case.rivals
    assert (rival.family, rival.comparison.engine) == ("OpenVINO", "condensed")


def test_without_deepsparse_the_others_are_measured(save_condensed, save_dense, tmp_path):
    spec = BenchModelSpec(
        save_condensed(),
        dense=save_dense(),
        engines=(*ENGINES[:2], "deepsparse"),
        deepsparse_python=tmp_path / "none",
        **QUICK,
    )
    (case,) = bench_model(spec).cases
    assert "make deepsparse-env" in case.engine("deepsparse").excluded
    assert case.engine("condensed").excluded is None


@pytest.mark.parametrize("engines", [("dense",), ("dense", "condensed", "tvm"), ("dense",) * 2])
def test_engines_that_do_not_exist_are_refused(engines):
    with pytest.raises(ValueError, match="engines"):
        BenchModelSpec("model.onnx", engines=engines)
