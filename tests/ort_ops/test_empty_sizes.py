"""Sizes of zero: images without rows or columns, empty batches, layers without stored rows.

An image may be empty if the pads alone are large enough for the window: then every output is the
bias after the epilogue, as with Conv. If the window does not fit, Conv refuses the input, and so
does every kernel.
"""

from dataclasses import replace

import ml_dtypes  # noqa: F401  (names bfloat16 to NumPy)
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from fanin.ort_ops import _native
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._conv_layer import ConvLayer as Conv
from ._conv_models import conv_spec, dense_conv_model
from ._models import Layer, open_session, run, spec_of
from ._random_convs import HARD_SWISH, OPEN_GATE, compare, ends, kernels, random_layer

ISAS = _native.supported_isas()
CONV_KERNELS = [(name, False) for name in kernels()] + [
    (name, True) for name in kernels(whole_depthwise=True)
]
GEMM_ROWS = [row for row in _native.kernel_table() if row.supported]
WIDTH_ZERO = ConvGeometry(3, 3, (2, 2), pads=(1, 1, 1, 1), group=3)

small = st.integers(1, 4)
sizes = st.sampled_from([(0, 0), (0, 1), (1, 0), (0, 5), (5, 0), (0, 40), (40, 0), (3, 4)])


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("kernel", "depthwise"), CONV_KERNELS)
@settings(max_examples=60, deadline=None)
@given(
    size=sizes,
    batch=st.integers(0, 3),
    kernel_shape=st.tuples(small, small),
    strides=st.tuples(small, small),
    dilations=st.tuples(small, small),
    pads=st.tuples(*[st.integers(0, 9)] * 4),
    channels=st.integers(1, 18),
    threads=st.integers(1, 3),
    end=st.sampled_from([OPEN_GATE, HARD_SWISH]),
    weight=st.sampled_from([1.0, np.inf, np.nan]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_conv_kernel_accepts_empty_images(
    kernel,
    depthwise,
    size,
    batch,
    kernel_shape,
    strides,
    dilations,
    pads,
    channels,
    threads,
    end,
    weight,
    seed,
):
    rng = np.random.default_rng(seed)
    group = channels if depthwise else int(rng.integers(1, 3))
    inputs = channels if depthwise else group * int(rng.integers(1, 5))
    outputs = channels if depthwise else group * channels
    window = inputs // group * kernel_shape[0] * kernel_shape[1]
    layer = random_layer(
        rng,
        inputs,
        outputs,
        kernel_shape,
        window if depthwise else int(rng.integers(1, window + 1)),
        group=group,
        active=outputs if depthwise else int(rng.integers(outputs + 1)),
        strides=strides,
        dilations=dilations,
        pads=pads,
    )
    if layer.values.size:
        layer.values[0, 0] *= weight
    conv = layer.pack(kernel=kernel)
    x = normal(rng, batch, inputs, *size)
    if min(layer.output_size(*size)) < 1:
        with pytest.raises(ValueError, match="larger than X"):
            conv.run(x, threads=threads)
        return
    total, magnitude = layer.sums(x)
    residual = normal(rng, *total.shape)
    clip = (-1.0, 2.0)
    y = conv.run(x, residual=residual, threads=threads, **ends(clip, end))
    compare(layer, total, magnitude, y, residual, clip, end)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [(0, 0), (0, 3), (3, 0)])
def test_pads_alone_give_the_bias_on_every_instruction_set(isa, size):
    rng = np.random.default_rng(1)
    for channels, outputs, fan_in, group in ((3, 3, 4, 3), (40, 40, 4, 40), (24, 32, 20, 1)):
        layer = random_layer(rng, channels, outputs, (2, 2), fan_in, group=group, pads=(1, 1, 1, 1))
        y = layer.pack(isa=isa).run(np.zeros((2, channels, *size), np.float32))
        assert np.array_equal(y, np.broadcast_to(layer.bias[:, None, None], y.shape))
        assert y.shape == (2, outputs, size[0] + 1, size[1] + 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("row", GEMM_ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("active", [0, 1, 19])
def test_every_gemm_kernel_accepts_an_empty_batch_and_a_layer_without_rows(row, dtype, active):
    layer = Layer.random(active=active)
    layer = replace(layer, values=layer.values.astype(np.dtype(row.weights)))
    gemm = _native.PackedGemm(
        **layer.weights,
        in_features=37,
        out_features=19,
        kernel=row.name,
        threads=2,
        compute=row.compute,
    )
    for batch in (0, 1, 3):
        x = layer.x(batch).astype(dtype)
        y = gemm.run(x, threads=2)
        assert y.shape == (batch, 19)
        assert y.dtype == dtype
        want = layer.expected(x)
        assert np.all(np.abs(y - want) <= 0.01 * (1 + np.abs(want)))


@pytest.mark.parametrize("fan_in", [0, 1, 5])
@pytest.mark.parametrize("isa", ISAS)
def test_no_stored_rows_of_any_declared_fan_in(isa, fan_in):
    bias = np.arange(4, dtype=np.float32)
    gemm = _native.PackedGemm(
        values=np.zeros((0, fan_in), np.float32),
        indices=np.zeros((0, fan_in), np.uint16),
        rows=np.zeros(0, np.int32),
        bias=bias,
        in_features=3,
        out_features=4,
        isa=isa,
    )
    assert np.array_equal(gemm.run(np.ones((2, 3), np.float32)), [bias, bias])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"in_channels": 0}, "in_channels is 0, it must be 1 to"),
        ({"out_channels": 0}, "out_channels is 0, it must be 1 to"),
        ({"group": 0}, "group is 0, it must be 1 to"),
        ({"kernel_shape": (2, 0)}, r"kernel_shape\[1\] is 0, it must be 1 to"),
        ({"strides": (0, 1)}, r"strides\[0\] is 0, it must be 1 to"),
        ({"dilations": (1, 0)}, r"dilations\[1\] is 0, it must be 1 to"),
    ],
)
def test_attributes_of_zero_are_refused(change, message):
    layer = random_layer(np.random.default_rng(2), 3, 3, (2, 2), 4, group=3)
    with pytest.raises(ValueError, match=message):
        _native.PackedConv(**layer.arrays, **(layer.attributes | change))


