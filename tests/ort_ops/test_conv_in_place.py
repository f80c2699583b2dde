"""CondensedConv overwrites the residual with Y if the runtime finds no other reader of it."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from fanin.ort_ops import _native
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._conv_models import ConvLayer, assert_conv_close, conv_spec
from ._models import open_session, run
from ._random_convs import kernels, random_layer

LAYERS = {
    "1x1": ConvLayer.random(ConvGeometry(20, 24, (1, 1)), 5, active=20),
    "3x3": ConvLayer.random(ConvGeometry(8, 24, (3, 3), pads=(1, 1, 1, 1)), 9),
    "depthwise": ConvLayer.random(ConvGeometry(24, 24, (3, 3), pads=(1, 1, 1, 1), group=24), 2),
}


@pytest.mark.parametrize("kernel", kernels())
@pytest.mark.parametrize("size", [(3, 3), (14, 14), (33, 20)])
def test_every_kernel_gives_the_same_bits_over_its_residual(kernel, size):
    rng = np.random.default_rng(0)
    layer = random_layer(rng, 30, 70, (3, 3), 27, pads=(1, 1, 1, 1))
    conv = layer.pack(kernel=kernel)
    x = rng.standard_normal((3, 30, *size)).astype(np.float32)
    residual = rng.standard_normal((3, 70, *size)).astype(np.float32)
    for threads in (1, 2, 3):
        end = {"clip_min": -2.0, "clip_max": 2.0, "threads": threads}
        want = conv.run(x, residual=residual, **end)
        both = residual.copy()
        conv.run(x, residual=both, **end, out=both)
        assert np.array_equal(both, want)


def chain(layer, element, *, residual="R", after=("Neg", ["Y"])):
    """R = -X2 and Y = CondensedConv(X, R), as values between nodes; ``after`` makes the output."""
    model = conv_spec(layer, dtype=helper.tensor_dtype_to_np_dtype(element)).build()
    graph = model.graph
    node = graph.node[0]
    node.input[5] = residual
    del graph.initializer[-1]  # "none"
    size = ["batch", layer.geometry.out_channels, "height", "width"]
    graph.input.append(helper.make_tensor_value_info("X2", element, size))
    graph.node.insert(0, helper.make_node("Neg", ["X2"], ["R"]))
    graph.node.append(helper.make_node(after[0], after[1], ["Z"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("Z", element, None))
    return model


@pytest.mark.parametrize("isa", _native.supported_isas())
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_residual_that_nothing_else_reads(name, isa, element, monkeypatch):
    monkeypatch.setenv("FANIN_ISA", isa)
    layer, dtype = LAYERS[name], helper.tensor_dtype_to_np_dtype(element)
    session = open_session(chain(layer, element))
    for batch, size in ((1, (9, 11)), (3, (16, 5))):
        x = layer.x(batch, *size, dtype=dtype)
        x2 = np.random.default_rng(2).standard_normal(layer.y_shape(x)).astype(dtype)
        assert_conv_close(-run(session, X=x, X2=x2), layer, x, -x2)


def test_a_residual_that_is_read_again_later_keeps_its_values():
    layer = LAYERS["1x1"]
    session = open_session(chain(layer, TensorProto.FLOAT, after=("Sub", ["Y", "R"])))
    alone = open_session(chain(layer, TensorProto.FLOAT))
    x = layer.x(2, 9, 11)
    x2 = np.random.default_rng(2).standard_normal(layer.y_shape(x)).astype(np.float32)
    assert np.array_equal(run(session, X=x, X2=x2), -run(alone, X=x, X2=x2) + x2)


@pytest.mark.parametrize("name", ["depthwise", "1x1"])
def test_a_residual_that_is_also_the_input(name):
    geometry = ConvGeometry(24, 24, (1, 1)) if name == "1x1" else LAYERS[name].geometry
    layer = ConvLayer.random(geometry, 2)
    model = chain(layer, TensorProto.FLOAT)
    model.graph.node[1].input[0] = "R"
    del model.graph.input[0]
    x = layer.x(2, 9, 70)
    assert_conv_close(-run(open_session(model), X2=-x), layer, x, x)
