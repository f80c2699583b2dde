"""Convolutions by the CUDA kernel that expands tiles, emulated on the host: see docs/cuda.md."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fanin.ort_ops import _cuda_emulation
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._conv_layer import ConvLayer
from ._cuda_backends import kernel_of
from ._cuda_convs import arguments, expect
from ._cuda_emulated import SHARED_BYTES, run_conv, unaligned
from ._cuda_layers import TF32_PRODUCT, TYPES
from ._random_convs import OPEN_GATE

KINDS = ["float16", "bfloat16", "float32"]  # float32 is computed in TF32
every_kind = pytest.mark.parametrize("kind", KINDS)
SAME = (1, 1, 1, 1)
TILES = {32, 64, 128}


def run(layer, x, *epilogue, layout="expand", **more):
    kernel = layout and kernel_of(layout, x.dtype.name, "CondensedConv")
    return run_conv(layer, x, *epilogue, conv_kernel=kernel, **more)


def assert_close(y, layer, x, *epilogue):
    want, allowed = expect(layer, x, *epilogue, tensor_cores=x.dtype == np.float32)
    assert (np.abs(y.astype(np.float64) - want) <= allowed).all()


def random_case(rng, kind):
    """Mostly 1 x 1 and 3 x 3; strides, pads, dilations, groups, and few or many pixels."""
    side = int(rng.choice([1, 1, 3, 3, 2]))
    group = int(rng.choice([1, 1, 2, 3]))
    channels = group * int(rng.choice([rng.integers(1, 9), rng.integers(1, 180 // side)]))
    outputs = group * int(rng.choice([rng.integers(1, 20), rng.integers(1, 70)]))
    plain = bool(rng.random() < (0.7 if side == 1 else 0.3))  # stride 1 without pads
    geometry = ConvGeometry(
        channels,
        outputs,
        (side, int(rng.choice([side, side, 1]))),
        (1, 1) if plain else tuple(int(n) for n in rng.integers(1, 3, 2)),
        (0, 0, 0, 0) if plain else tuple(int(n) for n in rng.integers(0, 3, 4)),
        (1, 1) if plain else tuple(int(n) for n in rng.integers(1, 3, 2)),
        group,
    )
    window = [
        (k - 1) * d + 1 for k, d in zip(geometry.kernel_shape, geometry.dilations, strict=True)
    ]
    sizes = [w + int(n) for w, n in zip(window, rng.integers(0, 9, 2), strict=True)]
    if side == 1 and rng.random() < 0.6:
        sizes = [4, int(rng.choice([4, 8]))]  # 16 bytes of pixels lie in one image
    batch = int(rng.integers(1, 4))
    fan_in = int(rng.integers(1, max(2, geometry.in_features // int(rng.choice([1, 5, 20])))))
    layer = ConvLayer.random(
        geometry,
        min(fan_in, geometry.in_features),
        active=int(rng.integers(0, outputs + 1)),
        padded=bool(rng.random() < 0.3),
        value_type=TYPES[kind],
        seed=int(rng.integers(1 << 62)),
    )
    x = layer.x(batch, *sizes, seed=int(rng.integers(1 << 62)), dtype=TYPES[kind])
    if rng.random() < 0.2:
        x = unaligned(x)
    residual = None
    if rng.random() < 0.5:
        residual = rng.standard_normal(layer.y_shape(x)).astype(TYPES[kind])
    clip = (-0.5, 1.5) if rng.random() < 0.4 else (-np.inf, np.inf)
    gate = (0.25, 0.5) if rng.random() < 0.3 else OPEN_GATE
    device = {
        "multiprocessors": int(rng.choice([1, 2, 5, 132])),
        "shared_bytes": int(rng.choice(SHARED_BYTES)),
        "cluster": int(rng.choice([1, 2, 8])),
    }
    return layer, x, residual, clip, gate, device


def check_random_convolutions(seed, kind, count):
    """Compare with float64; returns the sorts of launches that there were."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    seen = {name: set() for name in ("variant", "vector_x", "parts", "cluster", "stages", "warps")}
    for _ in range(count):
        layer, x, residual, clip, gate, device = random_case(rng, kind)
        y, report = run(layer, x, residual, *clip, gate, **device)
        assert_close(y, layer, x, residual, *clip, gate)
        for name, values in seen.items():
            values.add(report[name])
    return seen


@every_kind
def test_equals_the_float64_reference_over_random_convolutions(kind):
    seen = check_random_convolutions(0, kind, 34)
    assert len(seen["variant"]) >= 2
    assert seen["vector_x"] == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
