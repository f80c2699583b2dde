"""The CUDA kernel that expands tiles for tensor cores, emulated on the host: see docs/cuda.md."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fanin.ort_ops import _cuda_emulation

from ._cuda_backends import kernel_of
from ._cuda_emulated import assert_close, random_call, run
from ._cuda_layers import TYPES, Layer, bits, poisoned, tf32

HALVES = ["float16", "bfloat16"]
KINDS = [*HALVES, "float32"]  # float32 is computed in TF32
every_half = pytest.mark.parametrize("kind", HALVES)
every_kind = pytest.mark.parametrize("kind", KINDS)
TILES = [8, 16, 32, 64, 128]
NO_CLUSTERS = {"multiprocessors": 108, "shared_bytes": 166912, "cluster": 1}


def random_layer(rng, kind):
    """Few and many columns, rows and weights; multiples of 16 bytes half of the time."""
    in_features = int(
        rng.choice([rng.integers(1, 40), rng.integers(1, 1500), 8 * rng.integers(1, 180)])
    )
    out_features = int(rng.choice([rng.integers(1, 20), rng.integers(1, 150)]))
    share = rng.choice([0.02, 0.1, 0.2, 1.0])
    fan_in = int(rng.integers(1, max(2, int(in_features * share) + 1)))
    active = int(rng.integers(0, out_features + 1))
    padded = bool(rng.random() < 0.3)
    return Layer.random(rng, in_features, out_features, fan_in, active, kind, padded=padded)


def random_case(rng, kind):
    layer = random_layer(rng, kind)
    batch = int(rng.choice([rng.integers(1, 10), rng.integers(1, 150)]))
    return layer, *random_call(rng, layer, batch, kind)


def expect(layer, x, *epilogue):
    """In float64, and the bound: the emulation's sums are exact within a step, unless rounded."""
    return layer.expect(x, *epilogue, tensor_cores=x.dtype == np.float32)


