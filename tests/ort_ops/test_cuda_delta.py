"""The CUDA kernel that streams weights with 8-bit steps, emulated on the host: see docs/cuda.md."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fanin.ort_ops import _cuda_emulation

from ._cuda_emulated import assert_close, random_call, run
from ._cuda_layers import TYPES, Layer

every_type = pytest.mark.parametrize("kind", TYPES)
FEW = {"multiprocessors": 2}


def random_layer(rng, values):
    """Columns near and more than 255 apart, rows of equal and of different lengths."""
    in_features = int(rng.choice([rng.integers(1, 40), rng.integers(1, 1500), 4000]))
    out_features = int(rng.choice([rng.integers(1, 12), rng.integers(1, 150)]))
    share = rng.choice([0.003, 0.02, 0.1, 1.0 if in_features < 4000 else 0.2])
    fan_in = int(rng.integers(1, max(2, int(in_features * share) + 1)))
    active = int(rng.integers(0, out_features + 1))
    padded = bool(rng.random() < 0.3)
    return Layer.random(rng, in_features, out_features, fan_in, active, values, padded=padded)


def random_case(rng, kind):
    layer = random_layer(rng, str(rng.choice(list(TYPES))))
    batch = int(rng.choice([1, 2, 3, 4, rng.integers(5, 12)]))
    return layer, *random_call(rng, layer, batch, kind, clusters=False)


def check_random_layers(seed, kind, count):
    """Compare with float64; returns the samples at a time that there were, and the most parts."""
    rng = np.random.default_rng([seed, list(TYPES).index(kind)])
    samples, parts = set(), 1
    for _ in range(count):
        layer, x, residual, clip, device = random_case(rng, kind)
        y, report = run("delta", layer, x, residual, *clip, **device)
        assert_close(y, *layer.expect(x, residual, *clip))
        samples.add(report["variant"])
        parts = max(parts, report["parts"])
    return samples, parts


@every_type
def test_equals_the_float64_reference_over_random_layers(kind):
    samples, parts = check_random_layers(0, kind, 34)
    assert samples == {1, 2, 4}
    assert parts > 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
@every_type
def test_equals_the_float64_reference_over_many_random_layers(kind, seed):
    samples, parts = check_random_layers(seed, kind, 180)
    assert samples == {1, 2, 4}
    assert parts > 16


def layer_of(gaps, values="bfloat16", rows=3):
    """Rows whose columns are that far apart, from column 3 on."""
    columns = np.cumsum([3, *gaps])
    rng = np.random.default_rng(sum(gaps))
    layer = Layer.random(
        rng, int(columns[-1]) + 2, rows + 1, len(columns), rows, values, padded=False
    )
    layer.indices[:] = columns
    return layer


@every_type
@pytest.mark.parametrize("gap", [254, 255, 256, 509, 510, 511, 1020, 5000])
def test_columns_far_apart(kind, gap):
    layer = layer_of([gap, 1, gap, 7], kind)
    layer.values[1, 1] = 0
    x = np.random.default_rng(gap).standard_normal((3, layer.in_features)).astype(TYPES[kind])
    y, report = run("delta", layer, x, multiprocessors=1)
    assert report["parts"] == 1
    assert_close(y, *layer.expect(x))


@every_type
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_reach_exactly_the_outputs_with_a_weight_there(kind, special):
    """Steps without a weight pass over every column here, at 3 + 255 and 3 + 510 among them."""
    layer = layer_of([600, 1, 255, 300, 2], kind)
    layer.values[0, 1] = layer.values[0, 3] = 0  # a stored zero is a weight
    columns = set(layer.indices[0].tolist())
    for column in range(0, layer.in_features, 1):
        if column not in columns and column not in {0, 4, 258, 513, 860, layer.in_features - 1}:
            continue
        x = np.ones((2, layer.in_features), TYPES[kind])
        x[1, column] = special
        y, _ = run("delta", layer, x, multiprocessors=1)
        want, _ = layer.expect(x)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
        finite = layer.expect(np.where(np.isfinite(x), x, 0).astype(x.dtype))
        there = np.isfinite(want)
        assert_close(y[there], finite[0][there], finite[1][there])
        assert np.array_equal(y[~there].astype(np.float64), want[~there], equal_nan=True)


@every_type
@pytest.mark.parametrize("device", [FEW, {"multiprocessors": 132}], ids=["few", "many"])
def test_a_sample_has_the_same_bits_in_every_batch(kind, device):
    rng = np.random.default_rng(2)
    layer = Layer.random(rng, 1100, 40, 110, 36, kind)
    x = rng.standard_normal((9, 1100)).astype(TYPES[kind])
    alone, _ = run("delta", layer, x[:1], **device)
    for batch in (2, 3, 4, 9):
        assert run("delta", layer, x[:batch], **device)[0][:1].tobytes() == alone.tobytes()
    less = run("delta", layer, x[:4], **device, shared_bytes=48 << 10)[0]
    assert less[:1].tobytes() == alone.tobytes()


def test_blocks_take_several_tiles_in_turn():
    rng = np.random.default_rng(3)
    layer = Layer.random(rng, 50, 2600, 3, 2500)
    x = rng.standard_normal((3, 50)).astype(np.float32)
    y, report = run("delta", layer, x, multiprocessors=1)
    assert report["turns"] == 3
    assert_close(y, *layer.expect(x))


def test_layers_without_stored_weights():
    rng = np.random.default_rng(4)
    layer = Layer.random(rng, 100, 21, 5, 0, "float16")
    x = rng.standard_normal((3, 100)).astype(np.float16)
    residual = rng.standard_normal((3, 21)).astype(np.float16)
    y, _ = run("delta", layer, x, residual, 0.0)
    want = np.maximum(layer.bias + residual.astype(np.float32), 0).astype(np.float16)
    assert np.array_equal(y, want)


@pytest.mark.parametrize(("values", "each"), [("bfloat16", 3), ("float32", 5)])
@pytest.mark.parametrize("fan_in", [205, 410, 819])
def test_a_weight_takes_little_more_than_its_value_and_a_byte(values, each, fan_in):
    layer = Layer.random(np.random.default_rng(5), 4096, 448, fan_in, 448, values)
    _, report = run("delta", layer, np.zeros((1, 4096), np.float32), multiprocessors=4)
    others = (2 * report["parts"] + 8) * 448 + 2048  # starts of chains, outputs, bias, alignment
    assert report["padding"] < 1.1
    assert report["packed_bytes"] < each * report["padding"] * layer.values.size + others


def test_the_cut_fills_the_threads_of_every_multiprocessor():
    layer = Layer.random(np.random.default_rng(5), 512, 14336 // 16, 51, 14336 // 16, "bfloat16")
    _, report = run("delta", layer, np.zeros((1, 512), TYPES["bfloat16"]), multiprocessors=8)
    rows = 14336 // 16 // 8
    assert report["grid"] == (8, 1)
    assert report["parts"] * rows <= 896
    assert report["warps"] == max(14, -(-report["parts"] * rows // 32))


def test_more_columns_than_shared_memory_holds_are_refused():
    layer = Layer.random(np.random.default_rng(0), 30_000, 4, 9, 4, "float32")
    x = np.zeros((1, 30_000), np.float32)
    with pytest.raises(ValueError, match=r"30000 columns of float32 are too many.*65536 bytes"):
        run("delta", layer, x, shared_bytes=65536)
    wide = replace(layer, in_features=65537)
    with pytest.raises(ValueError, match="65537 columns of float16 are too many"):
        run("delta", wide, np.zeros((1, 65537), np.float16))


LARGE = {
    "activations": "bfloat16",
    "in_features": 4096,
    "out_features": 4096,
    "weights": 4096 * 410,
    "values_fit": True,
    "unproven": True,
    "max_batch": 16,
}


def selected(**changes):
    rows = _cuda_emulation.select_kernels(**{**LARGE, **changes})
    return [(row["layout"], row["min_batch"], row["max_batch"]) for row in rows]


def test_the_choice_for_a_layer():
    assert selected(values_fit=False) == [("delta", 1, 4), ("stream", 5, 16)]
    assert selected(activations="float32") == [("delta", 1, 4), ("stream", 5, 16)]
    assert selected() == [("delta", 1, 4), ("expand", 5, 16)]
    assert selected(max_batch=3) == [("delta", 1, 3)]
    assert selected(unproven=False) == [("stream", 1, 16)]
    # 0.4 % of the weights, and a layer that is small.
    sparse = {"in_features": 10_000, "out_features": 14336, "weights": 14336 * 40}
    assert selected(**sparse) == [("stream", 1, 16)]
    assert selected(out_features=512, weights=512 * 410)[0] == ("stream", 1, 4)
    # Two samples of x fit into shared memory.
    narrow = selected(in_features=14336, weights=4096 * 1434, shared_bytes=101376)
    assert narrow[0] == ("delta", 1, 2)
    assert selected(in_features=70_000, weights=4096 * 7000)[0][0] == "stream"
