"""bench_layer on tiny shapes, and the weights that it makes."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from fanin.deploy.bench import BenchLayerSpec, RequirementError, bench_layer
from fanin.deploy.bench.suites import layer as layer_module

TINY = {"in_features": 24, "out_features": 10, "rounds": 3, "turn": 1e-3}


def test_every_case_has_all_engines_right_and_compared_with_dense():
    spec = BenchLayerSpec(
        **TINY,
        sparsities=(0.5, 0.9),
        batches=(1, 5),
        ablated=0.2,
        engines=("dense", "condensed", "fallback"),
    )
    result = bench_layer(spec)
    assert [(case.sparsity, case.batch) for case in result.cases] == [
        (0.5, 1),
        (0.5, 5),
        (0.9, 1),
        (0.9, 5),
    ]
    for case in result.cases:
        assert [engine.name for engine in case.engines] == ["dense", "condensed", "fallback"]
        assert [engine.excluded for engine in case.engines] == [None] * 3
        assert all(engine.error_after <= 1e-5 for engine in case.engines)
        assert case.null.excluded is None
        assert case.null.form == "Slice"
        assert [one.engine for one in case.comparisons] == ["condensed", "fallback"]
        assert case.facts["active"] == 8
        assert case.facts["kernel"]
    half, tenth = result.cases[0].facts, result.cases[2].facts
    assert (half["fan_in"], tenth["fan_in"]) == (15, 3)
    assert half["sparsity_achieved"] == pytest.approx(1 - 15 * 8 / 240)
    assert half["dense_bytes"] == 4 * (240 + 10)


def test_wider_outputs_than_inputs_work_too():
    spec = BenchLayerSpec(10, 24, (0.8,), (2,), rounds=2, turn=1e-3)
    (case,) = bench_layer(spec).cases
    assert case.null.form == "Pad"
    assert case.engine("condensed").excluded is None


def test_the_seed_decides_the_weight():
    spec = BenchLayerSpec(30, 20, (0.9,), ablated=0.25)
    same = spec.weight("random", 0.9).to_dense()
    assert np.count_nonzero(same) == 60
    np.testing.assert_array_equal(spec.weight("random", 0.9).to_dense(), same)
    other = BenchLayerSpec(30, 20, (0.9,), ablated=0.25, seed=1).weight("random", 0.9)
    assert (other.to_dense() != same).any()


def test_a_wrong_kernel_is_excluded_and_dense_still_reported(monkeypatch):
    problem = layer_module.layer_problem

    def other_bias(weight, batch, seed):
        return problem(replace(weight, bias=weight.bias + 1), batch, seed)

    monkeypatch.setattr(layer_module, "layer_problem", other_bias)
    (case,) = bench_layer(BenchLayerSpec(**TINY, sparsities=(0.5,))).cases
    assert all("output 0 is wrong" in engine.excluded for engine in case.engines)
    assert case.comparisons == ()
    assert case.null.excluded is None


def test_a_missing_onnx_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(RequirementError, match=r"onnx is not installed.*fanin\[bench\]"):
        bench_layer(BenchLayerSpec(**TINY, sparsities=(0.5,)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_features": 0}, "in_features is 0"),
        ({"in_features": 3_000_000_000}, "in_features is 3000000000; it must be 1 to 2147483647"),
        ({"in_features": 1 << 30}, r"make a dense weight of [\d.]+ GB"),
        ({"seed": -1}, "seed is -1"),
        ({"batches": (1, 1)}, r"batches are \(1, 1\); give each once"),
        ({"sparsities": ()}, "sparsities are"),
        ({"sparsities": (0.5, 0.5)}, "sparsities are"),
        ({"sparsities": (1.0,)}, r"sparsity 1\.0 is not in"),
        ({"sparsities": (0.999,)}, "0 of 24 inputs"),
        ({"sparsities": (0.1,), "ablated": 0.5}, "43 of 24 inputs"),
        ({"ablated": 1.0}, "ablated is"),
        ({"batches": (0,)}, "batches are"),
        ({"threads": 0}, "threads is 0"),
        ({"engines": ("condensed",)}, "dense comes first"),
        ({"engines": ("dense", "magic")}, "there are dense, condensed"),
        ({"masks": ("random", "random")}, "masks are"),
        ({"masks": ("trained",)}, "masks are"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchLayerSpec(**{**TINY, "sparsities": (0.5,), **changes})
