"""What panels of int8 layers have of their own: segments, and their place in the table."""

import numpy as np
import pytest

from fanin.ort_ops import _native

KERNELS = [row.name for row in _native.quantized_kernel_table() if row.supported]


def layer(rng, in_features, out_features, fan_in, values=None):
    columns = np.argsort(rng.random((out_features, in_features)), 1)[:, :fan_in]
    if values is None:
        values = rng.integers(-128, 128, columns.shape)
    return {
        "values": np.broadcast_to(values, columns.shape).astype(np.int8),
        "indices": np.sort(columns, 1).astype(np.int32),
        "rows": np.arange(out_features, dtype=np.int32),
        "in_features": in_features,
        "out_features": out_features,
    }


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("value", [-128, 127])
def test_the_largest_products_of_several_segments_add_up_exactly(kernel, value):
    """255 * -128 leaves 2^24 with 514 columns, and 16 bits with two."""
    rng = np.random.default_rng(1)
    for in_features in (2, 512, 514, 1030, 2051):
        weight = layer(rng, in_features, 9, in_features, value)
        packed = _native.PackedQuantizedGemm(kernel=kernel, **weight)
        for batch in (1, 20):
            x = np.full((batch, in_features), 255, np.uint8)
            x[0, 0] = 254
            expected = np.full((batch, 9), 255 * value * in_features)
            expected[0] -= value
            y = packed.run(x, multipliers=np.ones(9, np.float32), y_type="float32")
            # Rounded once, from int32.
            np.testing.assert_array_equal(y, expected.astype(np.float32))


@pytest.mark.parametrize("isa", [isa for isa in _native.supported_isas() if isa != "scalar"])
def test_every_batch_has_a_kernel_of_the_instruction_set_or_one_that_it_includes(isa):
    weight = layer(np.random.default_rng(4), 640, 100, 64)
    for batch in (1, 2, 16, 17, 300):
        packed = _native.PackedQuantizedGemm(isa=isa, min_batch=batch, max_batch=batch, **weight)
        name = packed.kernel(batch)
        row = next(row for row in _native.quantized_kernel_table() if row.name == name)
        assert row.supported
        assert name != "i8-gemm-rows-scalar"
        assert row.min_batch <= batch <= (row.max_batch or batch)
