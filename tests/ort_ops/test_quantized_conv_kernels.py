"""Every kernel of convolutions of int8 weights, compared bit for bit with the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin import ort_ops
from fanin.ort_ops import _native
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._quantized import GEOMETRIES, QLINEAR_CONV, Node, random_node

KERNELS = [row.name for row in ort_ops.quantized_conv_kernel_table() if row.supported]
every_kernel = pytest.mark.parametrize("kernel", [*dict.fromkeys(KERNELS), "plain"])

# Wide images and channels, beyond what fits a block of any kernel.
LARGE = [
    ConvGeometry(70, 33, (3, 3), pads=(1, 1, 1, 1)),
    ConvGeometry(64, 130, (1, 1)),
    ConvGeometry(3, 40, (7, 7), strides=(2, 2), pads=(3, 3, 3, 3)),
    ConvGeometry(96, 96, (5, 5), pads=(2, 2, 2, 2), group=96),
]


def two_axes(geometry: ConvGeometry) -> dict[str, Any]:
    """The binding's arguments, where every convolution is 2-d."""
    lists = {
        name: tuple(getattr(geometry, name)) for name in ("kernel_shape", "strides", "dilations")
    }
    pads = geometry.pads
    if geometry.axes == 1:
        lists = {name: (1, *sizes) for name, sizes in lists.items()}
        pads = (0, pads[0], 0, pads[1])
    sizes = {name: getattr(geometry, name) for name in ("in_channels", "out_channels", "group")}
    return {**lists, **sizes, "pads": pads}


def flat(array: np.ndarray, geometry: ConvGeometry, channels_last: int) -> np.ndarray:
    """Images of one axis as images of height 1."""
    if geometry.axes == 2:
        return array
    return array[:, None] if channels_last else array[:, :, None]


def run_kernel(node: Node, geometry: ConvGeometry, kernel: str, threads: int = 1) -> np.ndarray:
    arrays, last = node.arrays, node.attributes["channels_last"]
    weights = {name: arrays[name] for name in ("values", "indices", "rows")}
    x_scale, y_scale = arrays["x_scale"].reshape(()), arrays["y_scale"].reshape(())
    multipliers = x_scale * np.broadcast_to(arrays["values_scale"], arrays["bias"].shape) / y_scale
    added = arrays["residual"].shape != (1,)
    run: dict[str, Any] = {
        "multipliers": multipliers.astype(np.float32),
        "y_type": arrays["y_zero_point"].dtype.name,
        "x_zero_point": int(arrays["x_zero_point"]),
        "bias": arrays["bias"],
        "residual": flat(arrays["residual"], geometry, last) if added else None,
        "residual_multiplier": float(arrays["residual_scale"] / y_scale),
        "residual_zero_point": int(arrays["residual_zero_point"]),
        "clip_min": float(np.float32(node.attributes["clip_min"]) / y_scale),
        "clip_max": float(np.float32(node.attributes["clip_max"]) / y_scale),
        "y_zero_point": int(arrays["y_zero_point"]),
        "channels_last": bool(last),
    }
    x = flat(node.x, geometry, last)
    if kernel == "plain":
        return _native.run_plain_quantized_conv(**weights, **two_axes(geometry), x=x, **run)
    packed = _native.PackedQuantizedConv(**weights, **two_axes(geometry), kernel=kernel)
    return packed.run(x, **run, threads=threads)


def assert_exact(node: Node, geometry: ConvGeometry, kernel: str, threads: int = 1) -> None:
    wanted = flat(node.expected(), geometry, node.attributes["channels_last"])
    got = run_kernel(node, geometry, kernel, threads)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@every_kernel
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    geometry=st.sampled_from(GEOMETRIES),
    threads=st.sampled_from([1, 3]),
)
def test_a_kernel_computes_the_definition(kernel, seed, geometry, threads):
    node = random_node(QLINEAR_CONV, seed, geometry=geometry)
    assert_exact(node, geometry, kernel, threads)


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("geometry", LARGE, ids=str)
@every_kernel
def test_a_kernel_computes_layers_larger_than_its_blocks(kernel, geometry, channels_last):
    for fan_in in (1, 40):
        node = random_node(
            QLINEAR_CONV, 1, geometry=geometry, fan_in=fan_in, channels_last=channels_last
        )
        assert_exact(node, geometry, kernel, 2)


