"""Kernels of int8 layers without byte permutes: panels of quads or floats, windows of units."""

import numpy as np
import pytest

from fanin.ort_ops import _native

ROWS = [
    pytest.param(
        row.name,
        marks=[] if row.supported else pytest.mark.skip(f"needs {row.isa}, which this CPU lacks"),
    )
    for row in _native.quantized_kernel_table()
    if row.name != "i8-gemm-rows-scalar"
]


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


def dense(weight):
    matrix = np.zeros((weight["out_features"], weight["in_features"]), np.int64)
    np.put_along_axis(matrix, weight["indices"].astype(np.int64), weight["values"], 1)
    return matrix


def sums(kernel, weight, x, zero_point, threads=1):
    """The integer sums: as float32 with a multiplier of 1 / 4096, which is exact below 2^24."""
    packed = _native.PackedQuantizedGemm(kernel=kernel, **weight)
    multipliers = np.full(weight["out_features"], 2.0**-12, np.float32)
    y = packed.run(
        x, multipliers=multipliers, y_type="float32", x_zero_point=zero_point, threads=threads
    )
    return y * 2.0**12


@pytest.mark.parametrize("kernel", ROWS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_sums_of_all_tails_are_those_of_integers(kernel, dtype):
    rng = np.random.default_rng(0)
    low = np.iinfo(dtype).min
    for in_features in (1, 3, 4, 5, 31, 33, 67, 130, 257):
        for out_features in (1, 8, 17, 65):
            weight = layer(rng, in_features, out_features, rng.integers(1, in_features + 1))
            batch = int(rng.integers(1, 70))
            x = rng.integers(low, low + 256, (batch, in_features)).astype(dtype)
            zero_point = int(rng.choice([low, low + 255, low + 100]))
            expected = (x.astype(np.int64) - zero_point) @ dense(weight).T
            np.testing.assert_array_equal(sums(kernel, weight, x, zero_point), expected)


@pytest.mark.parametrize("kernel", ROWS)
@pytest.mark.parametrize("value", [-128, 127])
def test_the_largest_products_of_several_segments_add_up_exactly(kernel, value):
    """255 * -128 for each of 513 columns alone leaves 2^24, and 16 bits with two."""
    rng = np.random.default_rng(1)
    for in_features in (2, 512, 513, 1030, 2051):
        weight = layer(rng, in_features, 9, in_features, value)
        for batch in (1, 20):
            x = np.full((batch, in_features), 255, np.uint8)
            # Rounded to float32 at the end, as the expected sum is.
            expected = np.float32(255 * value * in_features)
            assert (sums(kernel, weight, x, 0) == expected).all()


@pytest.mark.parametrize("kernel", ROWS)
def test_threads_do_not_change_a_bit(kernel):
    rng = np.random.default_rng(2)
    weight = layer(rng, 900, 700, 90)
    for batch in (1, 5, 70):
        x = rng.integers(0, 256, (batch, 900)).astype(np.uint8)
        expected = sums(kernel, weight, x, 128)
        for threads in (2, 7):
            np.testing.assert_array_equal(sums(kernel, weight, x, 128, threads), expected)


@pytest.mark.parametrize("kernel", ROWS)
def test_a_packed_layer_holds_its_own_weights_only(kernel):
    rng = np.random.default_rng(3)
    weight = layer(rng, 130, 20, 12)
    weight["values"][weight["values"] == 0] = 1
    packed = _native.PackedQuantizedGemm(kernel=kernel, **weight)
    parts = ("values", "indices", "rows")
    assert packed.holds(**{part: weight[part] for part in parts})
    other = {part: weight[part].copy() for part in parts}
    other["values"][13, 5] += 1
    assert not packed.holds(**other)
    moved = {part: weight[part].copy() for part in parts}
    # Another column of the same row, in order.
    row = moved["indices"][7]
    free = next(c for c in range(130) if c not in row)
    row[np.argmin(abs(row - free))] = free
    row.sort()
    assert not packed.holds(**moved)


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