@pytest.mark.parametrize("name", ["in_features", "out_features"])
def test_features_of_zero_are_refused(name):
    layer = Layer.random(active=0)
    arrays = layer.weights | ({"bias": np.zeros(0, np.float32)} if name == "out_features" else {})
    with pytest.raises(ValueError, match=f"{name} is 0, it must be 1 to"):
        _native.PackedGemm(**arrays, **({"in_features": 37, "out_features": 19} | {name: 0}))


def sliced(model: onnx.ModelProto, axis: int) -> onnx.ModelProto:
    """The model on the slice of X that the input ``keep`` selects along an axis."""
    graph = model.graph
    for node in graph.node:
        node.input[:] = ["part" if name == "X" else name for name in node.input]
    zero, along = numpy_helper.from_array(np.zeros(1, np.int64), "zero"), np.array([axis])
    graph.initializer.extend([zero, numpy_helper.from_array(along, "axis")])
    graph.input.append(helper.make_tensor_value_info("keep", TensorProto.INT64, [1]))
    graph.node.insert(0, helper.make_node("Slice", ["X", "zero", "keep", "axis"], ["part"]))
    return model


def outcome(session: onnxruntime.InferenceSession, **feeds: np.ndarray) -> np.ndarray | str:
    """The session's result, or its error message."""
    try:
        return run(session, **feeds)
    except Exception as refusal:
        return str(refusal)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [0, 2, 3])
@pytest.mark.parametrize(
    "geometry",
    [
        WIDTH_ZERO,
        ConvGeometry(3, 3, (3, 3), pads=(1, 1, 1, 1), group=3),
        ConvGeometry(3, 3, (3, 3), strides=(2, 2), pads=(2, 2, 2, 2), group=3),
        ConvGeometry(8, 12, (2, 2), pads=(1, 1, 1, 1)),
        ConvGeometry(8, 12, (1, 1)),
    ],
    ids=str,
)
def test_a_session_with_an_empty_slice_of_x_gives_the_result_of_conv(
    geometry, axis, isa, monkeypatch
):
    monkeypatch.setenv("FANIN_ISA", isa)
    layer = Conv.random(geometry, geometry.in_features)
    condensed = open_session(sliced(conv_spec(layer).build(), axis), threads=2)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    dense = onnxruntime.InferenceSession(
        sliced(dense_conv_model(layer), axis).SerializeToString(),
        quiet,
        providers=["CPUExecutionProvider"],
    )
    x = layer.x(2, 4, 5)
    for keep in (0, 4, 0):
        feeds = {"X": x, "keep": np.array([keep])}
        y, want = outcome(condensed, **feeds), outcome(dense, **feeds)
        if isinstance(want, str):
            assert "Invalid input shape" in want
            assert "shorter than the kernel" in y
        else:
            np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("fed", ["", "values"])
def test_the_op_accepts_an_empty_image_in_every_type_and_with_the_plain_kernel(dtype, fed):
    layer = Conv.random(WIDTH_ZERO, 4)
    spec = conv_spec(layer, dtype=dtype, fed={fed: None} if fed else {}, clip_min=0.0)
    session = open_session(spec.build(), threads=2)
    x = np.zeros((2, 3, 4, 0), dtype)
    y = run(session, X=x, **({fed: layer.values} if fed else {}))
    want = np.maximum(layer.bias, 0).astype(dtype)
    assert np.array_equal(y, np.broadcast_to(want[:, None, None], (2, 3, 5, 1)))


@pytest.mark.parametrize("shape", [(0, 37), (2, 0, 37), (0, 0, 37), (0, 2**40, 37)])
def test_a_gemm_session_accepts_empty_leading_dimensions(shape):
    layer = Layer.random()
    rank = [f"d{axis}" for axis in range(len(shape) - 1)]
    spec = spec_of(layer)
    model = type(spec)(arrays=spec.arrays, attributes=spec.attributes, x_shape=(*rank, 37)).build()
    y = run(open_session(model, threads=2), X=np.zeros(shape, np.float32))
    assert y.shape == (*shape[:-1], 19)
