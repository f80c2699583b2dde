"""ConvGeometry, and the condensed weight of a convolution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fanin.export import CondensedWeight
from fanin.ort_ops.format.conv_geometry import ConvGeometry


def test_omitted_attributes_get_defaults():
    geometry = ConvGeometry(4, 6, (3, 5))
    assert geometry.strides == geometry.dilations == (1, 1)
    assert geometry.pads == (0, 0, 0, 0)
    assert geometry.group == 1
    assert ConvGeometry(4, 6, (3,)).pads == (0, 0)


@pytest.mark.parametrize("seed", range(40))
def test_output_sizes_are_those_of_torch(seed: int):
    rng = np.random.default_rng(seed)
    kernel, stride, dilation = (tuple(map(int, rng.integers(1, 4, 2))) for _ in range(3))
    pad = tuple(map(int, rng.integers(0, 3, 2)))
    sizes = tuple(map(int, rng.integers(9, 15, 2)))
    geometry = ConvGeometry(1, 1, kernel, stride, pad * 2, dilation)
    y = torch.nn.functional.conv2d(
        torch.zeros(1, 1, *sizes), torch.zeros(1, 1, *kernel), None, stride, pad, dilation
    )
    assert geometry.output_sizes(sizes) == tuple(y.shape[2:])
    for axis in range(2):
        kept = all(geometry.output_size(axis, size) == size for size in (7, 8, 20))
        assert geometry.keeps_size(axis) == kept


def test_the_weight_is_flattened_channel_first():
    geometry = ConvGeometry(4, 3, (2, 3), group=1)
    weight = np.zeros(geometry.weight_shape, np.float32)
    weight[1, 2, 1, 0] = 5
    weight[1, 3, 0, 2] = 7
    condensed = CondensedWeight.from_dense(weight)
    geometry.check(condensed)
    assert condensed.rows.tolist() == [1]
    assert condensed.indices.tolist() == [[2 * 6 + 3, 3 * 6 + 2]]
    assert condensed.values.tolist() == [[5, 7]]


@pytest.mark.parametrize(
    "geometry",
    [
        ConvGeometry(6, 8, (3, 3), group=2),
        ConvGeometry(6, 12, (3, 3), group=6),
        ConvGeometry(5, 4, (7,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_mask", [False, True])
def test_from_dense_and_to_dense_keep_the_weight_of_a_convolution(geometry, with_mask: bool):
    rng = np.random.default_rng(0)
    mask = rng.random(geometry.weight_shape) < 0.3
    mask[2] = False
    weight = np.where(mask, rng.standard_normal(mask.shape), 0).astype(np.float32)
    bias = rng.standard_normal(geometry.out_channels).astype(np.float32)
    condensed = CondensedWeight.from_dense(weight, bias, mask if with_mask else None)
    geometry.check(condensed)
    assert condensed.in_features == geometry.in_features
    assert 2 not in condensed.rows
    dense = condensed.to_dense().reshape(geometry.weight_shape)
    np.testing.assert_array_equal(dense, weight)
    np.testing.assert_array_equal(condensed.bias, bias)
    assert condensed.density == mask.mean()


def test_a_weight_of_another_convolution_is_refused():
    weight = CondensedWeight.from_dense(np.ones((4, 2, 3, 3), np.float32))
    ConvGeometry(4, 4, (3, 3), group=2).check(weight)
    with pytest.raises(
        ValueError, match=r"the weight is \[4, 18\].*\[4, 4, 3, 3\] needs \[4, 36\]"
    ):
        ConvGeometry(4, 4, (3, 3)).check(weight)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kernel_shape": ()}, r"kernel_shape is \[\], it must have one or two sizes"),
        ({"kernel_shape": (1, 1, 1)}, "it must have one or two sizes"),
        ({"kernel_shape": (0, 1)}, r"kernel_shape\[0\] is 0"),
        ({"kernel_shape": (1 << 16, 1 << 16)}, r"in_channels / group \* kernel_shape is \d+"),
        ({"strides": (1, 0)}, r"strides\[1\] is 0"),
        ({"strides": (1,)}, r"strides is \[1\], it must have 2 numbers"),
        ({"pads": (0, 0, 0, -1)}, r"pads\[3\] is -1, it must be 0 to 2147483647"),
        ({"dilations": (1, 1 << 31)}, r"dilations\[1\] is 2147483648"),
        ({"group": 0}, "group is 0"),
        ({"group": 3}, "in_channels is 4, it must be a multiple of group, which is 3"),
        ({"out_channels": 0}, "out_channels is 0"),
        ({"group": 4, "out_channels": 6}, "out_channels is 6, it must be a multiple of group"),
    ],
    ids=str,
)
def test_attributes_that_the_op_refuses_are_refused_by_name(changes, sentence: str):
    sound = {"in_channels": 4, "out_channels": 8, "kernel_shape": (3, 3)}
    with pytest.raises(ValueError, match=sentence):
        ConvGeometry(**{**sound, **changes})


def test_a_non_integer_size_is_refused():
    with pytest.raises(TypeError):
        ConvGeometry(4, 8, (3.0, 3))
