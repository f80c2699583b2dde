"""Every convolution kernel of the dispatch table, compared with a float64 reference."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.ort_ops import _native

from ._own_weights import of_its_own
from ._random_convs import (
    HARD_SWISH,
    OPEN_GATE,
    ConvLayer,
    check_case,
    compare,
    ends,
    guarded,
    kernels,
    random_layer,
)
from ._random_tally import RandomCaseError

every_kernel = pytest.mark.parametrize("kernel", kernels())


def check(layer, x, kernel, residual=None, clip=(-np.inf, np.inf), **options):
    conv = layer.pack(kernel=kernel, **options)
    y = conv.run(x, residual=residual, **ends(clip))
    compare(layer, *layer.sums(x), y, residual, clip)
    return conv, y


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_random_convolutions_stay_within_the_float64_bound():
    routes = set()
    for number in range(400):
        routes |= set(check_case(2026, number).routes)
    both = (False, True)
    every = {f"kernel {name}" for depthwise in both for name in kernels(whole_depthwise=depthwise)}
    assert every <= routes
    assert "plain" in routes


def test_a_wrong_result_is_detected():
    rng = np.random.default_rng(0)
    layer = random_layer(rng, 3, 4, (3, 3), 5)
    x = normal(rng, 1, 3, 6, 6)
    _, y = check(layer, x, kernels()[0])
    y[0, 3, 3, 3] += 1e-4
    with pytest.raises(RandomCaseError, match=r"1 of 64 outputs are wrong"):
        compare(layer, *layer.sums(x), y)


@every_kernel
@settings(max_examples=40, deadline=None)
@given(
    kernel_shape=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    dilations=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(*[st.integers(0, 5)] * 4),
    size=st.tuples(st.integers(1, 19), st.integers(1, 70)),
    batch=st.integers(1, 3),
    group=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 9), st.integers(1, 20)),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_attributes(
    kernel, kernel_shape, strides, dilations, pads, size, batch, group, channels, density, seed
):
    rng = np.random.default_rng(seed)
    window = channels[0] * kernel_shape[0] * kernel_shape[1]
    fan_in = max(1, min(window, round(density * window), 2000 // (group * channels[1])))
    layer = random_layer(
        rng,
        group * channels[0],
        group * channels[1],
        kernel_shape,
        fan_in,
        group=group,
        strides=strides,
        dilations=dilations,
        pads=pads,
    )
    x = normal(rng, batch, group * channels[0], *size)
    if min(layer.output_size(*size)) < 1:
        with pytest.raises(ValueError, match="larger than X"):
            layer.pack(kernel=kernel).run(x)
        return
    residual = normal(rng, batch, group * channels[1], *layer.output_size(*size))
    check(layer, x, kernel, residual, (-1.0, 2.0))


@every_kernel
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_every_width_up_to_70(kernel, stride):
    """All incomplete tiles and vectors, and rows that end inside them."""
    rng = np.random.default_rng(stride)
    layer = random_layer(rng, 4, 9, (3, 3), 7, strides=(stride, stride), pads=(1, 1, 1, 1))
    conv = layer.pack(kernel=kernel)
    for width in range(1, 71):
        x = normal(rng, 2, 4, 1 + width % 4, width)
        compare(layer, *layer.sums(x), conv.run(x))


@every_kernel
def test_all_fan_ins_up_to_40(kernel):
    rng = np.random.default_rng(1)
    for fan_in in range(1, 41):
        channels = -(-fan_in // 9)
        layer = random_layer(rng, channels, 11, (3, 3), fan_in, pads=(1, 1, 1, 1))
        check(layer, normal(rng, 1, channels, 5, 7), kernel)


@every_kernel
@pytest.mark.parametrize(
    ("channels", "outputs", "kernel_shape", "size"),
    [
        (256, 70, (1, 1), (14, 14)),
        (40, 400, (3, 3), (7, 7)),
        (1500, 12, (1, 1), (5, 9)),
        (3, 1, (16, 16), (33, 40)),
        (1, 8, (1, 200), (1, 900)),
    ],
)
def test_layers_of_many_segments_blocks_and_taps(kernel, channels, outputs, kernel_shape, size):
    rng = np.random.default_rng(2)
    window = channels * kernel_shape[0] * kernel_shape[1]
    layer = random_layer(rng, channels, outputs, kernel_shape, max(1, window // 20))
    x = normal(rng, 1, channels, *size)
    residual = normal(rng, 1, outputs, *layer.output_size(*size))
    check(layer, x, kernel, residual, (0.0, 6.0))


@every_kernel
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_inf_and_nan_reach_exactly_the_outputs_that_read_them(kernel, special, stride):
    rng = np.random.default_rng(3)
    layer = random_layer(rng, 6, 20, (3, 3), 9, strides=(stride, stride), pads=(1, 2, 0, 1))
    conv = layer.pack(kernel=kernel)
    for _ in range(20):
        x = normal(rng, 2, 6, 9, 21)
        x[rng.integers(2), rng.integers(6), rng.integers(9), rng.integers(21)] = special
        compare(layer, *layer.sums(x), conv.run(x))


@every_kernel
def test_a_non_finite_weight_is_multiplied_with_the_zeros_outside_the_image(kernel):
    """As in a dense Conv, where 0 * Inf is NaN as well."""
    layer = ConvLayer(
        np.array([[np.inf]] * 8, np.float32),
        np.zeros((8, 1), np.int32),
        np.arange(8, dtype=np.int32),
        np.zeros(8, np.float32),
        1,
        (2, 2),
        pads=(1, 1, 0, 0),
    )
    x = np.ones((1, 1, 3, 3), np.float32)
    want = np.full((3, 3), np.inf)
    want[0], want[:, 0] = np.nan, np.nan
    for y in (
        layer.pack(kernel=kernel).run(x),
        _native.run_plain_conv(**layer.arrays, **layer.attributes, x=x),
    ):
        assert np.array_equal(y, np.broadcast_to(want, (1, 8, 3, 3)), equal_nan=True)


@every_kernel
def test_padding_of_the_format_is_not_multiplied_with_pixels(kernel):
    layer = ConvLayer(
        np.array([[2, 0, 0]] * 8, np.float32),
        np.array([[1, 1, 1]] * 8, np.int32),
        np.arange(8, dtype=np.int32),
        np.zeros(8, np.float32),
        2,
        (1, 1),
    )
    x = np.full((1, 2, 4, 5), np.inf, np.float32)
    assert np.array_equal(layer.pack(kernel=kernel).run(x), np.full((1, 8, 4, 5), np.inf))


@every_kernel
def test_nan_passes_the_clip_and_ablated_outputs_are_bias_and_residual(kernel):
    rng = np.random.default_rng(4)
    layer = random_layer(rng, 5, 40, (3, 3), 4, active=17)
    ablated = np.setdiff1d(np.arange(40), layer.rows)
    x = np.full((1, 5, 6, 7), np.nan, np.float32)
    residual = normal(rng, 1, 40, 4, 5)
    y = layer.pack(kernel=kernel).run(x, residual=residual, clip_min=0.0, clip_max=6.0)
    assert np.isnan(y[:, layer.rows]).all()
    want = np.clip(layer.bias[:, None, None] + residual, 0, 6)[:, ablated]
    assert np.array_equal(y[:, ablated], want)


@every_kernel
def test_layer_without_any_stored_row(kernel):
    rng = np.random.default_rng(5)
    layer = random_layer(rng, 4, 9, (3, 3), 4, active=0)
    y = layer.pack(kernel=kernel).run(normal(rng, 2, 4, 5, 5))
    assert np.array_equal(y, np.broadcast_to(layer.bias[:, None, None], (2, 9, 3, 3)))


@every_kernel
def test_nothing_is_written_for_an_empty_batch(kernel):
    layer = random_layer(np.random.default_rng(6), 4, 9, (1, 1), 2)
    assert layer.pack(kernel=kernel).run(np.zeros((0, 4, 3, 3), np.float32)).shape == (0, 9, 3, 3)


@every_kernel
@pytest.mark.parametrize("size", [(3, 3), (14, 14), (40, 33)])
def test_result_does_not_depend_on_threads_or_alignment(kernel, size):
    rng = np.random.default_rng(7)
    layer = random_layer(rng, 60, 200, (3, 3), 54, pads=(1, 1, 1, 1))
    conv = layer.pack(kernel=kernel)
    x, residual = normal(rng, 2, 60, *size), normal(rng, 2, 200, *size)
    end = ends((-2.0, 2.0))
    want = conv.run(x, residual=residual, **end)
    for threads in (1, 2, 3, 7):
        placed, _ = guarded(x.shape, threads)
        placed[...] = x
        assert np.array_equal(conv.run(placed, residual=residual, **end, threads=threads), want)


@pytest.mark.parametrize("size", [(7, 7), (5, 3), (31, 33)])
@pytest.mark.parametrize("gate", [OPEN_GATE, HARD_SWISH])
def test_panels_that_broadcast_weights_from_memory_have_the_same_results_bit_by_bit(size, gate):
    pair = ["f32-conv-panel32-avx512f", "f32-conv-panel32loads-avx512f"]
    if not set(pair) <= set(kernels()):
        pytest.skip("these kernels need AVX-512F")
    rng = np.random.default_rng(18)
    layer = random_layer(rng, 40, 29, (3, 3), 36, pads=(1, 1, 1, 1), active=27)
    x, residual = normal(rng, 2, 40, *size), normal(rng, 2, 29, *size)
    one, other = (layer.pack(kernel=kernel) for kernel in pair)
    end = {"residual": residual, **dict(zip(("gate_scale", "gate_shift"), gate, strict=True))}
    assert np.array_equal(one.run(x, **end), other.run(x, **end))


@every_kernel
def test_one_packed_convolution_runs_images_of_every_size(kernel):
    rng = np.random.default_rng(8)
    layer = random_layer(rng, 30, 40, (3, 3), 27, pads=(1, 1, 1, 1))
    conv = layer.pack(kernel=kernel)
    for size in ((7, 7), (1, 1), (20, 31), (56, 56)):
        x = normal(rng, 2, 30, *size)
        compare(layer, *layer.sums(x), conv.run(x))


@every_kernel
def test_a_packed_convolution_is_shared_by_content_and_geometry(kernel):
    layer = of_its_own(random_layer(np.random.default_rng(9), 8, 24, (3, 3), 20))
    first = layer.pack(kernel=kernel)
    assert [info.shared for info in first.info()] == [False]
    assert [info.shared for info in layer.pack(kernel=kernel).info()] == [True]
    others = {
        "strides": replace(layer, strides=(2, 1)),
        "pads": replace(layer, pads=(0, 0, 0, 1)),
        "dilations": replace(layer, dilations=(1, 2)),
        "kernel_shape": replace(layer, kernel_shape=(9, 1)),
    }
    for name, other in others.items():
        packed = other.pack(kernel=kernel)
        assert [info.shared for info in packed.info()] == [False], name


@every_kernel
def test_a_packed_convolution_distinguishes_its_weights_from_others(kernel):
    layer = random_layer(np.random.default_rng(10), 12, 32, (3, 3), 20, group=2, active=31)
    packed = layer.pack(kernel=kernel)
    assert packed.holds(**layer.arrays)
    for at in range(0, layer.values.size, 7):
        values = layer.values.copy()
        values.reshape(-1).view(np.uint32)[at] ^= 1
        assert not packed.holds(**layer.arrays | {"values": values})
    bias = layer.bias.copy()
    bias[-1] += 1
    assert not packed.holds(**layer.arrays | {"bias": bias})


@pytest.mark.parametrize(
    ("layer", "kernel"),
    [
        ((16, 32, (3, 3), 9, 1), "panel"),
        ((3, 32, (3, 3), 9, 1), "direct"),
        ((16, 16, (3, 3), 3, 16), "direct"),
        ((16, 32, (3, 3), 9, 16), "direct"),
        ((16, 16, (3, 3), 9, 16), "depthwise"),
        ((10, 5, (3, 3), 9, 5), "direct"),
        ((25, 5, (3, 3), 9, 5), "taps"),
        ((1, 8, (1, 5000), 900, 1), "taps"),
    ],
)
def test_the_table_chooses_by_channels_and_filters_of_a_group(layer, kernel):
    *sizes, group = layer
    made = random_layer(np.random.default_rng(11), *sizes, group=group)
    for isa in _native.supported_isas():
        layout = layout_of(made.pack(isa=isa).info()[0])
        assert layout == ("taps" if isa == "scalar" else kernel)


def layout_of(info):
    return re.match("[a-z]+", info.kernel.split("-")[2]).group()


@pytest.mark.parametrize(
    ("sizes", "attributes", "small", "large"),
    [
        ((16, 16, (3, 3), 9), {"group": 16}, "depthwise", "direct"),
        ((9, 9, (3, 3), 9), {"group": 9, "strides": (1, 2)}, "depthwise", None),
        ((9, 9, (5, 5), 25), {"group": 9}, "depthwise", None),
        ((16, 32, (1, 1), 8), {}, "panel", "direct"),
        ((16, 32, (1, 1), 9), {}, "panel", None),
        ((16, 32, (1, 1), 8), {"pads": (0, 0, 0, 1)}, "panel", None),
        ((3, 9, (3, 3), 9), {}, "direct", None),
    ],
)
def test_the_table_chooses_by_the_size_of_the_image(sizes, attributes, small, large):
    layer = random_layer(np.random.default_rng(15), *sizes, **attributes)
    for isa in _native.supported_isas()[1:]:
        infos = layer.pack(isa=isa).info()
        assert [layout_of(info) for info in infos] == [small] + [large] * (large is not None)
        assert (infos[0].min_pixels, infos[-1].max_pixels) == (0, None)
        if large:
            assert (infos[0].max_pixels, infos[1].min_pixels) == (2047, 2048)


@pytest.mark.parametrize("pixels", [2047, 2048])
def test_large_images_run_the_kernel_for_their_size(pixels):
    """The result is bitwise that of the same kernel when forced."""
    layer = random_layer(np.random.default_rng(16), 40, 24, (1, 1), 6)
    x = normal(np.random.default_rng(17), 1, 40, 1, pixels)
    for isa in _native.supported_isas()[1:]:
        packed = layer.pack(isa=isa)
        kernel = packed.info()[pixels > 2047].kernel
        assert np.array_equal(packed.run(x), layer.pack(kernel=kernel).run(x))
        compare(layer, *layer.sums(x), packed.run(x))


def test_a_depthwise_layer_with_a_missing_row_or_weight_uses_another_kernel():
    rng = np.random.default_rng(12)
    (name, *_) = kernels(whole_depthwise=True) or pytest.skip("no such kernel on this CPU")
    ablated = random_layer(rng, 6, 6, (3, 3), 9, group=6, active=5)
    short = random_layer(rng, 6, 6, (3, 3), 9, group=6)
    short.values[2, 8], short.indices[2, 8] = 0, short.indices[2, 7]
    for layer in (ablated, short, random_layer(rng, 6, 6, (3, 3), 9)):
        with pytest.raises(ValueError, match="depthwise convolutions with whole filters only"):
            layer.pack(kernel=name)


@pytest.mark.parametrize("kernel", [*kernels(), *kernels(whole_depthwise=True)])
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_non_finite_pixels_reach_their_own_channel_only(kernel, special):
    """No pruned positions: with a gate, outputs are not finite where the window has the pixel."""
    rng = np.random.default_rng(13)
    layer = random_layer(rng, 20, 20, (3, 3), 9, group=20, pads=(1, 1, 1, 1))
    x = normal(rng, 1, 20, 9, 9)
    x[0, 7, 4, 4] = special
    y = layer.pack(kernel=kernel).run(x, **ends(gate=HARD_SWISH))
    compare(layer, *layer.sums(x), y, gate=HARD_SWISH)
    assert np.isfinite(y[0, [*range(7), *range(8, 20)]]).all()
    # An infinite sum of -Inf is gated by 0.
    assert not np.isfinite(y[0, 7, 3:6, 3:6]).any()


@pytest.mark.parametrize("kernel", [*kernels(), *kernels(whole_depthwise=True)])
def test_huge_strides_and_pads_take_no_memory(kernel):
    far = 2**31 - 1
    rng = np.random.default_rng(14)
    layer = random_layer(rng, 2, 2, (1, 3), 3, group=2, strides=(1, far), dilations=(1, far // 2))
    layer = replace(layer, pads=(0, far, 0, far))
    x = normal(rng, 1, 2, 2, 5)
    compare(layer, *sums_by_taps(layer, x), layer.pack(kernel=kernel).run(x))


def sums_by_taps(layer, x):
    """Sums and magnitudes without a padded copy."""
    height, width = layer.output_size(*x.shape[2:])
    total = np.repeat(layer.bias[None, :, None, None].astype(np.float64), height, 2)
    total = np.repeat(total, width, 3)
    magnitude = np.abs(total)
    for o in range(len(layer.bias)):
        for value, at in zip(layer.values[o], layer.indices[o], strict=True):
            for j in range(width):
                column = j * layer.strides[1] + int(at) * layer.dilations[1] - layer.pads[1]
                if 0 <= column < x.shape[3]:
                    product = np.float64(value) * x[:, o, :, column]
                    total[:, o, :, j] += product
                    magnitude[:, o, :, j] += np.abs(product)
    return total, magnitude


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": 3}, "in_channels is 8, not a multiple of group 3"),
        ({"group": 0}, "group is 0, it must be 1 to"),
        ({"strides": (0, 1)}, r"strides\[0\] is 0, it must be 1 to"),
        ({"dilations": (1, -1)}, r"dilations\[1\] is -1"),
        ({"pads": (0, -1, 0, 0)}, r"pads\[1\] is -1, it must be 0 to"),
        ({"kernel_shape": (2**31 - 1, 2**31 - 1)}, "has more than"),
    ],
)
def test_invalid_attributes_are_refused_by_name(change, message):
    layer = random_layer(np.random.default_rng(12), 8, 9, (3, 3), 9)
    with pytest.raises(ValueError, match=message):
        _native.PackedConv(**layer.arrays, **(layer.attributes | change))


def test_indices_beyond_the_window_are_refused_with_their_place():
    layer = random_layer(np.random.default_rng(12), 8, 9, (3, 3), 9)
    layer.indices[2, 8] = 72
    with pytest.raises(ValueError, match=r"indices\[2, 8\] is 72, in_features is 72"):
        layer.pack()


def test_run_arrays_of_wrong_shape_are_refused():
    layer = random_layer(np.random.default_rng(13), 3, 9, (3, 3), 9)
    conv = layer.pack()
    x = np.zeros((1, 3, 5, 5), np.float32)
    with pytest.raises(ValueError, match="x is float64, it must be float32"):
        conv.run(x.astype(np.float64))
    with pytest.raises(ValueError, match="larger than X of 5 x 2"):
        conv.run(x[..., :2])
    with pytest.raises(ValueError, match=r"residual has the shape \[1, 9, 5, 5\]"):
        conv.run(x, residual=np.zeros((1, 9, 5, 5), np.float32))
    with pytest.raises(ValueError, match="out has the shape"):
        conv.run(x, out=np.zeros((1, 9, 3, 4), np.float32))
