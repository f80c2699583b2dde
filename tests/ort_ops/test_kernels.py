"""Every kernel of the dispatch table, compared with a float64 reference."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.ort_ops import _native

# test_kernels_dtypes.py compares those of 16-bit weights with these, bit for bit.
KERNELS = [row.name for row in _native.kernel_table() if row.supported and row.weights == "float32"]
EPS32 = float(np.finfo(np.float32).eps)

every_kernel = pytest.mark.parametrize("kernel", KERNELS)


@dataclass(frozen=True)
class Layer:
    values: np.ndarray
    indices: np.ndarray
    rows: np.ndarray
    bias: np.ndarray
    in_features: int
    out_features: int

    def arrays(self):
        return {
            "values": self.values,
            "indices": self.indices,
            "rows": self.rows,
            "bias": self.bias,
            "in_features": self.in_features,
            "out_features": self.out_features,
        }

    def pack(self, **options):
        return _native.PackedGemm(**self.arrays(), **options)

    def sums(self, x):
        """Sum and sum of magnitudes per output in float64, both [batch, out_features]."""
        total = np.tile(self.bias.astype(np.float64), (len(x), 1))
        magnitude = np.abs(total)
        for b, sample in enumerate(x.astype(np.float64)):
            products = self.values * sample[self.indices]
            total[b, self.rows] += products.sum(1)
            magnitude[b, self.rows] += np.abs(products).sum(1)
        return total, magnitude


def make_layer(rng, in_features, out_features, fan_in, *, active=None, index_type=np.int32):
    """One random column from each of `fan_in` strata: distinct, and cheap to draw."""
    active = out_features if active is None else active
    edges = np.arange(fan_in + 1, dtype=np.int64) * in_features // fan_in
    width = np.diff(edges)
    columns = edges[:-1] + (rng.random((active, fan_in)) * width).astype(np.int64)
    rows = np.sort(rng.permutation(out_features)[:active]).astype(np.int32)
    return Layer(
        rng.standard_normal((active, fan_in)).astype(np.float32),
        columns.astype(index_type),
        rows,
        rng.standard_normal(out_features).astype(np.float32),
        in_features,
        out_features,
    )


def uniform_layer(rng, in_features, out_features, fan_in):
    columns = np.sort(np.argsort(rng.random((out_features, in_features)), 1)[:, :fan_in], 1)
    return Layer(
        rng.standard_normal((out_features, fan_in)).astype(np.float32),
        columns.astype(np.int32),
        np.arange(out_features, dtype=np.int32),
        rng.standard_normal(out_features).astype(np.float32),
        in_features,
        out_features,
    )


def unaligned(array):
    """A C-contiguous copy whose data starts 4 bytes past a cache line."""
    raw = np.zeros(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + 4
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def assert_close(layer, x, y, residual=None, clip=(-np.inf, np.inf)):
    want, magnitude = layer.sums(x)
    if residual is not None:
        want = want + residual
        magnitude = magnitude + np.abs(residual)
    bound = (layer.values.shape[1] + 2) * EPS32 * magnitude
    assert y.dtype == np.float32
    assert y.shape == want.shape
    excess = np.abs(y - np.clip(want, *clip)) - bound
    assert excess.max(initial=-1.0) <= 0, np.argwhere(excess > 0)[:5]


@every_kernel
def test_all_fan_ins_up_to_40_and_all_small_batches(kernel):
    rng = np.random.default_rng(1)
    for fan_in in range(1, 41):
        in_features = int(rng.integers(fan_in, 8 * fan_in + 1))
        out_features = int(rng.integers(1, 150))
        layer = make_layer(rng, in_features, out_features, fan_in)
        gemm = layer.pack(kernel=kernel)
        for batch in (1, 2, 3, 5, fan_in, 31 + fan_in):
            x = unaligned(rng.standard_normal((batch, in_features)).astype(np.float32))
            assert_close(layer, x, gemm.run(x))


@every_kernel
def test_every_batch_up_to_70(kernel):
    rng = np.random.default_rng(2)
    layer = make_layer(rng, 203, 77, 21)
    gemm = layer.pack(kernel=kernel)
    x = rng.standard_normal((70, 203)).astype(np.float32)
    for batch in range(71):
        assert_close(layer, x[:batch], gemm.run(x[:batch]))


@every_kernel
@settings(max_examples=25, deadline=None)
@given(
    in_features=st.integers(1, 5000),
    out_features=st.integers(1, 5000),
    density=st.floats(0.0, 1.0),
    batch=st.integers(1, 70),
    index_type=st.sampled_from([np.uint16, np.int32]),
    ablated=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(kernel, in_features, out_features, density, batch, index_type, ablated, seed):
    rng = np.random.default_rng(seed)
    fan_in = max(1, min(round(density * in_features), 300_000 // out_features, in_features))
    batch = max(1, min(batch, 2_000_000 // (fan_in * out_features)))
    active = round((1 - ablated) * out_features)
    layer = make_layer(rng, in_features, out_features, fan_in, active=active, index_type=index_type)
    x = unaligned(rng.standard_normal((batch, in_features)).astype(np.float32))
    residual = unaligned(rng.standard_normal((batch, out_features)).astype(np.float32))
    y = layer.pack(kernel=kernel).run(x, residual=residual, clip_min=-0.5, clip_max=1.5)
    assert_close(layer, x, y, residual, (-0.5, 1.5))


@every_kernel
@pytest.mark.parametrize("batch", [1, 9, 40])
def test_fan_in_of_all_inputs(kernel, batch):
    rng = np.random.default_rng(3)
    layer = make_layer(rng, 130, 70, 130)
    x = rng.standard_normal((batch, 130)).astype(np.float32)
    assert_close(layer, x, layer.pack(kernel=kernel).run(x))


@every_kernel
@pytest.mark.parametrize("in_features", [65_535, 65_536, 65_537, 300_000])
def test_more_inputs_than_16_bits_address(kernel, in_features):
    rng = np.random.default_rng(4)
    layer = make_layer(rng, in_features, 97, 500)
    # The last column is used, and rows of neighboring columns have entries in the remainder.
    layer.indices[::3, -1] = in_features - 1
    layer.indices[1::7, 1] = layer.indices[1::7, 0] + 1
    gemm = layer.pack(kernel=kernel)
    for batch in (1, 6, 17):
        x = rng.standard_normal((batch, in_features)).astype(np.float32)
        assert_close(layer, x, gemm.run(x))


@every_kernel
def test_gap_of_more_windows_than_16_bits_count(kernel):
    layer = Layer(
        np.array([[2.0, 3.0]], np.float32),
        np.array([[0, 4_999_999]], np.int32),
        np.array([0], np.int32),
        np.array([1.0], np.float32),
        5_000_000,
        1,
    )
    x = np.zeros((1, 5_000_000), np.float32)
    x[0, [0, -1]] = 10, 100
    assert layer.pack(kernel=kernel).run(x) == 321


@every_kernel
def test_the_order_of_rows_with_receptive_fields_does_not_matter(kernel):
    rng = np.random.default_rng(5)
    columns = np.stack([np.sort(rng.permutation(200)[:40]) + 2 * i for i in range(512)])

    def layer_of(columns):
        return Layer(
            rng.standard_normal(columns.shape).astype(np.float32),
            columns.astype(np.int32),
            np.arange(512, dtype=np.int32),
            rng.standard_normal(512).astype(np.float32),
            1222,
            512,
        )

    sorted_padding = layer_of(columns).pack(kernel=kernel).info()[0].padding
    layer = layer_of(rng.permutation(columns))
    gemm = layer.pack(kernel=kernel)
    # Unsorted, only a few rows of a group would have weights in a window; the rest is padding.
    assert gemm.info()[0].padding < 1.05 * sorted_padding < 2.2
    for batch in (1, 20):
        x = rng.standard_normal((batch, 1222)).astype(np.float32)
        assert_close(layer, x, gemm.run(x))


@every_kernel
def test_weights_outside_the_vector_layout(kernel):
    rng = np.random.default_rng(6)
    layer = uniform_layer(rng, 3072, 200, 307)
    gemm = layer.pack(kernel=kernel)
    if "-window" in kernel:
        assert 0 < gemm.info()[0].remainder < 0.05
    for batch in (1, 3, 8):
        x = rng.standard_normal((batch, 3072)).astype(np.float32)
        assert_close(layer, x, gemm.run(x))
    # An infinity in each column in turn reveals a remainder entry at a wrong position.
    for column in range(0, 3072, 61):
        x = np.zeros((1, 3072), np.float32)
        x[0, column] = np.inf
        reached = np.zeros(200, bool)
        reached[np.unique(np.nonzero(layer.indices == column)[0])] = True
        assert np.array_equal(~np.isfinite(gemm.run(x)[0]), reached)


@every_kernel
@pytest.mark.parametrize(
    ("in_features", "out_features", "batch"), [(4099, 1009, 67), (301, 3085, 157), (4112, 9, 72)]
)
def test_inputs_and_outputs_beyond_the_second_level_cache(kernel, in_features, out_features, batch):
    rng = np.random.default_rng(12)
    layer = make_layer(rng, in_features, out_features, 11, active=out_features - 3)
    x = unaligned(rng.standard_normal((batch, in_features)).astype(np.float32))
    residual = unaligned(rng.standard_normal((batch, out_features)).astype(np.float32))
    y = layer.pack(kernel=kernel).run(x, residual=residual, clip_min=-1.0, clip_max=2.0)
    assert_close(layer, x, y, residual, (-1.0, 2.0))


@every_kernel
@pytest.mark.parametrize("batch", [5, 7, 13, 24, 27, 45])
def test_missing_samples_of_a_tile_do_not_reach_others(kernel, batch):
    # Copies of the last sample replace them; its values must not reach other samples.
    rng = np.random.default_rng(13)
    layer = make_layer(rng, 300, 50, 40)
    x = rng.standard_normal((batch, 300)).astype(np.float32)
    poisoned = x.copy()
    poisoned[-1] = np.nan
    gemm = layer.pack(kernel=kernel)
    y = gemm.run(poisoned)
    assert np.isnan(y[-1]).all()
    assert np.array_equal(y[:-1], gemm.run(x)[:-1])


@every_kernel
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("batch", [1, 3, 11, 33])
def test_nan_and_inf_reach_exactly_the_outputs_with_a_weight_there(kernel, special, batch):
    rng = np.random.default_rng(7)
    layer = make_layer(rng, 400, 150, 13, active=140)
    gemm = layer.pack(kernel=kernel)
    x = rng.standard_normal((batch, 400)).astype(np.float32)
    # Incorrect padding would point to column 0 or to the start of a block.
    for column in [0, 15, 30, 31, 62, 63, *rng.integers(0, 400, 8), 399]:
        poisoned = x.copy()
        poisoned[batch // 2, column] = special
        want = np.isfinite(np.zeros((batch, 150)))
        stored, entry = np.nonzero(layer.indices == column)
        want[batch // 2, layer.rows[stored]] = False
        y = gemm.run(poisoned)
        assert np.array_equal(np.isfinite(y), want)
        if np.isinf(special):
            # A single infinity keeps its sign: padding does not turn it into NaN.
            signs = np.sign(layer.values[stored, entry] * special)
            assert np.array_equal(y[batch // 2, layer.rows[stored]], signs * np.inf)
        clean = np.delete(np.arange(batch), batch // 2)
        assert np.array_equal(y[clean], gemm.run(x)[clean])


@every_kernel
@pytest.mark.parametrize("batch", [1, 20])
def test_nan_passes_the_clip_and_infinities_are_clipped(kernel, batch):
    layer = Layer(
        np.ones((9, 1), np.float32),
        np.arange(9, dtype=np.int32)[:, None],
        np.arange(9, dtype=np.int32),
        np.zeros(9, np.float32),
        9,
        9,
    )
    sample = np.array([np.nan, np.inf, -np.inf, 7, -7, 0.5, -0.0, 1, -1], np.float32)
    x = np.tile(sample, (batch, 1))
    gemm = layer.pack(kernel=kernel)
    assert np.array_equal(gemm.run(x), x, equal_nan=True)
    want = np.array([np.nan, 6, 0, 6, 0, 0.5, 0, 1, 0], np.float32)
    assert np.array_equal(
        gemm.run(x, clip_min=0.0, clip_max=6.0), np.tile(want, (batch, 1)), equal_nan=True
    )
    residual = np.full((batch, 9), np.nan, np.float32)
    assert np.isnan(gemm.run(x, residual=residual, clip_min=0.0, clip_max=6.0)).all()


@every_kernel
@pytest.mark.parametrize("batch", [1, 4, 19])
def test_ablated_outputs_are_bias_and_residual(kernel, batch):
    rng = np.random.default_rng(8)
    layer = make_layer(rng, 90, 300, 9, active=31)
    ablated = np.setdiff1d(np.arange(300), layer.rows)
    x = np.full((batch, 90), np.nan, np.float32)
    residual = rng.standard_normal((batch, 300)).astype(np.float32)
    gemm = layer.pack(kernel=kernel)
    assert np.array_equal(gemm.run(x)[:, ablated], np.tile(layer.bias[ablated], (batch, 1)))
    want = np.maximum(layer.bias + residual, 0)[:, ablated]
    y = gemm.run(x, residual=residual, clip_min=0.0)
    assert np.array_equal(y[:, ablated], want)
    assert np.isnan(y[:, layer.rows]).all()


@every_kernel
@pytest.mark.parametrize("batch", [1, 30])
def test_layer_without_any_stored_row(kernel, batch):
    bias = np.arange(5, dtype=np.float32)
    gemm = _native.PackedGemm(
        values=np.zeros((0, 3), np.float32),
        indices=np.zeros((0, 3), np.int32),
        rows=np.zeros(0, np.int32),
        bias=bias,
        in_features=8,
        out_features=5,
        kernel=kernel,
    )
    assert np.array_equal(gemm.run(np.ones((batch, 8), np.float32)), np.tile(bias, (batch, 1)))


@every_kernel
@pytest.mark.parametrize("batch", [1, 25])
def test_padding_is_never_multiplied_with_x_but_stored_zeros_are(kernel, batch):
    # Row 0: one weight and two padding entries; row 1: a stored zero at column 4, no padding.
    layer = Layer(
        np.array([[2, 0, 0], [1, 0, 3]], np.float32),
        np.array([[3, 3, 3], [1, 4, 5]], np.int32),
        np.array([0, 1], np.int32),
        np.zeros(2, np.float32),
        6,
        2,
    )
    x = np.zeros((batch, 6), np.float32)
    x[:, 3] = np.inf
    gemm = layer.pack(kernel=kernel)
    assert np.array_equal(gemm.run(x), np.tile([np.inf, 0], (batch, 1)))
    x[:, 3], x[:, 4] = 0, np.inf
    assert np.array_equal(gemm.run(x), np.tile([0, np.nan], (batch, 1)), equal_nan=True)


@every_kernel
@pytest.mark.parametrize("batch", [1, 3, 40, 64, 150, 257])
def test_result_does_not_depend_on_threads(kernel, batch):
    rng = np.random.default_rng(9)
    layer = make_layer(rng, 1500, 1100, 150, active=1000)
    x = rng.standard_normal((batch, 1500)).astype(np.float32)
    residual = rng.standard_normal((batch, 1100)).astype(np.float32)
    gemm = layer.pack(kernel=kernel)
    end = {"residual": residual, "clip_min": -2.0, "clip_max": 2.0}
    want = gemm.run(x, **end)
    for threads in (2, 3, 7):
        assert np.array_equal(gemm.run(x, **end, threads=threads), want)
    # Nor on the other samples of the batch, for one kernel and tile.
    assert_close(layer, x, want, residual, (-2, 2))


def test_panels_that_broadcast_weights_from_memory_have_the_same_results_bit_by_bit():
    pair = ["f32-gemm-panel32-avx512f", "f32-gemm-panel32loads-avx512f"]
    if not set(pair) <= set(KERNELS):
        pytest.skip("these kernels need AVX-512F")
    rng = np.random.default_rng(12)
    layer = make_layer(rng, 900, 403, 90, active=401)
    x = rng.standard_normal((97, 900)).astype(np.float32)
    one, other = (layer.pack(kernel=kernel) for kernel in pair)
    for batch in (1, 8, 9, 16, 23, 32, 63, 97):
        assert np.array_equal(one.run(x[:batch]), other.run(x[:batch]))


@every_kernel
def test_threads_may_run_one_layer_at_the_same_time(kernel):
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(10)
    layer = make_layer(rng, 700, 500, 70)
    gemm = layer.pack(kernel=kernel)
    inputs = [rng.standard_normal((b, 700)).astype(np.float32) for b in (1, 2, 16, 33)] * 10
    want = [gemm.run(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda x: gemm.run(x, threads=2), inputs))
    for a, b in zip(got, want, strict=True):
        assert np.array_equal(a, b)


def test_plain_sums_in_stored_order_in_float32():
    rng = np.random.default_rng(11)
    layer = make_layer(rng, 50, 20, 7, active=15)
    x = rng.standard_normal((3, 50)).astype(np.float32)
    want = np.tile(layer.bias, (3, 1))
    for j in range(7):
        want[:, layer.rows] += layer.values[:, j] * x[:, layer.indices[:, j]]
    assert np.array_equal(_native.run_plain(**layer.arrays(), x=x), want)