@every_kind
def test_equals_the_float64_reference_over_many_random_convolutions(kind, seed):
    seen = check_random_convolutions(seed, kind, 180)
    assert seen["variant"] == TILES
    assert seen["parts"] >= {1, 2, 4}
    assert seen["cluster"] >= {1, 2}
    assert seen["warps"] == {4, 8}


@every_kind
@pytest.mark.parametrize("pixels", [32, 49, 64, 196])
def test_pixels_around_a_tile_and_of_several_images(kind, pixels):
    side = {32: (4, 8), 49: (7, 7), 64: (8, 8), 196: (14, 14)}[pixels]
    for geometry in (ConvGeometry(20, 17, (1, 1)), ConvGeometry(8, 17, (3, 3), pads=SAME)):
        layer = ConvLayer.random(geometry, 9, value_type=TYPES[kind])
        x = layer.x(3, *side, dtype=TYPES[kind])
        y, report = run(layer, x)
        assert_close(y, layer, x)
        whole = 16 // x.dtype.itemsize
        assert report["vector_x"] == (geometry.kernel_shape == (1, 1) and pixels % whole == 0)


@every_kind
@pytest.mark.parametrize("group", [1, 2, 4])
def test_every_group_has_its_own_channels(kind, group):
    layer = ConvLayer.random(
        ConvGeometry(8, 40, (3, 3), pads=SAME, group=group), 12, active=33, value_type=TYPES[kind]
    )
    x = layer.x(2, 6, 7, dtype=TYPES[kind])
    y, _ = run(layer, x)
    assert_close(y, layer, x)


@every_kind
def test_a_line_has_one_axis(kind):
    layer = ConvLayer.random(ConvGeometry(5, 20, (3,), (2,), (1, 1)), 6, value_type=TYPES[kind])
    x = layer.x(2, 33, dtype=TYPES[kind])
    y, _ = run(layer, x)
    assert_close(y, layer, x)


@every_kind
@pytest.mark.parametrize("device", [{}, {"cluster": 1, "shared_bytes": 101376}], ids=str)
def test_an_image_has_the_same_bits_in_every_batch(kind, device):
    device = {"multiprocessors": 2, **device}
    layer = ConvLayer.random(ConvGeometry(64, 40, (3, 3), pads=SAME), 58, value_type=TYPES[kind])
    x = layer.x(7, 5, 5, dtype=TYPES[kind])
    alone, report = run(layer, x[:1], **device)
    assert report["parts"] == (8 if kind == "float32" and "cluster" not in device else 4)
    tiles = {report["variant"]}
    for batch in (2, 7):
        y, report = run(layer, x[:batch], **device)
        assert y[:1].tobytes() == alone.tobytes()
        tiles.add(report["variant"])
    assert len(tiles) > 1 or "cluster" in device  # one block's memory holds few pixels of all parts


@every_kind
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_nan_and_inf_reach_exactly_the_outputs_with_a_weight_there(kind, special):
    geometry = ConvGeometry(6, 36, (3, 3), strides=(1, 2), pads=(1, 0, 2, 1), group=2)
    layer = ConvLayer.random(geometry, 9, active=30, padded=True, value_type=TYPES[kind])
    for at in [(0, 0, 0, 0), (1, 5, 4, 6), (1, 2, 2, 3)]:
        x = layer.x(2, 5, 7, dtype=TYPES[kind])
        x[at] = special
        y, _ = run(layer, x)
        finite = np.isfinite(layer.expected(x))
        assert np.array_equal(np.isfinite(y.astype(np.float32)), finite)
        want, allowed = expect(
            layer, np.where(np.isfinite(x), x, 0).astype(x.dtype), tensor_cores=kind == "float32"
        )
        close = np.abs(y.astype(np.float64) - want) <= allowed
        assert close[finite].all()


@every_kind
def test_layers_without_stored_weights_and_empty_images(kind):
    layer = ConvLayer.random(ConvGeometry(6, 10, (2, 2), pads=SAME, group=2), 3, active=0)
    x = layer.x(2, 5, 6, dtype=TYPES[kind])
    residual = np.random.default_rng(1).standard_normal(layer.y_shape(x)).astype(TYPES[kind])
    y, _ = run(layer, x, residual, 0.0)
    want = layer.bias[:, None, None] + residual.astype(np.float32)
    assert np.array_equal(y, np.maximum(want, 0).astype(TYPES[kind]))
    full = ConvLayer.random(layer.geometry, 7, value_type=TYPES[kind])
    y, _ = run(full, np.zeros((2, 6, 0, 6), TYPES[kind]))
    bias = full.bias.astype(TYPES[kind])[:, None, None]
    assert np.array_equal(y, np.broadcast_to(bias, y.shape))