def check_random_layers(seed, kind, count):
    """Compare with float64; returns the sorts of launches that there were."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    seen = {"variant": set(), "parts": set(), "cluster": set(), "stages": set(), "warps": set()}
    for _ in range(count):
        layer, x, residual, clip, device = random_case(rng, kind)
        y, report = run("expand", layer, x, residual, *clip, **device)
        assert_close(y, *expect(layer, x, residual, *clip))
        for name, values in seen.items():
            values.add(report[name])
    return seen


@every_kind
def test_equals_the_float64_reference_over_random_layers(kind):
    seen = check_random_layers(0, kind, 40)
    assert len(seen["variant"]) >= 4
    assert seen["parts"] >= {1, 2, 4}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
@every_kind
def test_equals_the_float64_reference_over_many_random_layers(kind, seed):
    assert check_random_layers(seed, kind, 300) == {
        "variant": set(TILES),
        "parts": {1, 2, 4, 8},
        "cluster": {1, 2, 4, 8},
        "stages": {2, 3, 4},
        "warps": {4, 8},
    }


@every_kind
@pytest.mark.parametrize("in_features", [63, 64, 65, 127, 128, 129, 136, 513])
def test_columns_around_a_chunk(kind, in_features):
    rng = np.random.default_rng(in_features)
    layer = Layer.random(rng, in_features, 33, 30, 33, kind)
    layer.indices[:, -1] = in_features - 1
    x = rng.standard_normal((9, in_features)).astype(TYPES[kind])
    y, _ = run("expand", layer, x)
    assert_close(y, *expect(layer, x))


@every_kind
@pytest.mark.parametrize("batch", [1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129])
def test_the_tile_is_the_smallest_that_holds_the_batch(kind, batch):
    rng = np.random.default_rng(batch)
    layer = Layer.random(rng, 100, 17, 10, 15, kind)
    x = rng.standard_normal((batch, 100)).astype(TYPES[kind])
    y, report = run("expand", layer, x)
    assert_close(y, *expect(layer, x))
    assert report["variant"] == next(tile for tile in [*TILES, 128] if tile >= min(batch, 128))


@every_kind
def test_tiles_with_more_weights_than_are_loaded_ahead(kind):
    rng = np.random.default_rng(1)
    for batch in (8, 70, 128):
        layer = Layer.random(rng, 300, 20, 300, 18, kind)
        x = rng.standard_normal((batch, 300)).astype(TYPES[kind])
        y, _ = run("expand", layer, x)
        assert_close(y, *expect(layer, x))


@every_kind
@pytest.mark.parametrize("device", [{}, NO_CLUSTERS], ids=["clusters", "no clusters"])
def test_a_sample_has_the_same_bits_in_every_batch(kind, device):
    rng = np.random.default_rng(2)
    layer = Layer.random(rng, 1100, 40, 110, 40, kind)
    x = rng.standard_normal((130, 1100)).astype(TYPES[kind])
    alone, report = run("expand", layer, x[:3], **device)
    assert report["parts"] == (4 if device else 8)
    for batch in (9, 20, 40, 64, 130):
        assert run("expand", layer, x[:batch], **device)[0][:3].tobytes() == alone.tobytes()


@every_kind
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_reach_exactly_the_outputs_with_a_weight_there(kind, special):
    rng = np.random.default_rng(3)
    layer = Layer.random(rng, 300, 50, 30, 45, kind, padded=True)
    layer.values[3, 2] = 0  # a stored zero is a weight
    for column in [0, 299, layer.indices[3, 2]]:
        x = rng.standard_normal((10, 300)).astype(TYPES[kind])
        x[1, column] = special
        y, _ = run("expand", layer, x)
        hit = layer.rows[(layer.indices == column).any(1)]
        assert np.array_equal(np.nonzero(~np.isfinite(y[1].astype(np.float32)))[0], hit)
        others = np.setdiff1d(np.arange(50), hit)
        want, allowed = expect(layer, np.where(np.isfinite(x), x, 0).astype(x.dtype))
        assert_close(y[1, others], want[1, others], allowed[1, others])
        assert_close(np.delete(y, 1, 0), np.delete(want, 1, 0), np.delete(allowed, 1, 0))


def test_layers_without_stored_weights():
    rng = np.random.default_rng(4)
    layer = Layer.random(rng, 100, 21, 5, 0, "float16")
    x = rng.standard_normal((6, 100)).astype(np.float16)
    residual = rng.standard_normal((6, 21)).astype(np.float16)
    y, _ = run("expand", layer, x, residual, 0.0)
    want = np.maximum(layer.bias + residual.astype(np.float32), 0).astype(np.float16)
    assert np.array_equal(y, want)


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("fan_in", [205, 410])
def test_a_weight_takes_little_more_than_four_bytes(fan_in, kind):
    layer = Layer.random(np.random.default_rng(5), 2048, 128, fan_in, 128, kind)
    _, report = run("expand", layer, np.zeros((8, 2048), TYPES[kind]))
    assert report["padding"] < (1.02 if kind == "bfloat16" else 1.04)
    assert report["packed_bytes"] < 4.2 * layer.values.size + 2048


# Not less than what the fullest bank of a random tile needs: 1.84, 1.50 and 1.26.
@pytest.mark.parametrize(("fan_in", "cycles"), [(102, 1.9), (205, 1.55), (410, 1.4)])
def test_words_that_are_stored_at_once_lie_in_different_banks(fan_in, cycles):
    layer = Layer.random(np.random.default_rng(8), 2048, 64, fan_in, 64, "bfloat16")
    _, report = run("expand", layer, np.zeros((8, 2048), TYPES["bfloat16"]))
    assert report["store_cycles"] < cycles


@every_half
def test_wider_values_are_taken_if_they_fit(kind):
    rng = np.random.default_rng(6)
    layer = Layer.random(rng, 90, 20, 9, 20, kind)
    x = rng.standard_normal((7, 90)).astype(TYPES[kind])
    wide = replace(layer, values=layer.values.astype(np.float32))
    assert run("expand", wide, x)[0].tobytes() == run("expand", layer, x)[0].tobytes()
    wide.values[0, 0] = 1 + 2.0**-20
    with pytest.raises(ValueError, match=f"does not round weights.*no {kind} numbers.*--precision"):
        run("expand", wide, x)


def test_an_older_gpu_is_refused_with_its_capability():
    layer = Layer.random(np.random.default_rng(0), 9, 4, 2, 4, "float16")
    with pytest.raises(ValueError, match=r"needs a GPU of compute capability 8\.0.*has 7\.5"):
        run("expand", layer, np.zeros((1, 9), np.float16), capability=75)
    assert not _cuda_emulation.expand_problem("bfloat16", values_fit=True, capability=80)
    assert not _cuda_emulation.expand_problem("float32", values_fit=True, capability=80)


def test_operands_in_float32_are_rounded_to_tf32():
    rng = np.random.default_rng(9)
    layer = Layer.random(rng, 400, 40, 60, 37, "float32")
    x = rng.standard_normal((11, 400)).astype(np.float32)
    y, _ = run("expand", layer, x)
    rounded = replace(layer, values=tf32(layer.values))
    assert_close(y, *rounded.expect(tf32(x)))  # the bound of float32 sums
    want, allowed = layer.expect(x)
    assert (np.abs(y - want) > allowed).mean() > 0.5
    # Numbers of 10 bits of mantissa are not changed at all.
    exact = replace(layer, values=np.sign(layer.values) * np.float32(1 + 2.0**-10))
    whole = rng.integers(-1024, 1025, x.shape).astype(np.float32)
    assert_close(run("expand", exact, whole)[0], *exact.expect(whole))


@pytest.mark.parametrize(("value", "rounded"), [(1 + 2.0**-11, 1 + 2.0**-10), (1 + 2.0**-12, 1.0)])
def test_ties_are_rounded_away_from_zero(value, rounded):
    layer = Layer.random(np.random.default_rng(0), 64, 16, 1, 16, "float32")
    layer.values[:] = np.where(np.arange(16) % 2, -value, value)[:, None]
    layer.bias[:] = 0
    y, _ = run("expand", layer, np.ones((8, 64), np.float32))
    assert np.array_equal(
        y, np.broadcast_to(np.where(np.arange(16) % 2, -rounded, rounded), y.shape)
    )


def test_x_beyond_tf32_is_multiplied_in_float32():
    """Its largest numbers round to infinity; a NaN may have no bit but those that TF32 lacks."""
    layer = Layer.random(np.random.default_rng(11), 100, 40, 10, 37, "float32")
    layer = replace(layer, values=layer.values * np.float32(2.0**-20))
    column = layer.indices[0, 0]
    x = np.random.default_rng(12).standard_normal((5, 100)).astype(np.float32)
    x[1, column] = np.finfo(np.float32).max
    x.view(np.uint32)[3, column] = 0x7F800001
    y, _ = run("expand", layer, x)
    hit = layer.rows[(layer.indices == column).any(1)]
    assert np.array_equal(np.nonzero(np.isnan(y))[1], hit)
    assert np.isnan(y[3, hit]).all()
    want, allowed = expect(layer, np.nan_to_num(x, nan=0.0))
    finite = ~np.isnan(y)
    assert_close(y[finite], want[finite], allowed[finite])


def test_weights_beyond_tf32_are_refused():
    layer = Layer.random(np.random.default_rng(0), 9, 4, 2, 4, "float32")
    layer.values[1, 1] = np.finfo(np.float32).max
    with pytest.raises(ValueError, match=r"rounds float32 to TF32.*beyond its largest number"):
        run("expand", layer, np.zeros((1, 9), np.float32))
    layer.values[1, 1] = np.inf  # which is a TF32 number
    assert np.isnan(run("expand", layer, np.zeros((1, 9), np.float32))[0]).any()


LARGE = {
    "activations": "bfloat16",
    "in_features": 4096,
    "out_features": 4096,
    "weights": 4096 * 410,
    "values_fit": True,
    "unproven": True,
}


def selected(**changes):
    rows = _cuda_emulation.select_kernels(**{**LARGE, **changes})
    return [(row["layout"], row["min_batch"], row["max_batch"]) for row in rows]


def test_the_choice_for_a_layer():
    gathered = [("stream", 1, 16), ("panel", 17, None)]
    without = [("delta", 1, 4), ("stream", 5, 16), ("panel", 17, None)]
    assert selected() == [("delta", 1, 4), ("expand", 5, 128), ("panel", 129, None)]
    assert selected(unproven=False) == gathered
    assert selected(values_fit=False) == without
    assert selected(capability=75) == without
    assert selected(capability=120) == selected()
    assert selected(activations="float32") == without
    assert selected(activations="float32", tf32=True) == selected()
    assert selected(activations="float32", tf32=True, unproven=False) == gathered
    # Its tiles have half the columns.
    small = {"in_features": 1024, "out_features": 160, "weights": 1024 * 16}
    assert all(layout != "expand" for layout, *_ in selected(**small))
    rounded = selected(**small, activations="float32", tf32=True)
    assert ("expand", 5, 128) in rounded
    assert selected(weights=4096 * 41) == gathered  # 1 %
    assert selected(weights=4096 * 4000) == without
    assert selected(in_features=256, out_features=256, weights=256 * 26) == gathered
    assert selected(min_batch=8, max_batch=64) == [("expand", 8, 64)]
    assert selected(min_batch=4, max_batch=5) == [("delta", 4, 4), ("expand", 5, 5)]
    # Where few samples fit into shared memory, gathering ends before.
    narrow = selected(in_features=60_000, weights=4096 * 6000, shared_bytes=166912)
    assert narrow == [
        ("delta", 1, 1),
        ("panel", 2, 4),
        ("expand", 5, 128),
        ("panel", 129, None),
    ]


def test_a_session_without_tf32_keeps_the_gather_kernels(monkeypatch):
    monkeypatch.setenv("FANIN_CUDA_UNPROVEN", "on")
    layer = Layer.random(np.random.default_rng(7), 64, 16, 8, 16)
    x = np.ones((8, 64), np.float32)
    y = poisoned(8, 16, "float32")
    arrays = {**layer.arrays(), "in_features": 64, "x": x, "y": y, "residual": None}
    for allowed, layout in ((True, "expand"), (False, "stream")):
        report = _cuda_emulation.run(
            **arrays, activations="float32", multiprocessors=1, tf32=allowed
        )
        assert report["kernel"] == kernel_of(layout, "float32")


def test_the_environment_turns_it_on(monkeypatch):
    layer = Layer.random(np.random.default_rng(7), 128, 16, 16, 16, "bfloat16")
    x = np.zeros((8, 128), TYPES["bfloat16"])
    y = poisoned(8, 16, "bfloat16")
    arrays = {**layer.arrays(), "in_features": 128, "x": bits(x), "y": bits(y)}

    def kernel():
        return _cuda_emulation.run(
            **arrays, activations="bfloat16", residual=None, multiprocessors=1
        )["kernel"]

    for value, layout in (("", "stream"), ("off", "stream"), ("on", "expand")):
        monkeypatch.setenv("FANIN_CUDA_UNPROVEN", value)
        assert kernel() == kernel_of(layout, "bfloat16")
    monkeypatch.setenv("FANIN_CUDA_UNPROVEN", "yes")
    with pytest.raises(
        ValueError, match="FANIN_CUDA_UNPROVEN 'yes' is unknown, it must be on or off"
    ):
        kernel()
