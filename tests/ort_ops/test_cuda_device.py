"""The CUDA kernels on a GPU; small cases also run in the emulation, by the same calls.

tools/gpu_check.sh also runs the small cases under compute-sanitizer.
"""

from __future__ import annotations

import inspect
import itertools

import numpy as np
import pytest

from fanin.deploy.bench.engines.cuda_binding import EmulatedGemm, open_binding
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._conv_layer import ConvLayer
from ._cuda_backends import EmulatedConv, Emulation, kernel_of, open_device
from ._cuda_convs import arguments, expect, images
from ._cuda_layers import TYPES, Layer, bits, poisoned
from ._random_convs import OPEN_GATE
from .test_binding_signatures import signatures

LAYOUTS = ("stream", "panel", "expand", "delta")
# in_features, out_features, fan_in, active: incomplete tiles, and more columns than 16 bits.
SMALL = [(301, 45, 31, 40), (128, 16, 20, 16), (1024, 33, 100, 33), (70_000, 9, 200, 8)]
# The benchmark's layers, one with more than 65,536 columns, and the smallest one.
LARGE = [
    (3072, 768, 307, 768),
    (768, 3072, 77, 3072),
    (3072, 768, 307, 538),
    (1000, 1001, 101, 900),
    (65536, 64, 2000, 60),
    (65537, 64, 2000, 60),
    (200_000, 33, 1500, 33),
    (1, 1, 1, 1),
    (129, 5, 129, 5),
    (4096, 4096, 41, 4000),
]
SAME = (1, 1, 1, 1)
# Geometry, size of X without its channels, fan-in, active filters.
SMALL_CONVS = {
    "grouped": (ConvGeometry(8, 12, (3, 2), (1, 2), (1, 0, 2, 1), group=4), (2, 9, 8), 5, 10),
    "depthwise": (ConvGeometry(6, 12, (3, 3), (2, 2), (0, 0, 1, 1), group=6), (3, 7, 9), 4, 12),
    "dilated": (ConvGeometry(4, 5, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2)), (1, 6, 7), 9, 5),
    "line": (ConvGeometry(5, 7, (4,), (2,), (1, 3), (2,)), (2, 33), 6, 7),
    "nothing stored": (ConvGeometry(3, 4, (2, 2)), (1, 5, 5), 3, 0),
    "padding alone": (ConvGeometry(2, 3, (2, 2), pads=(4, 0, 0, 5)), (1, 3, 3), 4, 3),
}
# Some of ResNet-50 at 90 %.
LARGE_CONVS = {
    "1x1": (ConvGeometry(256, 64, (1, 1)), (1, 56, 56), 26, 64),
    "3x3": (ConvGeometry(64, 64, (3, 3), pads=SAME), (1, 56, 56), 58, 60),
    "3x3, stride 2": (ConvGeometry(128, 128, (3, 3), (2, 2), SAME), (2, 56, 56), 115, 128),
    "7x7, few pixels": (ConvGeometry(512, 512, (3, 3), pads=SAME), (1, 7, 7), 461, 500),
    "first": (ConvGeometry(3, 64, (7, 7), (2, 2), (3, 3, 3, 3)), (1, 64, 64), 15, 64),
    "batch": (ConvGeometry(64, 32, (3, 3), pads=SAME), (8, 28, 28), 58, 32),
}
every_type = pytest.mark.parametrize("kind", TYPES)
KERNELS = [(layout, kind) for layout in LAYOUTS for kind in TYPES]
KERNELS.remove(("expand", "float32"))
every_kernel = pytest.mark.parametrize(("layout", "kind"), KERNELS)
# One for each instance of the expand kernel.
TILES = [8, 16, 32, 64, 128]


def every_kernel_on(shapes):
    """All kernels with all shapes, except that the delta kernel keeps x in shared memory."""
    cases = [
        (layout, kind, shape)
        for (layout, kind), shape in itertools.product(KERNELS, shapes)
        if layout != "delta" or shape[0] <= 20_000
    ]
    return pytest.mark.parametrize(("layout", "kind", "shape"), cases, ids=str)


@pytest.fixture(params=["emulated", "device"])
def cuda(request):
    return Emulation if request.param == "emulated" else open_device()


@pytest.fixture
def device():
    return open_device()


def epilogue(rng, shape, kind):
    """With and without residual, with and without clip, and bytes past an aligned address."""
    residual = rng.standard_normal(shape).astype(TYPES[kind]) if rng.random() < 0.5 else None
    clip = (-1.0, 2.0) if rng.random() < 0.5 else (-np.inf, np.inf)
    return residual, clip, int(rng.choice([0, 4, 8, 16]))