def test_the_error_of_tf32_is_that_of_its_operands():
    layer = ConvLayer.random(ConvGeometry(64, 32, (1, 1)), 32)
    x = layer.x(1, 8, 8)
    y, _ = run(layer, x)
    strict, _ = run(layer, x, layout="direct")
    error = np.abs(y - layer.expected(x)) / layer.magnitude(x)
    assert 2.0**-16 < error.max() < TF32_PRODUCT
    assert np.abs(strict - layer.expected(x)).max() < 2.0**-18


# Of ResNet-50: a layer of 1 x 1, one of 3 x 3, and the first.
WIDE = {"in_channels": 256, "out_channels": 64, "group": 1, "kernel": (1, 1), "weights": 1638}
NINE = {**WIDE, "in_channels": 64, "kernel": (3, 3), "weights": 3686}
FIRST = {**WIDE, "in_channels": 3, "kernel": (7, 7), "weights": 940}


def selected(layer, **changes):
    settings = {"activations": "bfloat16", "values_fit": True, "unproven": True, "tf32": True}
    return _cuda_emulation.select_conv_kernel(**{**settings, **layer, **changes})


def test_the_choice_for_a_convolution():
    names = {"float32": ("tf32", "f32"), "float16": ("f16", "f16"), "bfloat16": ("bf16", "bf16")}
    for layer, (kind, (dtype, direct)) in itertools.product((WIDE, NINE), names.items()):
        taken, other = f"{dtype}-conv-expand-cuda", f"{direct}-conv-direct-cuda"
        assert selected(layer, activations=kind) == taken
        assert selected(layer, activations=kind, unproven=False) == other
        assert selected(layer, activations=kind, values_fit=False) == other
        assert selected(layer, activations=kind, capability=75) == other
        assert selected(FIRST, activations=kind) == other
        assert selected(layer, activations=kind, tf32=False) == (
            other if kind == "float32" else taken
        )
    direct = "bf16-conv-direct-cuda"
    assert selected(NINE, kernel=(3, 1), weights=1228) == direct
    assert selected(NINE, group=64, weights=57) == direct  # a row for each tile of 16
    assert selected(NINE, weights=64 * 5) == direct  # 1 %
    assert selected(NINE, group=4, weights=921) == "bf16-conv-expand-cuda"


def test_what_it_cannot_compute_is_refused_with_the_reason():
    layer = ConvLayer.random(ConvGeometry(4, 4, (1, 1)), 2, value_type=np.float16)
    x = layer.x(1, 2, 2, dtype=np.float16)
    with pytest.raises(ValueError, match=r"needs a GPU of compute capability 8\.0.*has 7\.5"):
        run(layer, x, capability=75)
    far = 1 << 29
    geometry = ConvGeometry(1, 1, (1, 1), strides=(far, 1))
    with pytest.raises(ValueError, match=r"strides, pads and windows of up to 268435456 pixels"):
        run(ConvLayer.random(geometry, 1, value_type=np.float16), x[:, :1])
    with pytest.raises(ValueError, match=r"no float16 numbers: export the model with --precision"):
        run(ConvLayer.random(layer.geometry, 2), x)
    with pytest.raises(ValueError, match=r"table of CondensedConv has no f16-conv-expand-cuda for"):
        _cuda_emulation.run_conv(
            **arguments(layer),
            x=x.astype(np.float32),
            activations="float32",
            residual=None,
            y=np.zeros((1, 4, 2, 2), np.float32),
            conv_kernel="f16-conv-expand-cuda",
        )


def test_dispatch_takes_it_where_it_pays(monkeypatch):
    layer = ConvLayer.random(ConvGeometry(64, 32, (1, 1)), 7)
    x = layer.x(1, 4, 4)
    for asked, allowed, layout in (
        ("off", True, "direct"),
        ("on", True, "expand"),
        ("on", False, "direct"),
    ):
        monkeypatch.setenv("FANIN_CUDA_UNPROVEN", asked)
        _, report = run(layer, x, layout=None, tf32=allowed)
        assert report["kernel"] == kernel_of(layout, "float32", "CondensedConv")
