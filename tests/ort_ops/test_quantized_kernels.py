"""Every kernel of int8 layers, compared bit for bit with int64 and float32 arithmetic in NumPy."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.ort_ops import _native, quantized_kernel_table

from .test_kernels_dispatch import ISA_ORDER

KERNELS = [row.name for row in quantized_kernel_table() if row.supported]
CPUINFO = Path("/proc/cpuinfo")
LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}

every_kernel = pytest.mark.parametrize("kernel", KERNELS)


@dataclass(frozen=True)
class Layer:
    values: np.ndarray
    indices: np.ndarray
    rows: np.ndarray
    in_features: int
    out_features: int

    @property
    def stored(self):
        return {"values": self.values, "indices": self.indices, "rows": self.rows}

    @property
    def sizes(self):
        return {"in_features": self.in_features, "out_features": self.out_features}

    def pack(self, **options):
        return _native.PackedQuantizedGemm(**self.stored, **self.sizes, **options)

    def plain(self, x, **run):
        return _native.run_plain_quantized(**self.stored, **self.sizes, x=x, **run)

    def sums(self, x, zero_points):
        """[batch, out_features] int64."""
        total = np.zeros((len(x), self.out_features), np.int64)
        for b, sample in enumerate(x.astype(np.int64) - np.reshape(zero_points, (-1, 1))):
            total[b, self.rows] = (self.values.astype(np.int64) * sample[self.indices]).sum(1)
        return total


def make_layer(rng, in_features, out_features, fan_in, *, active=None, padded=False):
    """One random column from each of `fan_in` strata: distinct, and cheap to draw."""
    active = out_features if active is None else active
    edges = np.arange(fan_in + 1, dtype=np.int64) * in_features // fan_in
    columns = edges[:-1] + (rng.random((active, fan_in)) * np.diff(edges)).astype(np.int64)
    values = rng.integers(-128, 128, (active, fan_in)).astype(np.int8)
    values[rng.random(values.shape) < 0.05] = 0
    if padded:
        for row in range(0, active, 2):
            kept = int(rng.integers(1, fan_in + 1))
            columns[row, kept:], values[row, kept:] = columns[row, kept - 1], 0
    index_type = np.uint16 if in_features <= 65536 and rng.random() < 0.5 else np.int32
    rows = np.sort(rng.permutation(out_features)[:active]).astype(np.int32)
    return Layer(values, columns.astype(index_type), rows, in_features, out_features)


def oracle(layer, x, *, multipliers, y_type, x_zero_point=0, bias=None, **run):
    total = layer.sums(x, x_zero_point) + (0 if bias is None else bias.astype(np.int64))
    value = total.astype(np.int32).astype(np.float32)
    if run.get("sample_multipliers") is not None:
        multipliers = run["sample_multipliers"][:, None] * multipliers
    value = value * multipliers
    if run.get("float_bias") is not None:
        value = value + run["float_bias"]
    residual = run.get("residual")
    if residual is not None and y_type == "float32":
        value = value + residual
    elif residual is not None:
        steps = residual.astype(np.int32) - np.int32(run.get("residual_zero_point", 0))
        value = value + steps.astype(np.float32) * np.float32(run.get("residual_multiplier", 1))
    value = np.maximum(value, np.float32(run.get("clip_min", -np.inf)))
    value = np.minimum(value, np.float32(run.get("clip_max", np.inf)))
    assert value.dtype == np.float32
    if y_type == "float32":
        return value
    rounded = np.rint(value.astype(np.float64)) + run.get("y_zero_point", 0)
    return np.clip(rounded, *LIMITS[y_type]).astype(y_type)


def bytes_of(rng, dtype, *shape):
    return rng.integers(0, 256, shape).astype(np.uint8).view(dtype)


def unaligned(array):
    """A C-contiguous copy whose data starts one element past a cache line."""
    raw = np.zeros(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + array.itemsize
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def random_run(rng, layer, x, y_type, *, residual, per_sample, clip):
    """Arguments that bring most outputs into the range of y and some beyond it."""
    batch, outputs = len(x), layer.out_features
    scale = 40 / (np.sqrt(layer.values.shape[1]) * 5000)
    run = {
        "y_type": y_type,
        "multipliers": (scale * rng.uniform(0.5, 2, outputs)).astype(np.float32),
        "clip_min": -30.5 if clip else -np.inf,
        "clip_max": 20.25 if clip else np.inf,
    }
    low, high = LIMITS[x.dtype.name]
    run["x_zero_point"] = (
        rng.integers(low, high + 1, batch).astype(np.int32)
        if per_sample
        else int(rng.choice([low, high, rng.integers(low, high + 1)]))
    )
    if per_sample:
        run["sample_multipliers"] = rng.uniform(0.5, 2, batch).astype(np.float32)
    if y_type == "float32":
        run["float_bias"] = rng.standard_normal(outputs).astype(np.float32)
    else:
        run["bias"] = rng.integers(-10_000, 10_000, outputs).astype(np.int32)
        low, high = LIMITS[y_type]
        run["y_zero_point"] = int(rng.integers(low, high + 1))
    if residual and y_type == "float32":
        run["residual"] = unaligned(rng.standard_normal((batch, outputs)).astype(np.float32))
    elif residual:
        run["residual"] = unaligned(bytes_of(rng, y_type, batch, outputs))
        run["residual_zero_point"] = int(rng.integers(low, high + 1))
        run["residual_multiplier"] = float(rng.uniform(0.1, 2))
    return run


def assert_equal(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype == np.float32:
        # NumPy's minimum and maximum may return either zero.
        np.testing.assert_array_equal(got, want)
    else:
        assert np.array_equal(got, want), np.argwhere(got != want)[:5]


@every_kernel
@settings(max_examples=60, deadline=None)
@given(
    in_features=st.integers(1, 3000) | st.sampled_from([63, 64, 65, 127, 128, 129, 255, 256, 257]),
    out_features=st.integers(1, 1000) | st.sampled_from([31, 32, 33, 63, 64, 65]),
    density=st.floats(0, 1),
    batch=st.integers(1, 70),
    ablated=st.sampled_from([0.0, 0.0, 0.1, 0.8, 1.0]),
    x_type=st.sampled_from(["uint8", "int8"]),
    y_type=st.sampled_from(["uint8", "int8", "float32"]),
    flags=st.tuples(*[st.booleans()] * 4),
    threads=st.sampled_from([1, 2, 7]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_and_epilogue(
    kernel,
    in_features,
    out_features,
    density,
    batch,
    ablated,
    x_type,
    y_type,
    flags,
    threads,
    seed,
):
    rng = np.random.default_rng(seed)
    fan_in = max(1, min(round(density * in_features), 200_000 // out_features, in_features))
    batch = max(1, min(batch, 1_000_000 // (fan_in * out_features)))
    residual, per_sample, clip, padded = flags
    active = round((1 - ablated) * out_features)
    layer = make_layer(rng, in_features, out_features, fan_in, active=active, padded=padded)
    x = unaligned(bytes_of(rng, x_type, batch, in_features))
    run = random_run(rng, layer, x, y_type, residual=residual, per_sample=per_sample, clip=clip)
    want = oracle(layer, x, **run)
    assert_equal(layer.pack(kernel=kernel).run(x, threads=threads, **run), want)
    assert_equal(layer.plain(x, **run), want)


@every_kernel
def test_all_fan_ins_up_to_40_and_all_small_batches(kernel):
    rng = np.random.default_rng(1)
    for fan_in in range(1, 41):
        in_features = int(rng.integers(fan_in, 8 * fan_in + 1))
        layer = make_layer(rng, in_features, int(rng.integers(1, 150)), fan_in)
        gemm = layer.pack(kernel=kernel)
        for batch in (1, 2, 3, 4, 5, 8, 9, 31 + fan_in):
            x = unaligned(bytes_of(rng, "uint8", batch, in_features))
            run = random_run(rng, layer, x, "uint8", residual=False, per_sample=False, clip=False)
            assert_equal(gemm.run(x, **run), oracle(layer, x, **run))


@every_kernel
@pytest.mark.parametrize("x_type", ["uint8", "int8"])
def test_every_batch_up_to_70(kernel, x_type):
    rng = np.random.default_rng(2)
    layer = make_layer(rng, 203, 77, 21)
    gemm = layer.pack(kernel=kernel)
    x = bytes_of(rng, x_type, 70, 203)
    run = random_run(rng, layer, x, "int8", residual=True, per_sample=True, clip=True)
    want = oracle(layer, x, **run)
    per_sample = ("x_zero_point", "sample_multipliers", "residual")
    for batch in range(71):
        part = run | {name: run[name][:batch] for name in per_sample}
        assert_equal(gemm.run(x[:batch], **part), want[:batch])


@every_kernel
@pytest.mark.parametrize("weight", [-128, 127])
@pytest.mark.parametrize(("value", "zero_point"), [(255, 0), (0, 255), (255, 255)])
def test_the_largest_fan_in_with_extreme_values_is_exact(kernel, weight, value, zero_point):
    fan_in = 65_793
    layer = Layer(
        np.full((3, fan_in), weight, np.int8),
        np.tile(np.arange(fan_in, dtype=np.int32), (3, 1)),
        np.array([0, 2, 3], np.int32),
        fan_in,
        4,
    )
    x = np.full((9, fan_in), value, np.uint8)
    run = {
        "multipliers": np.array([1, 1, 2.0**-20, 2.0**-24], np.float32),
        "y_type": "float32",
        "x_zero_point": zero_point,
    }
    total = np.float32(weight * (value - zero_point) * fan_in)
    want = np.tile(total * run["multipliers"] * np.array([1, 0, 1, 1], np.float32), (9, 1))
    assert abs(weight * 255 * fan_in) < 2**31
    for batch in (1, 9):
        assert_equal(layer.pack(kernel=kernel).run(x[:batch], **run), want[:batch])
    # x and its zero point as int8.
    signed = (x ^ 0x80).view(np.int8)
    run["x_zero_point"] = zero_point - 128
    assert_equal(layer.pack(kernel=kernel).run(signed, **run), want)


def test_a_larger_fan_in_is_refused_with_the_limit():
    fan_in = 65_794
    with pytest.raises(ValueError, match="fan-in is 65794, it must be 65793 at most"):
        Layer(
            np.ones((1, fan_in), np.int8),
            np.arange(fan_in, dtype=np.int32)[None],
            np.zeros(1, np.int32),
            fan_in,
            1,
        ).pack()


@every_kernel
def test_the_sum_with_a_bias_wraps_as_in_onnx_runtime(kernel):
    layer = Layer(
        np.array([[127], [-128]], np.int8),
        np.zeros((2, 1), np.int32),
        np.arange(2, dtype=np.int32),
        1,
        2,
    )
    run = {
        "multipliers": np.ones(2, np.float32),
        "bias": np.array([2**31 - 1, -(2**31)], np.int32),
        "y_type": "float32",
    }
    y = layer.pack(kernel=kernel).run(np.array([[2]], np.uint8), **run)
    assert_equal(y, np.array([[-(2**31) + 253, 2**31 - 256]], np.float32))


@every_kernel
@pytest.mark.parametrize("y_type", ["uint8", "int8"])
@pytest.mark.parametrize("batch", [1, 8])
def test_halves_round_to_even_and_values_beyond_int32_saturate(kernel, y_type, batch):
    # One weight of 1: value = x * multiplier.
    multipliers = np.array([0.5, 1.5, 2.5, 1e30, 3e38, 1e-38], np.float32)
    count = len(multipliers)
    layer = Layer(
        np.ones((count, 1), np.int8),
        np.zeros((count, 1), np.int32),
        np.arange(count, dtype=np.int32),
        1,
        count,
    )
    gemm = layer.pack(kernel=kernel)
    low, high = LIMITS[y_type]
    zero_point = 3
    for value, halves in ((1, [0, 2, 2]), (-1, [0, -2, -2]), (3, [2, 4, 8])):
        x = np.full((batch, 1), value, np.int8)
        extreme = high if value > 0 else low
        want = [np.clip(half + zero_point, low, high) for half in halves]
        want += [extreme, extreme, zero_point]
        y = gemm.run(x, multipliers=multipliers, y_type=y_type, y_zero_point=zero_point)
        assert_equal(y, np.tile(np.array(want, y_type), (batch, 1)))


@every_kernel
@pytest.mark.parametrize("batch", [1, 5])
def test_a_nan_multiplier_makes_all_outputs_of_its_sample_nan(kernel, batch):
    rng = np.random.default_rng(3)
    layer = make_layer(rng, 90, 40, 7, active=30)
    x = bytes_of(rng, "uint8", batch, 90)
    run = random_run(rng, layer, x, "float32", residual=True, per_sample=True, clip=True)
    run["sample_multipliers"][-1] = np.nan
    y = layer.pack(kernel=kernel).run(x, **run)
    assert np.isnan(y[-1]).all()
    assert_equal(y[:-1], oracle(layer, x, **run)[:-1])


@every_kernel
@pytest.mark.parametrize("fan_in", [60, 300])
def test_the_result_is_equal_for_any_number_of_threads(kernel, fan_in):
    rng = np.random.default_rng(4)
    layer = make_layer(rng, 700, 900, fan_in, active=880)
    gemm = layer.pack(kernel=kernel)
    for batch, x_type in ((1, "uint8"), (3, "int8"), (40, "uint8"), (150, "int8")):
        x = bytes_of(rng, x_type, batch, 700)
        run = random_run(rng, layer, x, "uint8", residual=True, per_sample=False, clip=False)
        want = gemm.run(x, **run)
        assert_equal(want, oracle(layer, x, **run))
        for threads in (2, 3, 5, 8, 16, 31, 64):
            assert_equal(gemm.run(x, threads=threads, **run), want)
            plan = gemm.plan(batch, threads)
            assert plan.begins[0] == 0
            assert plan.begins == sorted(plan.begins)
            assert plan.threads <= threads


@every_kernel
@pytest.mark.parametrize("batch", [1, 20])
def test_outputs_in_another_order_than_their_rows(kernel, batch):
    """Rows that each read a part of x are grouped by it; most rows may be ablated."""
    rng = np.random.default_rng(5)
    first = rng.permutation(np.arange(400) * 7)
    columns = (first[:, None] + np.sort(rng.permutation(200)[:40])).astype(np.int32)
    rows = np.sort(rng.permutation(1000)[:400]).astype(np.int32)
    values = rng.integers(-128, 128, columns.shape).astype(np.int8)
    layer = Layer(values, columns, rows, 3000, 1000)
    gemm = layer.pack(kernel=kernel)
    # In the order of the outputs, a window would have the weights of few rows.
    order = np.argsort(first)
    ordered = Layer(values[order], columns[order], np.arange(400, dtype=np.int32), 3000, 400)
    assert gemm.info()[0].padding < 1.1 * ordered.pack(kernel=kernel).info()[0].padding
    for y_type in ("uint8", "int8", "float32"):
        x = bytes_of(rng, "uint8", batch, 3000)
        run = random_run(rng, layer, x, y_type, residual=True, per_sample=True, clip=False)
        assert_equal(gemm.run(x, **run), oracle(layer, x, **run))


@every_kernel
@pytest.mark.parametrize("in_features", [65_535, 65_536, 65_537, 300_000])
def test_more_inputs_than_16_bits_address(kernel, in_features):
    rng = np.random.default_rng(6)
    layer = make_layer(rng, in_features, 67, 500)
    layer.indices[::3, -1] = in_features - 1
    for batch in (1, 6):
        x = bytes_of(rng, "uint8", batch, in_features)
        run = random_run(rng, layer, x, "uint8", residual=False, per_sample=False, clip=False)
        assert_equal(layer.pack(kernel=kernel).run(x, **run), oracle(layer, x, **run))


@every_kernel
def test_layers_without_rows_and_without_weights(kernel):
    empty = Layer(
        np.zeros((0, 0), np.int8), np.zeros((0, 0), np.uint16), np.zeros(0, np.int32), 3, 40
    )
    zeros = Layer(
        np.zeros((40, 1), np.int8),
        np.zeros((40, 1), np.int32),
        np.arange(40, dtype=np.int32),
        3,
        40,
    )
    run = {
        "multipliers": np.full(40, 2, np.float32),
        "bias": np.arange(40, dtype=np.int32),
        "y_type": "int8",
        "y_zero_point": -5,
    }
    for layer in (empty, zeros):
        for batch in (1, 9):
            y = layer.pack(kernel=kernel).run(np.full((batch, 3), 255, np.uint8), **run)
            assert_equal(y, np.tile(np.arange(40) * 2 - 5, (batch, 1)).astype(np.int8))


@every_kernel
def test_the_result_may_overwrite_the_residual(kernel):
    rng = np.random.default_rng(7)
    layer = make_layer(rng, 300, 130, 20, active=60)
    for y_type in ("uint8", "float32"):
        x = bytes_of(rng, "uint8", 12, 300)
        run = random_run(rng, layer, x, y_type, residual=True, per_sample=False, clip=False)
        want = oracle(layer, x, **run)
        out = run["residual"] = np.ascontiguousarray(run["residual"])
        assert layer.pack(kernel=kernel).run(x, out=out, **run) is out
        assert_equal(out, want)


@every_kernel
def test_a_layout_is_shared_only_with_the_same_weights(kernel):
    layer = make_layer(np.random.default_rng(8), 150, 70, 9, active=69)
    layer.values[...] = np.random.default_rng(8).integers(1, 100, layer.values.shape)
    layer.indices[:, -1], layer.rows[...] = 148, np.arange(69)
    gemm = layer.pack(kernel=kernel)
    assert gemm.holds(**layer.stored)
    assert layer.pack(kernel=kernel).info()[0].shared
    for name, at in (
        ("values", (0, 0)),
        ("values", (68, 8)),
        ("indices", (0, 8)),
        ("indices", (68, 8)),
        ("rows", (68,)),
    ):
        changed = getattr(layer, name).copy()
        changed[at] += 1
        other = replace(layer, **{name: changed})
        assert not gemm.holds(**other.stored), name
        assert not other.pack(kernel=kernel).info()[0].shared


def test_every_batch_has_one_kernel_that_the_isa_includes():
    layer = make_layer(np.random.default_rng(9), 256, 64, 32)
    table = {row.name: row for row in quantized_kernel_table()}
    for isa in _native.supported_isas():
        gemm = layer.pack(isa=isa)
        infos = gemm.info()
        assert (infos[0].min_batch, infos[-1].max_batch) == (1, None)
        for info in infos:
            row = table[info.kernel]
            assert row.name.endswith(row.isa)
            assert ISA_ORDER.index(row.isa) <= ISA_ORDER.index(isa)
            assert not (row.isa == "avxvnni" and isa.startswith("avx512"))
            assert gemm.kernel(info.min_batch) == info.kernel


@pytest.mark.skipif(not CPUINFO.exists(), reason="needs /proc/cpuinfo")
def test_kernels_for_zen_4_suit_amd_cpus_of_family_25_only():
    words = re.sub(r"\s+", " ", CPUINFO.read_text())
    zen4 = "AuthenticAMD" in words and "cpu family : 25 " in words
    special = {
        "i8-gemm-window256nofetch-avx512vbmi",
        "i8-gemm-window128two-avx512vbmi",
        "i8-gemm-window64four-avx512vbmi",
    }
    for row in quantized_kernel_table():
        assert row.suits_cpu == (zen4 or row.name not in special)


def test_a_kernel_for_one_batch_is_not_packed_for_a_range():
    layer = make_layer(np.random.default_rng(9), 256, 64, 32)
    fixed = {row.name for row in quantized_kernel_table() if row.fixed_batch}
    for isa in _native.supported_isas():
        assert not fixed & {info.kernel for info in layer.pack(isa=isa, max_batch=8).info()}
        for batch in (2, 3, 4):
            assert len(layer.pack(isa=isa, min_batch=batch, max_batch=batch).info()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_zero_point": 256}, "x_zero_point is 256, it must be 0 to 255"),
        ({"x_zero_point": -1}, "x_zero_point is -1, it must be 0 to 255"),
        ({"x_zero_point": np.array([0, 300], np.int32)}, "x_zero_point is 300"),
        ({"x_zero_point": np.zeros(3, np.int32)}, "x_zero_point has 3 elements, batch is 2"),
        ({"y_zero_point": 128}, "y_zero_point is 128, it must be -128 to 127"),
        ({"y_type": "int32"}, "y_type is int32, it must be uint8, int8 or float32"),
        ({"multipliers": None}, "multipliers is missing"),
        ({"multipliers": np.ones(4, np.float32)}, "multipliers has 4 elements, out_features is 5"),
        ({"bias": np.ones(5, np.float32)}, "bias is float32, it must be int32"),
        ({"residual": np.ones((2, 5), np.uint8)}, "residual is uint8, it must be int8"),
        ({"residual": np.ones((2, 4), np.int8)}, r"residual has the shape \[2, 4\]"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
    layer = make_layer(np.random.default_rng(10), 20, 5, 3)
    run = {"multipliers": np.ones(5, np.float32), "y_type": "int8"} | change
    with pytest.raises(ValueError, match=message):
        layer.pack().run(np.zeros((2, 20), np.uint8), **run)
    with pytest.raises(ValueError, match=message):
        layer.plain(np.zeros((2, 20), np.uint8), **run)


@pytest.mark.parametrize("kind", [np.float32, np.uint8, np.int32])
def test_values_of_another_type_are_refused(kind):
    layer = make_layer(np.random.default_rng(11), 20, 5, 3)
    with pytest.raises(ValueError, match=r"values is .*, it must be int8"):
        replace(layer, values=layer.values.astype(kind)).pack()


def test_a_float_layer_of_int8_values_is_refused():
    layer = make_layer(np.random.default_rng(12), 20, 5, 3)
    with pytest.raises(ValueError, match="values is int8, it must be float32 or float16"):
        _native.PackedGemm(**layer.stored, **layer.sizes, bias=np.zeros(5, np.float32))