def check_gemm(cuda, rng, shape, layout, kind, batch, shift=None, values=None):
    if values is None:
        # Tensor cores take both operands in the same type.
        values = kind if layout == "expand" else str(rng.choice(list(TYPES)))
    layer = Layer.random(rng, *shape, values, padded=rng.random() < 0.3)
    x = rng.standard_normal((batch, shape[0])).astype(TYPES[kind])
    residual, clip, drawn = epilogue(rng, (batch, shape[1]), kind)
    shift = drawn if shift is None else shift
    packed = cuda.PackedGemm(
        **layer.arrays(),
        in_features=layer.in_features,
        activations=kind,
        kernel=kernel_of(layout, kind),
    )

    def run():
        y = poisoned(batch, layer.out_features, kind)
        packed.run_arrays(
            bits(x),
            y=bits(y),
            residual=None if residual is None else bits(residual),
            clip_min=clip[0],
            clip_max=clip[1],
            shift=shift,
        )
        return y

    y = run()
    want, allowed = layer.expect(x, residual, *clip, tensor_cores=layout == "expand")
    assert (np.abs(y.astype(np.float64) - want) <= allowed).all()
    assert run().tobytes() == y.tobytes()


def check_conv(cuda, rng, case, kind):
    geometry, size, fan_in, active = case
    layer = ConvLayer.random(
        geometry,
        fan_in,
        active=active,
        padded=bool(rng.random() < 0.3),
        value_type=TYPES[str(rng.choice(list(TYPES)))],
        seed=int(rng.integers(1 << 62)),
    )
    x = layer.x(*size, seed=int(rng.integers(1 << 62)), dtype=TYPES[kind])
    residual, clip, shift = epilogue(rng, layer.y_shape(x), kind)
    gate = (0.25, 0.5) if rng.random() < 0.5 else OPEN_GATE
    packed = cuda.PackedConv(**arguments(layer), activations=kind)

    def run():
        y = np.full(layer.y_shape(x), np.nan, x.dtype)
        packed.run_arrays(
            images(x),
            y=images(y),
            residual=None if residual is None else images(residual),
            clip_min=clip[0],
            clip_max=clip[1],
            gate_scale=gate[0],
            gate_shift=gate[1],
            shift=shift,
        )
        return y

    y = run()
    want, allowed = expect(layer, x, residual, *clip, gate)
    assert (np.abs(y.astype(np.float64) - want) <= allowed).all()
    assert run().tobytes() == y.tobytes()


@every_kernel_on(SMALL)
def test_small_layers_equal_the_float64_reference(cuda, layout, kind, shape):
    rng = np.random.default_rng([*shape, LAYOUTS.index(layout), list(TYPES).index(kind)])
    # Every column takes the emulation of tensor cores as long as of all others.
    slow = cuda is Emulation and layout == "expand" and shape[0] > 10_000
    for batch in (3,) if slow else (1, 3, 20):
        check_gemm(cuda, rng, shape, layout, kind, batch)


@every_type
@pytest.mark.parametrize("name", SMALL_CONVS)
def test_small_convolutions_equal_the_float64_reference(cuda, name, kind):
    rng = np.random.default_rng([list(SMALL_CONVS).index(name), list(TYPES).index(kind)])
    for _ in range(2):
        check_conv(cuda, rng, SMALL_CONVS[name], kind)


@every_kernel_on(LARGE)
def test_large_layers_equal_the_float64_reference(device, layout, kind, shape):
    rng = np.random.default_rng([*shape, LAYOUTS.index(layout), list(TYPES).index(kind)])
    for batch in (1, *rng.choice([2, 3, 5, 8, 16, 33, 64, 100], 3, replace=False).tolist()):
        check_gemm(device, rng, shape, layout, kind, batch)


