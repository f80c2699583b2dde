"""The ops in ONNX Runtime's CUDA provider on a GPU, inputs and outputs on the device.

The same checks run in the CPU provider, so that the tests themselves run without a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fanin import ort_ops
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.export.onnx_op import condensed_conv_model, make_condensed_node
from fanin.ort_ops.format.conv_geometry import ConvGeometry

# Before onnxruntime: it loads the CUDA libraries that the provider needs.
torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

IN_FEATURES, OUT_FEATURES, FAN_IN = 1024, 256, 102
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
TYPES["bfloat16"] = TensorProto.BFLOAT16
# Half a unit in the last place of the result.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
CONVOLUTIONS = {
    "3x3": (ConvGeometry(64, 64, (3, 3), pads=(1, 1, 1, 1)), 56, 58),
    "1x1": (ConvGeometry(256, 512, (1, 1), strides=(2, 2)), 56, 26),
}


class Machine:
    """Sessions on a device."""

    def __init__(self, device):
        self.device, self.cuda = device, device == "cuda"

    def session(self, model, profile="", **options):
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        if profile:
            settings.enable_profiling, settings.profile_file_prefix = True, profile
        ort_ops.register(settings)
        if not self.cuda:
            return onnxruntime.InferenceSession(model, settings, ["CPUExecutionProvider"])
        provider = ("CUDAExecutionProvider", {"device_id": "0", **options})
        session = onnxruntime.InferenceSession(model, settings, [provider], enable_fallback=0)
        assert "CUDAExecutionProvider" in session.get_providers()
        return session

    def bind(self, session, dtype="float32", **tensors):
        """Bind tensors of the device: ``y`` is the output, the others are inputs."""
        binding = session.io_binding()
        kind = np.float32 if dtype == "float32" else TYPES[dtype]
        for name, value in tensors.items():
            place = (name, self.device, 0, kind, list(value.shape), value.data_ptr())
            (binding.bind_output if name == "y" else binding.bind_input)(*place)
        return binding

    def run(self, session, binding):
        self.wait()
        session.run_with_iobinding(binding)
        self.wait()

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()


@pytest.fixture(params=["cpu", "cuda"])
def machine(request):
    if request.param == "cuda":
        gpu()
    return Machine(request.param)


@pytest.fixture
def gpu_machine():
    gpu()
    return Machine("cuda")


def gpu():
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    status = ort_ops.cuda_status()
    assert status.usable, status.reason


def layer(dtype):
    """A layer whose values and biases are exact in the type."""
    rng = np.random.default_rng(1)
    weight = random_sparse_layer("random", rng, IN_FEATURES, OUT_FEATURES, OUT_FEATURES, FAN_IN)

    def rounded(array):
        return torch.tensor(array).to(getattr(torch, dtype)).float().numpy()

    return type(weight)(
        **{
            **{name: getattr(weight, name) for name in ("indices", "rows")},
            "values": rounded(weight.values),
            "bias": rounded(weight.bias),
            "in_features": IN_FEATURES,
            "out_features": OUT_FEATURES,
        }
    )


def tensor(name, array, dtype):
    bits = torch.tensor(array).to(getattr(torch, dtype))
    raw = bits.numpy() if dtype == "float32" else bits.view(torch.int16).numpy()
    return helper.make_tensor(name, TYPES[dtype], array.shape, raw.tobytes(), raw=True)


def layer_model(weight, dtype="float32", batch="batch", *, residual=False):
    """The op without its fallback function, which therefore cannot run instead."""
    kind = TYPES[dtype]
    inputs = [helper.make_tensor_value_info("x", kind, [batch, IN_FEATURES])]
    arrays = [tensor("values", weight.values, dtype)]
    arrays += [
        numpy_helper.from_array(getattr(weight, name), name) for name in ("indices", "bias", "rows")
    ]
    if residual:
        inputs.append(helper.make_tensor_value_info("residual", kind, [batch, OUT_FEATURES]))
    else:
        arrays.append(tensor("residual", np.zeros(1, np.float32), dtype))
    node = make_condensed_node(
        ["x", "values", "indices", "bias", "rows", "residual"],
        "y",
        in_features=IN_FEATURES,
        out_features=OUT_FEATURES,
        name="layer",
        **({"clip_min": 0.0, "clip_max": 1.0} if residual else {}),
    )
    outputs = [helper.make_tensor_value_info("y", kind, [batch, OUT_FEATURES])]
    graph = helper.make_graph([node], "layer", inputs, outputs, arrays)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.fanin", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def expected(weight, x, dtype="float32"):
    """The result in float64, and the error bound of this type."""
    dense, x = weight.to_dense().astype(np.float64), x.double().cpu().numpy()
    want = x @ dense.T + weight.bias
    magnitude = np.abs(x) @ np.abs(dense).T + np.abs(weight.bias)
    allowed = (FAN_IN + 3) * 2.0**-24 * magnitude + ROUNDING[dtype] * np.abs(want) + 2.0**-24
    return want, allowed


def assert_close(y, want, allowed):
    assert (np.abs(y.double().cpu().numpy() - want) <= allowed).all()


def test_the_node_runs_in_the_provider(machine, tmp_path):
    session = machine.session(layer_model(layer("float32")), profile=str(tmp_path / "profile"))
    session.run(None, {"x": np.zeros((2, IN_FEATURES), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = {
        event["args"].get("provider")
        for event in events
        if event.get("args", {}).get("op_name") == "CondensedGemm"
    }
    assert ran - {None} == {f"{machine.device.upper()}ExecutionProvider"}


@pytest.mark.parametrize("dtype", TYPES)
def test_a_layer_equals_the_float64_reference(machine, dtype):
    if dtype == "bfloat16" and not machine.cuda:
        pytest.skip("the CPU's op takes no bfloat16 x")
    weight = layer(dtype)
    session = machine.session(layer_model(weight, dtype))
    for batch in (1, 8, 64, 256):
        x = torch.randn(batch, IN_FEATURES, device=machine.device).to(getattr(torch, dtype))
        y = torch.full((batch, OUT_FEATURES), torch.nan, dtype=x.dtype, device=machine.device)
        machine.run(session, machine.bind(session, dtype, x=x, y=y))
        assert_close(y, *expected(weight, x, dtype))


def test_residual_and_clip_are_applied_to_a_batch_that_no_tile_divides(machine):
    weight = layer("float32")
    session = machine.session(layer_model(weight, residual=True))
    x = torch.randn(7, IN_FEATURES, device=machine.device)
    residual = torch.randn(7, OUT_FEATURES, device=machine.device)
    y = torch.full_like(residual, torch.nan)
    machine.run(session, machine.bind(session, x=x, residual=residual, y=y))
    want, allowed = expected(weight, x)
    want = np.clip(want + residual.double().cpu().numpy(), 0, 1)
    assert_close(y, want, allowed + 2.0**-22)


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("batch", [1, 8])
def test_a_convolution_with_residual_and_clip_equals_the_float64_reference(machine, name, batch):
    geometry, side, fan_in = CONVOLUTIONS[name]
    out = geometry.out_channels
    rng = np.random.default_rng(fan_in)
    weight = random_sparse_layer("random", rng, geometry.in_features, out, out, fan_in)
    size = (None, None, None)
    model = condensed_conv_model(weight, geometry, size, clip_min=0.0, with_residual=True)
    model.ClearField("functions")
    session = machine.session(model.SerializeToString())
    x = torch.randn(batch, geometry.in_channels, side, side, device=machine.device)
    shape = (batch, out, *geometry.output_sizes((side, side)))
    residual = torch.randn(*shape, device=machine.device)
    y = torch.full(shape, torch.nan, device=machine.device)
    machine.run(session, machine.bind(session, x=x, residual=residual, y=y))
    window = {"stride": geometry.strides, "padding": geometry.pads[:2], "groups": geometry.group}
    wide = torch.from_numpy(weight.to_dense().reshape(geometry.weight_shape)).double()
    bias = torch.tensor(weight.bias).double()
    x, add = x.cpu().double(), residual.cpu().double()
    conv2d = torch.nn.functional.conv2d
    magnitude = conv2d(x.abs(), wide.abs(), bias.abs(), **window) + add.abs()
    want = (conv2d(x, wide, bias, **window) + add).clamp(min=0)
    assert_close(y, want.numpy(), (fan_in + 4) * 2.0**-24 * magnitude.numpy())


@pytest.mark.parametrize(("options", "rounds"), [({}, True), ({"use_tf32": "0"}, False)], ids=str)
def test_float32_is_rounded_to_tf32_where_the_session_allows_it(
    gpu_machine, monkeypatch, options, rounds
):
    if torch.cuda.get_device_capability()[0] < 8:
        pytest.skip("TF32 needs compute capability 8.0")
    monkeypatch.setenv("FANIN_CUDA_UNPROVEN", "on")
    weight = layer("float32")
    session = gpu_machine.session(layer_model(weight), **options)
    x = torch.randn(64, IN_FEATURES, device="cuda")
    y = torch.full((64, OUT_FEATURES), torch.nan, device="cuda")
    gpu_machine.run(session, gpu_machine.bind(session, x=x, y=y))
    want, allowed = expected(weight, x)
    error = np.abs(y.double().cpu().numpy() - want)
    assert (error > allowed).any() == rounds
    # Of the products' magnitude, float32 sums have 105 * 2^-24, tensor cores 4 times as much, and
    # TF32 operands 2^-10, which is 156 times as much.
    assert (error <= 161 * allowed).all()


def test_non_constant_weights_are_refused_by_name(gpu_machine):
    model = onnx.load_from_string(layer_model(layer("float32")))
    shape = (OUT_FEATURES, FAN_IN)
    model.graph.input.append(helper.make_tensor_value_info("values", TensorProto.FLOAT, shape))
    with pytest.raises(Exception, match=r"'layer'.*not constant: values"):
        gpu_machine.session(model.SerializeToString())


@pytest.mark.parametrize("batch", [1, 64])
def test_a_replayed_cuda_graph_reads_the_current_contents_of_its_input(gpu_machine, batch):
    weight = layer("float32")
    session = gpu_machine.session(layer_model(weight, batch=batch), enable_cuda_graph="1")
    x = torch.randn(batch, IN_FEATURES, device="cuda")
    y = torch.full((batch, OUT_FEATURES), torch.nan, device="cuda")
    binding = gpu_machine.bind(session, x=x, y=y)
    gpu_machine.run(session, binding)  # captures
    x.normal_()
    y.fill_(torch.nan)
    gpu_machine.run(session, binding)  # replays
    assert_close(y, *expected(weight, x))
