"""CondensedGemm in sessions: threads, sharing, saving, many sessions at once."""

import os
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fanin import ort_ops
from fanin.ort_ops import _native

from .._waiting import wait_until
from ._cycle_probe import growth
from ._models import Layer, assert_close, open_session, run, spec_of

BIG = Layer.random(1024, 700, 100, active=650)


def per_session_config() -> bool:
    """Whether this runtime gives kernels access to the session's configuration."""
    major, minor = onnxruntime.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (1, 24)


@pytest.mark.parametrize("batch", [1, 3, 16, 65])
def test_the_result_does_not_depend_on_the_number_of_threads(batch):
    layer = Layer.random(3000, 2500, 300, active=2400)  # enough work to split even one row of X
    x = layer.x(batch)
    model = spec_of(layer).build()
    results = [
        run(open_session(model, threads=threads, config=config), X=x)
        for threads in (1, 2, 3)
        for config in ({}, {"fanin.threads": str(threads)}, {"fanin.threads": "1"})
    ]
    assert_close(results[0], layer, x)
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))


def threads_of_this_process() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def test_only_the_intra_op_pool_is_used():
    before = threads_of_this_process()
    session = open_session(spec_of(BIG).build(), threads=3)
    pool = threads_of_this_process() - before
    assert len(pool) == 2
    for batch in (1, 64):
        run(session, X=BIG.x(batch))
    assert threads_of_this_process() - before == pool


def cpu_nanoseconds(thread: int) -> int:
    """CPU time of a thread of this process so far."""
    return time.clock_gettime_ns(~thread << 3 | 6)  # Linux's id of a thread's CPU clock


@pytest.mark.parametrize("told", [{}, {"fanin.threads": "2"}, {"fanin.threads": "1"}], ids=str)
def test_the_pool_works_unless_the_session_declares_one_thread(told):
    before = threads_of_this_process()
    no_spinning = {"session.intra_op.allow_spinning": "0"}
    session = open_session(spec_of(BIG).build(), threads=2, config={**no_spinning, **told})
    (worker,) = threads_of_this_process() - before
    x = BIG.x(256)

    def worker_ran() -> bool:
        """Whether the pool's thread did any work during some runs of the session."""
        ran = cpu_nanoseconds(worker)
        for _ in range(20):
            run(session, X=x)
        return cpu_nanoseconds(worker) > ran

    if told == {"fanin.threads": "1"} or len(os.sched_getaffinity(0)) == 1:
        # During the first runs it may still be starting.
        wait_until(lambda: not any(worker_ran() for _ in range(3)), "the pool rests during runs")
    else:
        for _ in range(3):
            wait_until(worker_ran, "the pool takes part in the runs")


@pytest.mark.parametrize("value", ["1", "2", "1000000"])
def test_any_positive_thread_count_is_accepted(value):
    x = BIG.x(1)
    session = open_session(spec_of(BIG).build(), config={"fanin.threads": value})
    assert_close(run(session, X=x), BIG, x)


BAD_COUNTS = ["two", "0", "-1", "", " 1", "1.5", "2 threads", "99999999999999999999"]


@pytest.mark.parametrize("value", BAD_COUNTS)
def test_an_invalid_thread_count_is_refused_by_name(value):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("fanin.threads", value)
    with pytest.raises(Exception, match=f"'fanin.threads' is '{value}'.*whole number from 1"):
        ort_ops.register(options)


@pytest.mark.skipif(not per_session_config(), reason="needs onnxruntime 1.24")
@pytest.mark.parametrize("value", BAD_COUNTS)
def test_a_bad_thread_count_set_after_registration_is_refused_by_the_node(value):
    options = onnxruntime.SessionOptions()
    ort_ops.register(options)
    options.add_session_config_entry("fanin.threads", value)
    with pytest.raises(Exception, match=f"the_layer.*'fanin.threads' is '{value}'"):
        onnxruntime.InferenceSession(spec_of(BIG).build().SerializeToString(), options)


