"""How threads share a run: a pure function of layer, batch and number of threads.

No machine with 64 CPUs is needed: assertions about 64 threads are about the plan.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.ort_ops import _native

from ._conv_layer import ConvLayer
from .test_kernels import Layer, make_layer

THREADS = [*range(2, 17), 32, 64]
BATCHES = (1, 8, 16, 64, 197, 256)

# Microseconds, fixed and per thread, for a pool whose threads spin and for one that sleeps.
SPINNING, SLEEPING = (1.5, 0.15), (15.0, 1.5)

# (in_features, out_features) of the perceptron, of ViT-B/16 and of other heads.
LINEAR = [
    (784, 3072),
    (3072, 768),
    (768, 3072),
    (768, 10),
    (768, 768),
    (768, 2304),
    (768, 1000),
    (2048, 1000),
    (960, 1280),
]

# (in_channels, out_channels, kernel, stride, padding, group, size): each kind in ResNet-50 and
# MobileNet-V3-Large, at the size of its input.
CONVOLUTIONS = [
    (3, 64, 7, 2, 3, 1, 224),
    (64, 64, 1, 1, 0, 1, 56),
    (64, 64, 3, 1, 1, 1, 56),
    (64, 256, 1, 1, 0, 1, 56),
    (256, 64, 1, 1, 0, 1, 56),
    (128, 128, 3, 2, 1, 1, 56),
    (256, 512, 1, 2, 0, 1, 56),
    (128, 128, 3, 1, 1, 1, 28),
    (128, 512, 1, 1, 0, 1, 28),
    (512, 128, 1, 1, 0, 1, 28),
    (256, 256, 3, 1, 1, 1, 14),
    (256, 1024, 1, 1, 0, 1, 14),
    (1024, 256, 1, 1, 0, 1, 14),
    (512, 512, 3, 1, 1, 1, 7),
    (512, 2048, 1, 1, 0, 1, 7),
    (2048, 512, 1, 1, 0, 1, 7),
    (16, 64, 1, 1, 0, 1, 112),
    (64, 64, 3, 2, 1, 64, 112),
    (24, 72, 1, 1, 0, 1, 56),
    (72, 72, 5, 2, 2, 72, 56),
    (40, 120, 1, 1, 0, 1, 28),
    (120, 120, 5, 1, 2, 120, 28),
    (80, 200, 1, 1, 0, 1, 14),
    (200, 200, 3, 1, 1, 200, 14),
    (112, 672, 1, 1, 0, 1, 14),
    (672, 672, 5, 2, 2, 672, 14),
    (160, 960, 1, 1, 0, 1, 7),
    (960, 960, 5, 1, 2, 960, 7),
]


# Layers with less work are not cut finer.
SMALL_MICROSECONDS = 60.0


# Kernels whose plans differ, as far as this CPU has them: the widest, and those of other CPUs.
ISAS = [
    isa
    for isa in _native.supported_isas()
    if isa in ("scalar", "avx2", _native.supported_isas()[-1])
]


def is_even(plan, threads, isa):
    # Where two tiles are shared by an odd number of threads, one of them fills both panels.
    limit = (1.15 if threads % 2 == 0 else 1.2) if threads <= 16 else 1.3
    if not isa.startswith("avx512"):  # the smallest convolutions have less to share
        limit = max(limit, 1.21)
    return plan.imbalance <= limit or plan.microseconds < SMALL_MICROSECONDS


def random_layer(in_features, out_features, sparsity=0.9, seed=0):
    fan_in = max(1, round(in_features * (1 - sparsity)))
    return make_layer(np.random.default_rng(seed), in_features, out_features, fan_in)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("in_features", "out_features"), LINEAR)
def test_linear_layers_are_shared_evenly(in_features, out_features, isa):
    layer = random_layer(in_features, out_features)
    for threads in THREADS:
        packed = layer.pack(threads=threads, isa=isa)
        for batch in BATCHES:
            plan = packed.plan(batch, threads, SPINNING)
            assert is_even(plan, threads, isa), (threads, batch, plan.imbalance, plan)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
def test_convolutions_are_shared_evenly(shape, isa):
    in_channels, out_channels, kernel, stride, padding, group, size = shape
    taps = in_channels // group * kernel * kernel
    fan_in = taps if group == out_channels else max(1, round(0.1 * taps))
    geometry = _geometry(in_channels, out_channels, kernel, stride, padding, group)
    layer = ConvLayer.random(geometry, fan_in)
    for threads in THREADS:
        options = {**geometry_options(geometry), "threads": threads, "isa": isa}
        packed = _native.PackedConv(**layer.weights, **options)
        for batch in BATCHES:
            plan = packed.plan((batch, size, size), threads, SPINNING)
            assert is_even(plan, threads, isa), (threads, batch, plan.imbalance, plan)


def _geometry(in_channels, out_channels, kernel, stride, padding, group):
    from fanin.ort_ops.format.conv_geometry import ConvGeometry

    return ConvGeometry(
        in_channels,
        out_channels,
        (kernel, kernel),
        strides=(stride, stride),
        pads=(padding,) * 4,
        group=group,
    )


def geometry_options(geometry):
    return {
        "in_channels": geometry.in_channels,
        "out_channels": geometry.out_channels,
        "kernel_shape": geometry.kernel_shape,
        "strides": geometry.strides,
        "pads": geometry.pads,
        "dilations": geometry.dilations,
        "group": geometry.group,
    }


def test_sixteen_threads_make_a_layer_several_times_as_fast_at_every_batch():
    packed = random_layer(3072, 768).pack(threads=16)
    expected = {1: 4.5, 8: 6.0, 16: 6.0, 64: 9.0, 197: 11.5, 256: 13.0}
    for batch, least in expected.items():
        plan = packed.plan(batch, 16, SPINNING)
        alone = packed.plan(batch, 1).longest
        assert alone / (plan.longest + plan.dispatch) >= least, batch


def test_a_dispatch_that_costs_more_gets_fewer_threads():
    packed = random_layer(768, 768).pack(threads=16)
    free, spinning, sleeping = (
        packed.plan(16, 16, dispatch).threads for dispatch in ((0.0, 0.0), SPINNING, SLEEPING)
    )
    assert free == 16
    assert free >= spinning > sleeping
    assert packed.plan(16, 16, (1e6, 0.0)).threads == 1


def test_work_shorter_than_a_dispatch_stays_on_one_thread():
    packed = random_layer(64, 10).pack(threads=16)
    assert packed.plan(1, 16, SPINNING).threads == 1


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 600),
    st.integers(1, 900),
    st.floats(0, 1),
    st.integers(1, 70),
    st.integers(1, 40),
    st.integers(0, 5000),
    st.sampled_from([(0.0, 0.0), SPINNING, SLEEPING]),
)
def test_every_unit_belongs_to_one_part(
    in_features, out_features, active, packed_for, threads, batch, dispatch
):
    layer = make_layer(
        np.random.default_rng(batch),
        in_features,
        out_features,
        max(1, in_features // 8),
        active=int(active * out_features),
    )
    packed = layer.pack(min_batch=3, threads=packed_for)
    plan = packed.plan(batch + 1, threads, dispatch)
    assert plan.begins[0] == 0
    assert all(a <= b for a, b in itertools.pairwise(plan.begins))
    assert 1 <= plan.threads <= threads
    assert (len(plan.begins) - 1) % plan.threads == 0
    whole = packed.plan(batch + 1, 1, dispatch)
    # Narrower tiles are more units, and waste less on a few samples.
    assert plan.begins[-1] >= whole.begins[-1]
    assert plan.microseconds >= 0.6 * whole.longest
    assert plan.microseconds / plan.threads <= plan.longest * (1 + 1e-9)
    assert plan.dispatch + plan.longest <= whole.longest * (1 + 1e-9)


def test_rows_of_different_fan_in_are_cut_by_their_weights():
    rng = np.random.default_rng(0)
    # The first 64 of 512 rows hold nearly all weights.
    layer = make_layer(rng, 512, 512, 256)
    true = np.where(np.arange(512) < 64, 256, 2)
    padding = np.arange(256) >= true[:, None]
    last = np.take_along_axis(layer.indices, true[:, None] - 1, axis=1)
    layer.indices[padding] = np.broadcast_to(last, padding.shape)[padding]
    layer.values[padding] = 0
    plan = layer.pack(min_batch=8, threads=4).plan(32, 4, (0.0, 0.0))
    assert plan.threads == 4
    # Cut by rows, it would be 3.
    assert plan.imbalance < 1.5


@pytest.mark.parametrize("batch", [2**31 - 1, 2**31, 2**40])
def test_a_huge_batch_has_a_plan(batch):
    packed = random_layer(256, 512).pack(threads=64)
    plan = packed.plan(batch, 64, SPINNING)
    assert plan.threads == 64
    assert plan.begins[-1] >= batch // 64
    assert plan.imbalance < 1.01
    assert np.isfinite(plan.microseconds)


@pytest.mark.parametrize("kernel", [row.name for row in _native.kernel_table() if row.supported])
def test_results_are_bitwise_equal_for_1_to_64_threads(kernel):
    if "16" in kernel.partition("-gemm-")[0]:
        pytest.skip("takes 16-bit weights; test_bfloat16_compute.py, or in the same code")
    rng = np.random.default_rng(1)
    layer = make_layer(rng, 700, 610, 80, active=580)
    for batch in (1, 3, 16, 33, 70):
        x = rng.standard_normal((batch, 700), np.float32)
        residual = rng.standard_normal((batch, 610), np.float32)
        expected = layer.pack(kernel=kernel).run(x, residual=residual, clip_min=-0.5)
        for threads in (2, 3, 7, 16, 64):
            packed = layer.pack(kernel=kernel, threads=threads)
            for used in {threads, 5}:
                actual = packed.run(x, residual=residual, clip_min=-0.5, threads=used)
                assert actual.tobytes() == expected.tobytes(), (batch, threads, used)


@pytest.mark.parametrize(
    "kernel",
    [row.name for row in _native.kernel_table() if row.supported and "f32-gemm-window" in row.name],
)
def test_entries_outside_of_windows_are_the_same_for_1_to_64_threads(kernel):
    rng = np.random.default_rng(3)
    columns = np.sort(np.argsort(rng.random((1100, 900)))[:, :45]).astype(np.int32)
    values = rng.standard_normal(columns.shape, np.float32)
    rows, bias = np.arange(1100, dtype=np.int32), np.zeros(1100, np.float32)
    layer = Layer(values, columns, rows, bias, 900, 1100)
    x = rng.standard_normal((3, 900), np.float32)
    alone = layer.pack(kernel=kernel)
    assert alone.info()[0].remainder > 0
    for threads in (2, 3, 16, 64):
        packed = layer.pack(kernel=kernel, threads=threads)
        assert packed.info()[0].remainder == alone.info()[0].remainder
        assert packed.holds(values=values, indices=columns, rows=rows, bias=bias)
        assert packed.run(x, threads=threads).tobytes() == alone.run(x).tobytes(), threads


@pytest.mark.parametrize("shape", [CONVOLUTIONS[i] for i in (2, 10, 13, 19, 23)], ids=str)
def test_convolutions_are_bitwise_equal_for_1_to_64_threads(shape):
    in_channels, out_channels, kernel, stride, padding, group, size = shape
    rng = np.random.default_rng(2)
    taps = in_channels // group * kernel * kernel
    geometry = _geometry(in_channels, out_channels, kernel, stride, padding, group)
    layer = ConvLayer.random(geometry, taps if group == out_channels else max(1, taps // 10))
    options = geometry_options(geometry)
    x = rng.standard_normal((2, in_channels, size // 2, size // 2), np.float32)
    expected = _native.PackedConv(**layer.weights, **options).run(x)
    for threads in (2, 5, 16, 64):
        packed = _native.PackedConv(**layer.weights, **options, threads=threads)
        for used in {threads, 3}:
            assert packed.run(x, threads=used).tobytes() == expected.tobytes(), (threads, used)


def test_grouped_convolutions_are_planned_as_one():
    geometry = _geometry(64, 64, 3, 1, 1, 8)
    layer = ConvLayer.random(geometry, 24)
    options = geometry_options(geometry)
    packed = _native.PackedConv(**layer.weights, **options, isa="avx2" if _has_avx2() else "scalar")
    plan = packed.plan((1, 16, 16), 4, (0.0, 0.0))
    assert plan.threads == 4
    assert plan.imbalance < 1.1


def _has_avx2():
    return "avx2" in _native.supported_isas()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2), "batch is 0, it must be 1 or more"),
        ((-1, 2), "batch is -1"),
        ((1, 0), "threads is 0, it must be 1 to 1024"),
        ((1, 5000), "threads is 5000"),
        ((1, 2, (-1.0, 0.0)), r"dispatch is \(-1.0+, 0.0+\), it must be two numbers"),
        ((1, 2, (float("nan"), 0.0)), "dispatch is"),
        ((1, 2, (0.0, float("inf"))), "dispatch is"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        random_layer(64, 64).pack().plan(*arguments)
