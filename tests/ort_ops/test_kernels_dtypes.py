"""16-bit weights and activations give the sums of float32 kernels on the widened numbers."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from fanin.ort_ops import _native

from .test_kernels import EPS32, make_layer, unaligned, uniform_layer

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ROWS = [row for row in _native.kernel_table() if row.supported]
HALF_ROWS = [row for row in ROWS if row.weights != "float32" and row.compute == "float32"]
FLOAT_ROWS = [row for row in ROWS if row.weights == "float32"]

every_half_kernel = pytest.mark.parametrize("row", HALF_ROWS, ids=lambda row: row.name)
every_float_kernel = pytest.mark.parametrize("row", FLOAT_ROWS, ids=lambda row: row.name)
every_type = pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)


def rounded(layer, kind):
    """The layer with 16-bit values, and the same numbers as float32."""
    half = replace(layer, values=layer.values.astype(kind))
    return half, replace(layer, values=half.values.astype(np.float32))


def twins(row, layer):
    """A kernel of 16-bit weights, and the float32 kernel of the same layout."""
    half, wide = rounded(layer, TYPES[row.weights])
    twin = f"f32-gemm-{row.name.partition('-gemm-')[2]}"
    return half.pack(kernel=row.name), wide.pack(kernel=twin), wide


def assert_same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.tobytes() == b.tobytes()


@every_half_kernel
def test_equals_the_float32_kernel_over_all_tails(row):
    rng = np.random.default_rng(1)
    for fan_in in range(1, 41):
        in_features = int(rng.integers(fan_in, 8 * fan_in + 1))
        out_features = int(rng.integers(1, 150))
        active = int(rng.integers(0, out_features + 1))
        gemm, twin, _ = twins(
            row, make_layer(rng, in_features, out_features, fan_in, active=active)
        )
        for batch in (1, 2, 3, 5, 31 + fan_in):
            x = unaligned(rng.standard_normal((batch, in_features)).astype(np.float32))
            residual = rng.standard_normal((batch, out_features)).astype(np.float32)
            end = {"residual": residual, "clip_min": -0.5, "clip_max": 1.5}
            assert_same_bits(gemm.run(x, **end), twin.run(x, **end))


@every_half_kernel
def test_equals_the_float32_kernel_with_entries_outside_the_steps(row):
    rng = np.random.default_rng(2)
    gemm, twin, wide = twins(row, uniform_layer(rng, 3072, 200, 307))
    info, twin_info = gemm.info()[0], twin.info()[0]
    assert info.remainder == twin_info.remainder > 0
    # Two of the five bytes of a lane are saved.
    assert twin_info.bytes - info.bytes == pytest.approx(2 * 200 * 307 * info.padding)
    for batch in (1, 3, 9):
        x = rng.standard_normal((batch, 3072)).astype(np.float32)
        y = gemm.run(x)
        assert_same_bits(y, twin.run(x))
        want, magnitude = wide.sums(x)
        assert (np.abs(y - want) <= 309 * EPS32 * magnitude).all()


@every_half_kernel
def test_more_inputs_than_16_bits_address(row):
    rng = np.random.default_rng(13)
    layer = make_layer(rng, 300_000, 97, 500)
    layer.indices[::3, -1] = 299_999
    gemm, twin, _ = twins(row, layer)
    x = rng.standard_normal((3, 300_000)).astype(np.float32)
    assert_same_bits(gemm.run(x), twin.run(x))


@every_half_kernel
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_reach_the_same_outputs_as_in_float32(row, special):
    rng = np.random.default_rng(3)
    layer = make_layer(rng, 400, 150, 13, active=140)
    layer.values[::5, -2:] = 0
    layer.indices[::5, -1] = layer.indices[::5, -2]  # padding after a stored zero
    gemm, twin, _ = twins(row, layer)
    for column in [0, 31, 62, *layer.indices[::35, -1], 399]:
        x = rng.standard_normal((2, 400)).astype(np.float32)
        x[1, column] = special
        y = gemm.run(x)
        entries = np.diff(layer.indices, prepend=-1) > 0
        stored = np.nonzero(((layer.indices == column) & entries).any(1))[0]
        assert np.array_equal(np.nonzero(~np.isfinite(y[1]))[0], layer.rows[stored])
        assert np.array_equal(y, twin.run(x), equal_nan=True)


@every_half_kernel
def test_threads_do_not_change_the_result(row):
    rng = np.random.default_rng(4)
    gemm, _, _ = twins(row, make_layer(rng, 1500, 1100, 150, active=1000))
    for batch in (1, 3):
        x = rng.standard_normal((batch, 1500)).astype(np.float16)
        assert_same_bits(gemm.run(x, threads=3), gemm.run(x))


@every_type
@every_float_kernel
def test_kernels_of_float32_weights_widen_16_bit_values(row, kind):
    rng = np.random.default_rng(5)
    half, wide = rounded(make_layer(rng, 203, 77, 21, active=70), kind)
    x = rng.standard_normal((37, 203)).astype(np.float32)
    assert_same_bits(half.pack(kernel=row.name).run(x), wide.pack(kernel=row.name).run(x))
    plain = [_native.run_plain(**layer.arrays(), x=x) for layer in (half, wide)]
    assert_same_bits(*plain)


@every_float_kernel
def test_float16_activations_are_widened_and_the_result_rounded_once(row):
    rng = np.random.default_rng(6)
    layer = make_layer(rng, 203, 77, 21, active=70)
    gemm = layer.pack(kernel=row.name)
    for batch in (0, 1, 2, 7, 70):
        x = unaligned(rng.standard_normal((batch, 203)).astype(np.float16))
        residual = rng.standard_normal((batch, 77)).astype(np.float16)
        clip = {"clip_min": -0.5, "clip_max": 1.5}
        wide = gemm.run(x.astype(np.float32), residual=residual.astype(np.float32), **clip)
        assert_same_bits(gemm.run(x, residual=residual, **clip), wide.astype(np.float16))


def test_a_batch_of_several_slices_is_correct_for_any_number_of_threads():
    rng = np.random.default_rng(7)
    layer = make_layer(rng, 20_000, 33, 5)
    gemm = layer.pack()
    x = rng.standard_normal((250, 20_000)).astype(np.float16)
    residual = rng.standard_normal((250, 33)).astype(np.float16)
    y = gemm.run(x, residual=residual)
    want, magnitude = layer.sums(x)
    bound = 2.0**-11 * (np.abs(want) + np.abs(residual)) + 10 * EPS32 * (magnitude + 4)
    assert (np.abs(y - (want + residual)) <= bound).all()
    assert_same_bits(gemm.run(x, residual=residual, threads=4), y)


@every_type
def test_every_16_bit_value_is_widened_exactly(kind):
    values = np.arange(1 << 16, dtype=np.uint16).view(kind)[:, None]
    count = len(values)
    y = _native.run_plain(
        values=values,
        indices=np.zeros((count, 1), np.int32),
        rows=np.arange(count, dtype=np.int32),
        bias=np.zeros(count, np.float32),
        in_features=1,
        out_features=count,
        x=np.ones((1, 1), np.float32),
    )
    assert np.array_equal(y[0], values[:, 0].astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("width", [7, 4096], ids=["scalar", "vector"])
def test_every_float16_passes_through_unchanged(width):
    x = np.arange(1 << 16, dtype=np.uint16)
    x = np.pad(x, (0, -len(x) % width)).view(np.float16).reshape(-1, width)
    diagonal = np.arange(width, dtype=np.int32)
    gemm = _native.PackedGemm(
        values=np.ones((width, 1), np.float32),
        indices=diagonal[:, None],
        rows=diagonal,
        bias=np.full(width, -0.0, np.float32),
        in_features=width,
        out_features=width,
        isa="scalar",
    )
    for sample in x:
        y = gemm.run(sample[None])
        assert np.array_equal(y[0], sample, equal_nan=True)


@pytest.mark.parametrize("width", [7, 4096], ids=["scalar", "vector"])
def test_results_are_rounded_to_the_nearest_float16_and_ties_to_even(width):
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[1:] + halves[:-1]) / 2
    near = [np.nextafter(ties, np.float32(to), dtype=np.float32) for to in (0, np.inf)]
    edges = np.array([65519.996, 65520, 65536, 1e30, np.inf, 1e-30, 2.0**-25], np.float32)
    wanted = np.concatenate([ties, *near, edges])
    wanted = np.concatenate([wanted, -wanted])
    if width == 7:
        wanted = wanted[:: len(wanted) // 20_000]
    wanted = np.pad(wanted, (0, -len(wanted) % width)).reshape(-1, width)
    diagonal = np.arange(width, dtype=np.int32)
    for bias in wanted:
        y = _native.run_plain(
            values=np.zeros((0, 0), np.float32),
            indices=np.zeros((0, 0), np.int32),
            rows=diagonal[:0],
            bias=bias,
            in_features=1,
            out_features=width,
            x=np.zeros((1, 1), np.float16),
        )
        with np.errstate(over="ignore"):
            assert_same_bits(y[0], bias.astype(np.float16))


@every_type
@pytest.mark.parametrize("isa", _native.supported_isas())
def test_small_batches_read_16_bit_weights_and_others_widened_ones(kind, isa):
    rng = np.random.default_rng(8)
    half, wide = rounded(make_layer(rng, 256, 64, 32), kind)
    infos = half.pack(isa=isa).info()
    weights = {row.name: row.weights for row in ROWS}
    stored = [weights[info.kernel] for info in infos]
    assert stored == (["float32"] if isa == "scalar" else [np.dtype(kind).name, "float32"])
    for batch in (1, 2, 5, 33):
        x = rng.standard_normal((batch, 256)).astype(np.float32)
        want, magnitude = wide.sums(x)
        error = np.abs(half.pack(isa=isa).run(x) - want)
        assert (error <= 34 * EPS32 * magnitude).all()


@every_type
def test_padding_must_hold_plus_zero(kind):
    for padding in (-0.0, 2.0**-24):
        layer = make_layer(np.random.default_rng(9), 9, 2, 3)
        layer.indices[1, 2] = layer.indices[1, 1]
        layer.values[1, 2] = padding
        with pytest.raises(ValueError, match=r"indices\[1, 2\] repeats column"):
            rounded(layer, kind)[0].pack()


@pytest.mark.parametrize("kind", [np.float64, np.uint16, np.int8, ml_dtypes.float8_e4m3fn])
def test_other_types_of_values_are_refused_by_name(kind):
    layer = make_layer(np.random.default_rng(10), 9, 2, 3)
    with pytest.raises(ValueError, match=f"values is {np.dtype(kind).name}, it must be float32"):
        replace(layer, values=layer.values.astype(kind)).pack()


def test_other_types_of_activations_are_refused():
    layer = make_layer(np.random.default_rng(11), 9, 2, 3)
    gemm = layer.pack()
    with pytest.raises(ValueError, match="x is bfloat16, it must be float32 or float16"):
        gemm.run(np.ones((1, 9), ml_dtypes.bfloat16))
    with pytest.raises(ValueError, match="residual is float32, it must be float16"):
        gemm.run(np.ones((1, 9), np.float16), residual=np.ones((1, 2), np.float32))
    with pytest.raises(ValueError, match="residual is float16, it must be float32"):
        gemm.run(np.ones((1, 9), np.float32), residual=np.ones((1, 2), np.float16))


@every_half_kernel
def test_a_kernel_of_16_bit_weights_refuses_other_values(row):
    layer = make_layer(np.random.default_rng(12), 9, 2, 3)
    with pytest.raises(ValueError, match=f"takes {row.weights} values, the layer has float32"):
        layer.pack(kernel=row.name)