@every_kernel
def test_a_kernel_computes_images_wider_than_its_blocks(kernel):
    geometry = ConvGeometry(2, 3, (1, 3), strides=(1, 2), pads=(0, 3, 0, 4))
    node = random_node(QLINEAR_CONV, 2, geometry=geometry, residual=False, channels_last=0)
    x = np.random.default_rng(0).integers(0, 100, (1, 2, 2, 301)).astype(node.x.dtype)
    assert_exact(node.having(X=x), geometry, kernel)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("y_type", [np.uint8, np.int8])
@every_kernel
def test_a_kernel_computes_the_ends_of_blocks_of_pixels(kernel, y_type, residual):
    # Blocks of 64 pixels and tiles of 8; 40 filters are a group of 32 and a part of one. Sums that
    # are scaled beyond int32 end at the bounds as well.
    geometry = ConvGeometry(48, 40, (1, 1))
    for pixels in (9, 63, 64, 65, 70, 131):
        node = random_node(
            QLINEAR_CONV,
            pixels,
            geometry=geometry,
            images=(1, 1, pixels),
            fan_in=9,
            y_type=y_type,
            residual=residual,
            channels_last=1,
        )
        assert_exact(node, geometry, kernel)
        steep = node.having(values_scale=node.arrays["values_scale"] * np.float32(1e9))
        assert_exact(steep, geometry, kernel)