@pytest.mark.parametrize("cost", ["0,0", "3.5,0.2", "1e6,0", "0,1e300"])
def test_the_cost_of_a_dispatch_changes_no_result(cost):
    x = BIG.x(33)
    expected = run(open_session(spec_of(BIG).build(), threads=1), X=x)
    session = open_session(spec_of(BIG).build(), threads=2, config={"fanin.dispatch": cost})
    np.testing.assert_array_equal(run(session, X=x), expected)


def test_a_dispatch_that_costs_more_than_the_run_leaves_the_pool_alone():
    before = threads_of_this_process()
    config = {"session.intra_op.allow_spinning": "0", "fanin.dispatch": "1e9,0"}
    session = open_session(spec_of(BIG).build(), threads=2, config=config)
    (worker,) = threads_of_this_process() - before
    x = BIG.x(256)

    def worker_rested() -> bool:
        ran = cpu_nanoseconds(worker)
        for _ in range(20):
            run(session, X=x)
        return cpu_nanoseconds(worker) == ran

    # At first it may still be starting.
    wait_until(lambda: all(worker_rested() for _ in range(3)), "the pool rests during runs")


@pytest.mark.parametrize(
    "value", ["", "3", "3,", ",3", "a,b", "1,2,3", "-1,0", "0,-1", "nan,0", "1 "]
)
def test_a_dispatch_cost_that_is_none_is_refused_by_name(value):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("fanin.dispatch", value)
    with pytest.raises(Exception, match=f"'fanin.dispatch' is '{value}'.*two numbers"):
        ort_ops.register(options)


def test_sessions_live_side_by_side():
    layers = [Layer.random(20 + i, 10 + i, 3 + i, seed=i) for i in range(5)]
    sessions = [open_session(spec_of(layer).build()) for layer in layers]
    for _ in range(2):
        for layer, session in zip(layers, sessions, strict=True):
            x = layer.x(2)
            assert_close(run(session, X=x), layer, x)


def test_one_options_object_serves_several_sessions():
    options = onnxruntime.SessionOptions()
    ort_ops.register(options)
    model = spec_of(BIG).build().SerializeToString()
    x = BIG.x(2)
    for _ in range(2):
        session = onnxruntime.InferenceSession(model, options)
        assert_close(run(session, X=x), BIG, x)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_session_may_be_run_from_many_threads(threads):
    session = open_session(spec_of(BIG).build(), threads=threads)
    inputs = [BIG.x(batch, seed=batch) for batch in (1, 2, 5, 16)]
    expected = [run(session, X=x) for x in inputs]

    def work(worker: int) -> bool:
        return all(
            np.array_equal(run(session, X=inputs[(worker + i) % 4]), expected[(worker + i) % 4])
            for i in range(50)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_sessions_may_be_created_from_many_threads():
    model = spec_of(BIG).build()
    x = BIG.x(2)

    def make_and_run(worker: int) -> np.ndarray:
        return run(open_session(model, config={"fanin.threads": str(1 + worker % 3)}), X=x)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(make_and_run, range(24)))
    assert_close(results[0], BIG, x)
    assert all(np.array_equal(result, results[0]) for result in results)


def test_an_optimized_model_can_be_saved_and_loaded(tmp_path):
    saved = tmp_path / "optimized.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(saved)
    x = BIG.x(3)
    expected = run(open_session(spec_of(BIG).build(), options=options), X=x)
    np.testing.assert_array_equal(run(open_session(str(saved)), X=x), expected)


def test_external_data_is_accepted(tmp_path):
    path = tmp_path / "layer.onnx"
    onnx.save(spec_of(BIG).build(), path, save_as_external_data=True, location="layer.data")
    x = BIG.x(3)
    assert_close(run(open_session(str(path)), X=x), BIG, x)


