"""The CUDA kernels on a GPU. Skipped without a CUDA build or a device."""

from __future__ import annotations

import numpy as np
import pytest

from ._cuda_layers import TYPES, Layer, bits, poisoned

_cuda = pytest.importorskip("fanin.ort_ops._cuda", reason="built without CUDA")
if _cuda.device_count() == 0:
    pytest.skip("no CUDA device", allow_module_level=True)

TABLE = _cuda.kernel_table()
every_kernel = pytest.mark.parametrize("kernel", TABLE, ids=lambda row: row["name"])


def pack(layer, activations, **options):
    return _cuda.PackedGemm(
        **layer.arrays(), in_features=layer.in_features, activations=activations, **options
    )


@every_kernel
def test_equals_the_float64_reference_over_random_shapes(kernel):
    rng = np.random.default_rng(1)
    kind = kernel["activations"]
    for _ in range(60):
        in_features, out_features = (int(n) for n in rng.integers(1, 2500, 2))
        fan_in = int(rng.integers(1, in_features + 1)) // int(rng.choice([1, 10, 50])) + 1
        fan_in = min(fan_in, in_features)
        active = int(rng.integers(0, out_features + 1))
        values = str(rng.choice(list(TYPES)))
        layer = Layer.random(rng, in_features, out_features, fan_in, active, values, padded=True)
        gemm = pack(layer, kind, kernel=kernel["name"])
        batch = int(rng.integers(1, 70))
        x = rng.standard_normal((batch, in_features)).astype(TYPES[kind])
        residual = rng.standard_normal((batch, out_features)).astype(TYPES[kind])
        y = poisoned(batch, out_features, kind)
        shift = int(rng.choice([0, 4, 16]))
        gemm.run_arrays(
            bits(x), y=bits(y), residual=bits(residual), clip_min=-1.0, clip_max=2.0, shift=shift
        )
        want, allowed = layer.expect(x, residual, -1.0, 2.0)
        assert (np.abs(y.astype(np.float64) - want) <= allowed).all()


def test_equal_layers_share_the_device_memory():
    layer = Layer.random(np.random.default_rng(2), 300, 200, 30, 190)
    first = pack(layer, "float32")
    assert [info["shared"] for info in first.info()] == [False, False]
    second = pack(layer, "float32")
    assert [info["shared"] for info in second.info()] == [True, True]
    del first, second
    assert not pack(layer, "float32").info()[0]["shared"]