@pytest.mark.parametrize("shift", [0, 2], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_every_instance_of_the_expand_kernel(device, kind, tile, shift):
    rng = np.random.default_rng([tile, shift, list(TYPES).index(kind)])
    for shape in [(1040, 520, 104, 500), (1000, 2115, 50, 2115)]:
        check_gemm(device, rng, shape, "expand", kind, tile, shift)
    for batch in (tile, tile // 2 + 1, 2 * tile + 3):
        check_gemm(device, rng, (136, 40, 136, 40), "expand", kind, batch, shift)


@pytest.mark.parametrize("shift", [0, 4], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("values", TYPES)
@every_type
def test_every_instance_of_the_delta_kernel(device, kind, values, batch, shift):
    rng = np.random.default_rng([batch, shift, *map(list(TYPES).index, (kind, values))])
    # Rows of x at multiples of 16 bytes, columns far apart, and at none.
    for shape in [(4096, 700, 200, 690), (14336, 133, 30, 120), (1001, 77, 40, 70)]:
        check_gemm(device, rng, shape, "delta", kind, batch, shift, values)


def test_blocks_of_the_delta_kernel_take_several_tiles(device):
    """More rows than all threads of an H200 have chains."""
    rng = np.random.default_rng(6)
    check_gemm(device, rng, (40, 130_000, 2, 130_000), "delta", "float16", 3)


@every_type
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_the_delta_kernel_multiplies_nothing_but_weights(device, kind, special):
    """A chain whose sum is NaN is summed again on the device, too."""
    rng = np.random.default_rng(5)
    layer = Layer.random(rng, 8000, 300, 20, 290, kind)
    packed = device.PackedGemm(
        **layer.arrays(), in_features=8000, activations=kind, kernel=kernel_of("delta", kind)
    )
    for column in rng.choice(8000, 40, replace=False):
        x = np.ones((2, 8000), TYPES[kind])
        x[1, column] = special
        y = poisoned(2, 300, kind)
        packed.run_arrays(bits(x), y=bits(y))
        hit = layer.rows[(layer.indices == column).any(1)]
        assert np.array_equal(np.nonzero(~np.isfinite(y[1].astype(np.float32)))[0], hit)
        assert np.isfinite(y[0].astype(np.float32)).all()


@every_type
@pytest.mark.parametrize("name", LARGE_CONVS)
def test_large_convolutions_equal_the_float64_reference(device, name, kind):
    rng = np.random.default_rng([9, list(LARGE_CONVS).index(name), list(TYPES).index(kind)])
    check_conv(device, rng, LARGE_CONVS[name], kind)


@every_kernel
def test_random_layers_equal_the_float64_reference(device, layout, kind):
    rng = np.random.default_rng(1)
    for _ in range(60):
        in_features, out_features = (int(n) for n in rng.integers(1, 2500, 2))
        fan_in = int(rng.integers(1, in_features + 1)) // int(rng.choice([1, 10, 50])) + 1
        shape = (in_features, out_features, min(fan_in, in_features))
        active = int(rng.integers(0, out_features + 1))
        check_gemm(device, rng, (*shape, active), layout, kind, int(rng.integers(1, 70)))


def test_equal_layers_share_the_device_memory(device):
    layer = Layer.random(np.random.default_rng(2), 300, 200, 30, 190)

    def pack():
        return device.PackedGemm(
            **layer.arrays(), in_features=layer.in_features, activations="float32"
        )

    first = pack()
    assert [info["shared"] for info in first.info()] == [False, False]
    second = pack()
    assert [info["shared"] for info in second.info()] == [True, True]
    del first, second
    assert not pack().info()[0]["shared"]


def test_the_emulation_has_the_arguments_of_the_binding():
    """A call that works with one cannot fail with the other because of an argument's name."""
    binding = pytest.importorskip("fanin.ort_ops._cuda", reason="built without CUDA")
    found = signatures(binding)
    layer = ["values", "value_type", "indices", "rows", "bias", "in_features"]
    conv = ["in_channels", "group", "kernel", "strides", "pads", "dilations"]
    twins = {("PackedGemm", EmulatedGemm): layer, ("PackedConv", EmulatedConv): [*layer, *conv]}
    for (name, twin), passed_on in twins.items():
        for method in ("__init__", "run", "run_arrays"):
            if not hasattr(twin, method):
                continue
            taken = inspect.signature(getattr(twin, method)).parameters
            names = [one for one in taken if one not in ("self", "layer")]
            names += passed_on if method == "__init__" else []
            wanted = [one for one in found[f"{name}.{method}"] if one != "*"]
            assert sorted(names) == sorted(wanted), f"{name}.{method}"
            by_position = [
                one.name for one in taken.values() if one.kind is one.POSITIONAL_OR_KEYWORD
            ]
            assert by_position == (["self", "x"] if method == "run_arrays" else ["self"])


def test_the_binding_has_the_rows_of_the_table():
    binding = pytest.importorskip("fanin.ort_ops._cuda", reason="built without CUDA")
    assert binding.kernel_table() == open_binding(emulated=True).kernel_table()
    assert {(row["layout"], row["activations"]) for row in binding.kernel_table()} == set(KERNELS)
