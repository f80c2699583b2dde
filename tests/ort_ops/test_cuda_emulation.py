"""The CUDA thread programs, emulated on the host: results and memory accesses.

In the emulation, a run fails on accesses out of bounds, races in shared memory, barriers that not
every thread reaches, and outputs that are written twice or never.
"""

from __future__ import annotations

import numpy as np
import pytest

from ._cuda_emulated import SHARED_BYTES, assert_close, random_call, run
from ._cuda_layers import TYPES, Layer

LAYOUTS = ["stream", "panel"]
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_type = pytest.mark.parametrize("kind", TYPES)

SHAPES_PER_CASE = 340


def random_case(rng, kind):
    in_features = int(
        rng.choice([rng.integers(1, 40), rng.integers(1, 300), rng.integers(1, 1500)])
    )
    out_features = int(rng.choice([rng.integers(1, 12), rng.integers(1, 90)]))
    fan_in = int(rng.integers(1, max(2, int(in_features * rng.choice([0.02, 0.2, 1.0])) + 1)))
    active = int(rng.integers(0, out_features + 1))
    values = str(rng.choice(list(TYPES)))
    layer = Layer.random(
        rng, in_features, out_features, fan_in, active, values, padded=rng.random() < 0.3
    )
    batch = int(rng.choice([rng.integers(1, 10), rng.integers(1, 80)]))
    return layer, *random_call(rng, layer, batch, kind, unaligned_share=0.3)


@every_layout
@every_type
def test_equals_the_float64_reference_over_random_shapes(layout, kind):
    rng = np.random.default_rng([LAYOUTS.index(layout), list(TYPES).index(kind)])
    variants = set()
    for _ in range(SHAPES_PER_CASE):
        layer, x, residual, clip, device = random_case(rng, kind)
        y, report = run(layout, layer, x, residual, *clip, **device)
        assert_close(y, *layer.expect(x, residual, *clip))
        variants.add(report["variant"])
    assert len(variants) >= {"stream": 4, "panel": 2}[layout]


@every_layout
def test_every_fan_in_and_batch_around_the_vectors(layout):
    rng = np.random.default_rng(7)
    for fan_in in range(1, 41):
        in_features = fan_in + int(rng.integers(0, 300))
        layer = Layer.random(rng, in_features, 9, fan_in, 7)
        x = rng.standard_normal((fan_in, in_features)).astype(np.float32)
        y, _ = run(layout, layer, x)
        assert_close(y, *layer.expect(x))


@every_layout
@every_type
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_nan_and_inf_reach_exactly_the_outputs_with_a_weight_there(layout, kind, special):
    rng = np.random.default_rng(3)
    layer = Layer.random(rng, 700, 50, 30, 45, padded=True)
    for column in [0, 255, 699, *layer.indices[::15, -1]]:
        x = rng.standard_normal((3, 700)).astype(TYPES[kind])
        x[1, column] = special
        y, _ = run(layout, layer, x, shared_bytes=65536)
        hit = layer.rows[(layer.indices == column).any(1)]
        assert np.array_equal(np.nonzero(~np.isfinite(y[1].astype(np.float32)))[0], hit)
        assert np.isfinite(y[[0, 2]].astype(np.float32)).all()


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@every_layout
def test_rows_longer_than_shared_memory_and_16_bit_columns(layout, kind):
    rng = np.random.default_rng(4)
    for in_features in (65536, 65537, 150_000):
        layer = Layer.random(rng, in_features, 10, 900, 8)
        layer.indices[0, -1] = in_features - 1
        x = rng.standard_normal((2, in_features)).astype(TYPES[kind])
        y, report = run(layout, layer, x, shared_bytes=101376)
        assert_close(y, *layer.expect(x))
        if layout == "stream":
            assert report["variant"] == 0


@every_layout
def test_rows_shared_by_warps(layout):
    rng = np.random.default_rng(5)
    layer = Layer.random(rng, 3072, 40, 1200, 37)
    x = rng.standard_normal((5, 3072)).astype(np.float32)
    y, _ = run(layout, layer, x, multiprocessors=132)
    assert_close(y, *layer.expect(x))


@every_layout
def test_weights_concentrated_in_a_few_columns(layout):
    # The schedule of the panel must take them before their chunk leaves the ring.
    rng = np.random.default_rng(6)
    layer = Layer.random(rng, 2000, 33, 60, 30)
    for i in range(30):
        start = int(rng.integers(0, 1900))
        layer.indices[i] = np.sort(start + rng.choice(100, 60, replace=False))
    x = rng.standard_normal((40, 2000)).astype(np.float32)
    for shared_bytes in SHARED_BYTES:
        y, _ = run(layout, layer, x, shared_bytes=shared_bytes)
        assert_close(y, *layer.expect(x))


@every_layout
def test_layers_without_stored_weights(layout):
    rng = np.random.default_rng(8)
    layer = Layer.random(rng, 100, 21, 5, 0)
    x = rng.standard_normal((3, 100)).astype(np.float32)
    residual = rng.standard_normal((3, 21)).astype(np.float32)
    y, _ = run(layout, layer, x, residual, 0.0)
    assert np.array_equal(y, np.maximum(layer.bias + residual, 0))


def test_uniform_layers_are_packed_with_little_padding():
    rng = np.random.default_rng(9)
    layer = Layer.random(rng, 3072, 64, 307, 64)
    x = rng.standard_normal((16, 3072)).astype(np.float32)
    _, stream = run("stream", layer, x)
    _, panel = run("panel", layer, x)
    assert stream["padding"] < 1.02
    assert panel["padding"] < 1.1


def test_blocks_of_the_benchmarked_layer_fill_the_device_once():
    rng = np.random.default_rng(10)
    layer = Layer.random(rng, 3072, 768, 8, 768)
    x = rng.standard_normal((1, 3072)).astype(np.float32)
    _, report = run("stream", layer, x)
    assert 66 < report["grid"][0] <= 132 * 8


@every_layout
@pytest.mark.parametrize(
    "device", [{"multiprocessors": 0}, {"cluster": 0}, {"cluster": 9}, {"shared_bytes": 0}], ids=str
)
def test_a_device_with_invalid_resources_is_refused(layout, device):
    layer = Layer.random(np.random.default_rng(0), 9, 4, 2, 4)
    with pytest.raises(ValueError, match="a device has multiprocessors, clusters of 1 to 8 blocks"):
        run(layout, layer, np.zeros((1, 9), np.float32), **device)


@pytest.mark.parametrize("layout", ["panel", "expand"])
@pytest.mark.parametrize("capability", [80, 89, 90, 120])
def test_code_for_an_older_gpu_uses_no_clusters(layout, capability):
    """Nor on a later device that has them, for which the driver has translated the code."""
    rng = np.random.default_rng(15)
    layer = Layer.random(rng, 1500, 20, 60, 18, "float16")
    x = rng.standard_normal((3, 1500)).astype(np.float16)
    y, report = run(layout, layer, x, cluster=8, capability=capability)
    assert (report["cluster"] > 1) == (capability >= 90)
    assert_close(y, *layer.expect(x, tensor_cores=layout == "expand"))
