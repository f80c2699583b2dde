"""The convolution's CUDA thread program, emulated on the host; see test_cuda_emulation.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._conv_layer import ConvLayer
from ._cuda_convs import expect
from ._cuda_emulated import run_conv
from ._cuda_layers import TYPES
from ._random_conv_nodes import draw_conv
from ._random_convs import OPEN_GATE

every_type = pytest.mark.parametrize("kind", TYPES)
GEOMETRY = ConvGeometry(6, 10, (3, 3), strides=(1, 2), pads=(1, 0, 2, 1), group=2)


def assert_close(y, layer, x, residual=None, clip_min=-np.inf, clip_max=np.inf, gate=OPEN_GATE):
    want, allowed = expect(layer, x, residual, clip_min, clip_max, gate)
    assert (np.abs(y.astype(np.float64) - want) <= allowed).all()


@every_type
def test_equals_the_float64_reference_over_random_convolutions(kind):
    seed = 100 + list(TYPES).index(kind)
    rng = np.random.default_rng(seed)
    checked = 0
    for number in range(150):
        case = draw_conv(seed, number)
        if not np.isfinite(case.x).all() or case.x.size > 20_000:
            continue
        x = case.x.astype(TYPES[kind])
        residual = None if case.residual is None else case.residual.astype(TYPES[kind])
        blocks = int(rng.choice([0, 1, 3]))
        y, _ = run_conv(case.layer, x, residual, *case.clip, blocks=blocks, gate=case.gate)
        assert_close(y, case.layer, x, residual, *case.clip, case.gate)
        checked += 1
    assert checked > 80


@every_type
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_nan_and_inf_reach_exactly_the_outputs_with_a_weight_there(kind, special):
    layer = ConvLayer.random(GEOMETRY, 9, active=8, padded=True)
    for at in [(0, 0, 0, 0), (1, 5, 4, 6), (1, 2, 2, 3)]:
        x = layer.x(2, 5, 7, dtype=TYPES[kind])
        x[at] = special
        y, _ = run_conv(layer, x)
        want = layer.expected(x)
        assert np.array_equal(np.isfinite(y.astype(np.float32)), np.isfinite(want))


def test_layers_without_stored_weights():
    layer = ConvLayer.random(GEOMETRY, 3, active=0)
    x = layer.x(2, 5, 6)
    residual = np.random.default_rng(1).standard_normal(layer.y_shape(x)).astype(np.float32)
    y, _ = run_conv(layer, x, residual, 0.0)
    assert np.array_equal(y, np.maximum(layer.bias[:, None, None] + residual, 0))


@pytest.mark.parametrize("size", [(0, 0), (0, 6), (5, 0)])
def test_an_empty_image_gives_the_bias(size):
    layer = ConvLayer.random(ConvGeometry(6, 10, (2, 2), pads=(1, 1, 1, 1), group=2), 7)
    y, _ = run_conv(layer, np.zeros((2, 6, *size), np.float32))
    assert np.array_equal(y, np.broadcast_to(layer.bias[:, None, None], y.shape))


def test_the_grid_has_a_warp_for_each_32_pixels_of_a_filter():
    layer = ConvLayer.random(ConvGeometry(4, 6, (1, 1)), 2)
    for batch, size, warps in ((1, 4, 6), (2, 4, 6), (3, 4, 12), (1, 9, 18)):
        y, report = run_conv(layer, layer.x(batch, size, size))
        assert report["grid"] == (-(-warps // report["warps"]), 1)
        assert np.isfinite(y).all()


def test_padding_of_rows_is_not_stored():
    layer = ConvLayer.random(ConvGeometry(40, 4, (1, 1)), 20)
    x = layer.x(1, 2, 2)
    _, full = run_conv(layer, x)
    values, indices = layer.values.copy(), layer.indices.copy()
    values[:, 1:], indices[:, 1:] = 0, indices[:, :1]
    _, short = run_conv(replace(layer, values=values, indices=indices), x)
    assert full["packed_bytes"] - short["packed_bytes"] == 4 * 19 * 16 // 256 * 256


def test_windows_beyond_32_bits_are_refused():
    far = 2**31 - 1
    geometry = ConvGeometry(
        1, 1, (3, 1), strides=(far, 1), pads=(far, 0, far, 0), dilations=(2**30 + 1, 1)
    )
    layer = ConvLayer.random(geometry, 3)
    with pytest.raises(Exception, match=r"pixels under its window.*count up to 2147483647"):
        run_conv(layer, np.zeros((1, 1, 5, 1), np.float32))