def test_memory_stays_flat_over_many_sessions(tmp_path):
    layer = Layer.random(256, 200, 32)
    path = tmp_path / "layer.onnx"
    path.write_bytes(spec_of(layer).build().SerializeToString())
    # The packed weights alone are 50 KB: a leak of them would be 15 MB.
    assert growth(path, layer.x(2), warm=60, cycles=300) < 4 << 20


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_every_isa_of_this_machine_agrees_with_the_reference(isa, monkeypatch):
    monkeypatch.setenv("FANIN_ISA", isa)
    for layer in (BIG, Layer.random(active=13, padded=True)):
        session = open_session(spec_of(layer, clip_min=-1.0).build(), threads=2)
        for batch in (1, 2, 17, 64):
            x = layer.x(batch)
            assert_close(run(session, X=x), layer, x, clip_min=-1.0)


@pytest.mark.parametrize("isa", ["sse9", "neon", "AVX2", "auto "])
def test_an_isa_that_this_cpu_lacks_is_refused_by_name(isa, monkeypatch):
    monkeypatch.setenv("FANIN_ISA", isa)
    with pytest.raises(Exception, match=f"the_layer.*FANIN_ISA.*'{isa}'"):
        open_session(spec_of(BIG).build())


def test_weights_as_inputs_are_accepted_and_reported_once(tmp_path):
    """The plain kernel runs: nothing is packed, and the log says so."""
    layer = Layer.random(active=11, padded=True)
    path = tmp_path / "fed.onnx"
    fed = dict.fromkeys(layer.weights)
    path.write_bytes(replace(spec_of(layer), fed=fed).build().SerializeToString())
    program = textwrap.dedent(f"""
        import onnxruntime
        from fanin import ort_ops
        options = onnxruntime.SessionOptions()
        ort_ops.register(options)
        onnxruntime.InferenceSession({str(path)!r}, options)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "CondensedGemm node 'the_layer'" in line]
    assert len(lines) == 1
    assert "not constant: values, indices, bias, rows" in lines[0]

    session = open_session(str(path))
    for seed, batch in enumerate((0, 1, 5)):
        other = Layer.random(active=11 - seed, fan_in=5 + seed, seed=seed)
        x = other.x(batch)
        assert_close(run(session, X=x, **other.weights), other, x)


@pytest.mark.parametrize("name", ["values", "indices", "bias", "rows"])
def test_a_single_weight_as_input_runs_the_plain_kernel(name):
    layer = Layer.random(active=11)
    fed = {name: layer.weights[name].shape}
    session = open_session(replace(spec_of(layer), fed=fed).build())
    x = layer.x(3)
    assert_close(run(session, X=x, **{name: layer.weights[name]}), layer, x)


@pytest.mark.parametrize(
    ("declared", "inferred"),
    [
        (("batch", 37), ["batch", 19]),
        (("batch", "seq", 37), ["batch", "seq", 19]),
        ((4, "seq", None), [4, "seq", 19]),
        ((37,), [19]),
        ((2, 3, 37), [2, 3, 19]),
    ],
    ids=str,
)
def test_shapes_are_known_after_the_node(declared, inferred):
    session = open_session(replace(spec_of(Layer.random()), x_shape=declared).build())
    assert session.get_outputs()[0].shape == inferred
    assert session.get_outputs()[0].type == "tensor(float)"


def test_an_unknown_dimension_without_name_stays_unknown():
    """Written as the number -1, it would not broadcast with anything in the next node."""
    layer = Layer.random()
    model = replace(spec_of(layer), x_shape=(None, None, 37)).build()
    model.graph.node[0].output[0] = "hidden"
    model.graph.node.append(helper.make_node("Add", ["hidden", "other"], ["Y"]))
    model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, (5, 3, 19)))
    session = open_session(model)
    assert session.get_outputs()[0].shape == [5, 3, 19]
    x, other = layer.x(5, 3), np.zeros((5, 3, 19), np.float32)
    assert_close(run(session, X=x, other=other), layer, x)


def test_an_input_of_unknown_rank_is_accepted():
    layer = Layer.random()
    session = open_session(replace(spec_of(layer), x_shape=None).build())
    for leading in ((), (2,), (2, 3)):
        x = layer.x(*leading)
        assert_close(run(session, X=x), layer, x)
