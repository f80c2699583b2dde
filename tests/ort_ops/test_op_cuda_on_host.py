"""The CUDA ops without a GPU: their own code on host memory, run by stock ONNX Runtime.

Plain kernels replace the CUDA kernels, and host memory the device's (csrc/tests); all other code is
that of a CUDA session.
"""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fanin import ort_ops
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from . import test_conv_op_malformed as conv_malformed
from ._compile import compiler_environment
from ._conv_models import ConvLayer, assert_conv_close, conv_spec
from ._models import NODE, Layer, assert_close, open_session, run, spec_of
from .test_conv_op_values import GEOMETRIES
from .test_malformed import MODELS
from .test_malformed_inputs import (
    RUNS,
    test_a_batch_that_contradicts_the_declared_shape_is_refused,  # noqa: F401 (runs here, too)
)

ROOT = Path(__file__).resolve().parents[2]
LAYER = Layer.random(in_features=12, out_features=6, fan_in=4, active=4)
SOUND = spec_of(LAYER)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The library of the CUDA ops on host memory."""
    compiler = next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if shutil.which("cmake") is None or compiler is None:
        pytest.skip("no cmake or no C++ compiler")
    folder = tmp_path_factory.mktemp("cuda_op_on_host")
    target = "fanin_cuda_op_on_host"
    options = ["-DFANIN_PYTHON=OFF", "-DFANIN_CUDA=OFF", "-DCMAKE_BUILD_TYPE=Debug"]
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(folder), *options],
        ["cmake", "--build", str(folder), "--target", target, "--parallel", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, env=compiler_environment())
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "ort_ops" / "csrc" / f"lib{target}.so"


@pytest.fixture(autouse=True)
def cuda_op(built, monkeypatch):
    """Make every session of these tests use the CUDA op."""
    monkeypatch.setattr(ort_ops, "get_library_path", lambda: built)


def test_results_equal_the_definition():
    layer = Layer.random(in_features=37, out_features=19, fan_in=7, active=13, padded=True)
    residual = np.zeros(1, np.float32)
    for leading in ((), (1,), (5,), (2, 3)):
        spec = replace(spec_of(layer, residual=residual), x_shape=None)
        x = layer.x(*leading)
        assert_close(run(open_session(spec.build()), X=x), layer, x)


def test_residual_and_clip_are_applied():
    x = LAYER.x(3)
    residual = np.random.default_rng(3).standard_normal((3, 6)).astype(np.float32)
    spec = replace(spec_of(LAYER, clip_min=0.0, clip_max=1.5), fed={"residual": ("batch", 6)})
    y = run(open_session(spec.build()), X=x, residual=residual)
    assert_close(y, LAYER, x, residual, clip_min=0.0, clip_max=1.5)


def test_a_residual_of_shape_one_is_added_to_an_output_of_shape_one():
    layer = Layer.random(in_features=5, out_features=1, fan_in=2)
    spec = replace(spec_of(layer, residual=np.full(1, 2.5, np.float32)), x_shape=(5,))
    x = layer.x()
    assert_close(run(open_session(spec.build()), X=x), layer, x, np.full(1, 2.5))


@pytest.mark.parametrize(
    ("kind", "tolerance"), [(TensorProto.FLOAT16, 2e-3), (TensorProto.BFLOAT16, 2e-2)]
)
def test_16_bit_activations(kind, tolerance):
    x = LAYER.x(4)
    y = run(open_session(with_activations(SOUND, kind)), X=x)
    assert np.abs(y - LAYER.expected(x)).max() < tolerance * np.abs(LAYER.expected(x)).max()


def with_activations(spec, kind):
    model = spec.build()
    node = model.graph.node[0]
    # float32 outside, so that the input and the output need no 16-bit NumPy type.
    node.input[0], node.input[5], node.output[0] = "x16", "r16", "y16"
    casts = [("X", "x16", kind), ("residual", "r16", kind), ("y16", "Y", TensorProto.FLOAT)]
    made = [helper.make_node("Cast", [a], [b], to=to) for a, b, to in casts]
    nodes = [*made[:2], node, made[2]]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    return model


def test_computing_in_bfloat16_takes_activations_of_bfloat16_only():
    layer = replace(LAYER, values=LAYER.values.astype(ml_dtypes.bfloat16))
    spec = spec_of(layer).with_attributes(compute=16)
    x = LAYER.x(4)
    rounded = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    want = layer.expected(rounded)
    y = run(open_session(with_activations(spec, TensorProto.BFLOAT16)), X=x)
    assert np.abs(y - want).max() < 2.0**-8 * np.abs(want).max()
    for model in (spec.build(), with_activations(spec, TensorProto.FLOAT16)):
        with pytest.raises(Exception, match=r"compute is 16 \(bfloat16\) and X is float.*on CUDA"):
            open_session(model)


def test_an_empty_batch_gives_an_empty_result():
    assert run(open_session(SOUND.build()), X=LAYER.x(0)).shape == (0, 6)


# Here onnxruntime accepts bfloat16 and refuses the residual's type instead.
REFUSED = [name for name in MODELS if name != "x-bfloat16"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_malformed_model_is_refused_with_the_message_of_the_cpu_op(name):
    spec, reason = MODELS[name]
    with pytest.raises(Exception, match=f"{NODE}|CondensedGemm|ai.fanin") as refusal:
        open_session(spec.build())
    assert re.search(reason, str(refusal.value), re.DOTALL), str(refusal.value)


CONSTANT_WEIGHTS = [
    name
    for name, bad in RUNS.items()
    if not set(bad.spec.fed) - {"residual"} and not name.startswith("residual-one")
]


@pytest.mark.parametrize("name", CONSTANT_WEIGHTS)
def test_malformed_inputs_are_refused_and_the_session_stays_usable(name):
    bad = RUNS[name]
    session = open_session(bad.spec.build())
    with pytest.raises(Exception, match=NODE) as refusal:
        session.run(None, bad.feeds)
    assert re.search(bad.reason, str(refusal.value), re.DOTALL), str(refusal.value)


@pytest.mark.parametrize("names", [("values",), ("bias", "rows"), tuple(LAYER.weights)])
def test_non_constant_weights_are_refused_by_name(names):
    spec = replace(SOUND, fed=dict.fromkeys(names))
    told = ", ".join(name for name in LAYER.weights if name in names)
    with pytest.raises(Exception, match=rf"{NODE}.*not constant: {told};.*CPUExecutionProvider"):
        open_session(spec.build())


def test_a_residual_of_shape_one_that_is_not_constant_is_refused_at_creation():
    spec = replace(SOUND, fed={"residual": (1,)})
    with pytest.raises(Exception, match=rf"{NODE}.*residual has shape \[1\].*not constant"):
        open_session(spec.build())


def test_a_residual_whose_shape_turns_out_to_be_one_is_refused_at_the_run():
    session = open_session(replace(SOUND, fed={"residual": None}).build())
    with pytest.raises(Exception, match=rf"{NODE}.*residual has shape \[1\].*not constant"):
        session.run(None, {"X": LAYER.x(2), "residual": np.zeros(1, np.float32)})
    residual = np.ones((2, 6), np.float32)
    y = run(session, X=LAYER.x(2), residual=residual)
    assert_close(y, LAYER, LAYER.x(2), residual)


def test_a_full_device_is_reported_with_node_device_and_bytes():
    layer = Layer.random(in_features=404, out_features=6, fan_in=4)  # the double's own mark
    with pytest.raises(Exception, match=rf"{NODE}.*out of memory on device 0: 96 bytes"):
        open_session(spec_of(layer).build())


def test_the_log_states_the_device_of_the_packed_weights(capfd):
    options = onnxruntime.SessionOptions()
    ort_ops.register(options)
    options.log_severity_level = 1
    onnxruntime.InferenceSession(
        SOUND.build().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    log = capfd.readouterr().err
    assert f"'{NODE}': host-double: 96 bytes, packed in" in log
    assert "on CUDA device 0, outside the session's arena" in log


CONV = ConvLayer.random(active=6, padded=True)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolutions_equal_the_definition(name):
    geometry = GEOMETRIES[name]
    layer = ConvLayer.random(geometry, max(1, geometry.in_features // 4), padded=True)
    x = layer.x(2, *(13, 12)[: geometry.axes])
    for size in (None, (2, *x.shape[2:])):
        assert_conv_close(run(open_session(conv_spec(layer, size).build()), X=x), layer, x)


def test_residual_and_clip_of_a_convolution_are_applied():
    x = CONV.x(3, 7, 9)
    residual = np.random.default_rng(3).standard_normal(CONV.y_shape(x)).astype(np.float32)
    spec = conv_spec(CONV, fed={"residual": None}, clip_min=0.0, clip_max=1.5)
    y = run(open_session(spec.build()), X=x, residual=residual)
    assert_conv_close(y, CONV, x, residual, clip_min=0.0, clip_max=1.5)


def test_a_convolution_of_float16_and_of_an_empty_batch():
    session = open_session(conv_spec(CONV, dtype=np.float16).build())
    x = CONV.x(2, 7, 9, dtype=np.float16)
    assert_conv_close(run(session, X=x), CONV, x)
    assert run(session, X=x[:0]).shape == CONV.y_shape(x[:0])


REFUSED_CONVOLUTIONS = [name for name in conv_malformed.MODELS if name != "x-bfloat16"]


@pytest.mark.parametrize("name", REFUSED_CONVOLUTIONS)
def test_a_malformed_convolution_is_refused_with_the_message_of_the_cpu_op(name):
    spec, reason = conv_malformed.MODELS[name]
    with pytest.raises(Exception, match=f"{NODE}|CondensedConv") as refusal:
        open_session(spec.build())
    assert re.search(reason, str(refusal.value), re.DOTALL), str(refusal.value)


@pytest.mark.parametrize("names", [("values",), ("bias", "rows"), tuple(CONV.weights)])
def test_non_constant_weights_of_a_convolution_are_refused_by_name(names):
    spec = conv_spec(CONV, fed=dict.fromkeys(names))
    told = ", ".join(name for name in CONV.weights if name in names)
    with pytest.raises(Exception, match=rf"{NODE}.*not constant: {told};.*CPUExecutionProvider"):
        open_session(spec.build())


def test_a_residual_of_a_convolution_that_stands_for_none_has_to_be_constant():
    with pytest.raises(Exception, match=rf"{NODE}.*residual has shape \[1\].*not constant"):
        open_session(conv_spec(CONV, fed={"residual": (1,)}).build())
    session = open_session(conv_spec(CONV, fed={"residual": None}).build())
    x = CONV.x(2, 7, 9)
    with pytest.raises(Exception, match=rf"{NODE}.*residual has shape \[1\].*not constant"):
        session.run(None, {"X": x, "residual": np.zeros(1, np.float32)})
    residual = np.ones(CONV.y_shape(x), np.float32)
    assert_conv_close(run(session, X=x, residual=residual), CONV, x, residual)


def test_a_full_device_is_reported_for_a_convolution_with_node_device_and_bytes():
    layer = ConvLayer.random(ConvGeometry(101, 3, (2, 2)), 4)  # 404 places: the double's own mark
    with pytest.raises(Exception, match=rf"{NODE}.*out of memory on device 0: 96 bytes"):
        open_session(conv_spec(layer).build())