@st.composite
def convolutions(draw: st.DrawFn) -> Node:
    """A node of any geometry, and of images that its window fits."""
    axes = draw(st.integers(1, 2))
    few = st.integers(1, 3)
    kernel = draw(st.tuples(*[st.integers(1, 5)] * axes))
    dilations = draw(st.tuples(*[few] * axes))
    group = draw(st.sampled_from([1, 1, 2, 3, 16]))
    geometry = ConvGeometry(
        group * draw(st.integers(1, 200 // group)),
        group * draw(st.integers(1, 80 // group)),
        kernel,
        strides=draw(st.tuples(*[few] * axes)),
        pads=draw(st.tuples(*[st.integers(0, 3)] * (2 * axes))),
        dilations=dilations,
        group=group,
    )
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    widest = draw(st.sampled_from([3, 12, 40]))
    space = [draw(st.integers(max(1, n - 2), n + widest)) for n in reach]
    space = [
        max(size, n - geometry.pads[i] - geometry.pads[i + axes])
        for i, (size, n) in enumerate(zip(space, reach, strict=True))
    ]
    node = random_node(
        QLINEAR_CONV,
        draw(st.integers(0, 2**32 - 1)),
        geometry=geometry,
        images=(draw(few), *space),
        fan_in=draw(st.integers(1, 60)),
    )
    limits = np.iinfo(node.x.dtype)
    zero_point = draw(st.sampled_from([limits.min, limits.max, limits.min + 77]))
    return node.having(x_zero_point=np.asarray(zero_point, node.x.dtype))


def geometry_of(node: Node) -> ConvGeometry:
    named = {**node.attributes}
    for name in ("clip_min", "clip_max", "channels_last"):
        del named[name]
    return ConvGeometry(**named)


@every_kernel
@settings(max_examples=60, deadline=None)
@given(node=convolutions(), threads=st.sampled_from([1, 2, 5, 64]))
def test_a_kernel_computes_any_geometry(kernel, node, threads):
    geometry = geometry_of(node)
    wanted = run_kernel(node, geometry, "plain")
    np.testing.assert_array_equal(run_kernel(node, geometry, kernel, threads), wanted)


@every_kernel
@settings(max_examples=10, deadline=None)
@given(node=convolutions())
def test_the_order_of_axes_does_not_change_a_value(kernel, node):
    geometry = geometry_of(node)
    last = node.attributes["channels_last"]

    def moved(array: np.ndarray) -> np.ndarray:
        if array.ndim < 3:
            return array
        return np.moveaxis(array, -1, 1) if last else np.moveaxis(array, 1, -1)

    other = node.having(
        channels_last=1 - last,
        X=np.ascontiguousarray(moved(node.x)),
        residual=np.ascontiguousarray(moved(node.arrays["residual"])),
    )
    np.testing.assert_array_equal(
        run_kernel(other, geometry, kernel), moved(run_kernel(node, geometry, kernel))
    )


@pytest.mark.parametrize("channels_last", [0, 1])
@every_kernel
def test_the_result_is_equal_for_any_number_of_threads(kernel, channels_last):
    geometry = ConvGeometry(40, 200, (3, 3), pads=(1, 1, 1, 1))
    node = random_node(
        QLINEAR_CONV,
        5,
        geometry=geometry,
        images=(2, 23, 19),
        fan_in=50,
        channels_last=channels_last,
    )
    wanted = run_kernel(node, geometry, "plain")
    for threads in (1, 2, 3, 7, 16, 64):
        np.testing.assert_array_equal(run_kernel(node, geometry, kernel, threads), wanted)


@pytest.mark.parametrize("channels_last", [0, 1])
@every_kernel
def test_filters_that_share_a_part_of_the_channels_are_computed(kernel, channels_last):
    # Window kernels take them in another order than the outputs.
    geometry = ConvGeometry(3000, 400, (1, 1))
    node = random_node(
        QLINEAR_CONV,
        6,
        geometry=geometry,
        images=(1, 3, 5),
        fan_in=100,
        residual=True,
        channels_last=channels_last,
    )
    rng = np.random.default_rng(6)
    shape = node.arrays["indices"].shape
    starts = rng.integers(0, 2800, (shape[0], 1))
    indices = starts + np.sort(
        rng.permuted(np.tile(np.arange(200), (shape[0], 1)), axis=1)[:, :100]
    )
    node = node.having(
        indices=indices.astype(node.arrays["indices"].dtype),
        values=rng.integers(-127, 128, shape).astype(np.int8),
    )
    assert_exact(node, geometry, kernel, 2)


def test_a_window_too_large_to_be_copied_has_a_kernel():
    geometry = ConvGeometry(200, 3, (3,), pads=(6000, 6000), dilations=(6000,))
    node = random_node(
        QLINEAR_CONV, 7, geometry=geometry, images=(1, 9), residual=False, channels_last=1
    )
    weights = {name: node.arrays[name] for name in ("values", "indices", "rows")}
    packed = _native.PackedQuantizedConv(**weights, **two_axes(geometry))
    assert [info.kernel for info in packed.info()] == ["i8-conv-taps-scalar"]
    assert_exact(node, geometry, "i8-conv-taps-scalar")
    for kernel in set(KERNELS) - {"i8-conv-taps-scalar"}:
        with pytest.raises(ValueError, match="too large for this kernel"):
            _native.PackedQuantizedConv(**weights, **two_axes(geometry), kernel=kernel)


def test_layers_that_differ_in_scales_alone_share_a_layout():
    geometry = GEOMETRIES[0]
    node = random_node(QLINEAR_CONV, 3, geometry=geometry)
    weights = {name: node.arrays[name] for name in ("values", "indices", "rows")}
    first = _native.PackedQuantizedConv(**weights, **two_axes(geometry))
    second = _native.PackedQuantizedConv(**weights, **two_axes(geometry))
    assert [info.shared for info in (*first.info(), *second.info())] == [False, True]
    assert first.holds(**weights)
    other = weights["values"].copy()
    other[0, 0] += 1
    assert not first.holds(**{**weights, "values": other})
    changed = {**two_axes(geometry), "pads": (1, 1, 1, 1)}
    third = _native.PackedQuantizedConv(**weights, **changed)
    assert [info.shared for info in third.info()] == [False]


def test_a_plan_covers_all_channels():
    geometry = GEOMETRIES[0]
    node = random_node(QLINEAR_CONV, 3, geometry=geometry)
    weights = {name: node.arrays[name] for name in ("values", "indices", "rows")}
    packed = _native.PackedQuantizedConv(**weights, **two_axes(geometry))
    plan = packed.plan((2, 32, 32), 4)
    assert plan.threads == 4
    assert packed.plan((2, 32, 32), 4, (1e6, 1e6)).threads == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x": np.zeros((1, 6, 9, 9), np.float32)}, "x is float32, it must be uint8 or int8"),
        ({"x": np.zeros((1, 5, 9, 9), np.uint8)}, r"x has the shape \[1, 5, 9, 9\], in_channels"),
        ({"x_zero_point": 256}, "x_zero_point is 256, it must be 0 to 255"),
        ({"multipliers": np.ones(7, np.float32)}, "multipliers has"),
        ({"y_type": "int16"}, "y_type is int16"),
        ({"residual": np.zeros((1, 8, 3, 3), np.uint8)}, "residual has the shape"),
    ],
)
def test_the_binding_refuses_arrays_that_do_not_fit(changes, sentence):
    node = random_node(QLINEAR_CONV, 4, geometry=GEOMETRIES[0])
    weights = {name: node.arrays[name] for name in ("values", "indices", "rows")}
    packed = _native.PackedQuantizedConv(**weights, **two_axes(GEOMETRIES[0]))
    given_arrays = {
        "x": np.zeros((1, 6, 9, 9), np.uint8),
        "multipliers": np.ones(8, np.float32),
        "y_type": "uint8",
    }
    with pytest.raises(ValueError, match=sentence):
        packed.run(**{**given_arrays, **changes})
