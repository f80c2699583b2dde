"""LSTM and GRU with sparse weights become loops over sparse products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from fanin.export import ExportError, convert, export
from fanin.export.cost_model import Calibration, CostModel
from fanin.export.forms import Chooser
from fanin.export.onnx_convert import plan_conversion
from fanin.export.recurrent_cost import Product, RecurrentSize, why_left

from .onnx_models import run, sparse

GATES = {"LSTM": 4, "GRU": 3}
STATES = {"LSTM": ["h", "c"], "GRU": ["h"]}


def write(
    path: Path,
    kind: str = "LSTM",
    *,
    steps: int | str = 4,
    features: int = 20,
    hidden: int = 16,
    direction: str = "forward",
    bias: bool = True,
    initial: bool = False,
    lengths: bool = False,
    peepholes: bool = False,
    sparsity: tuple[float, float] = (0.9, 0.9),
    outputs: Sequence[str] | None = None,
    replaceable: bool = False,
    **attributes,
) -> Path:
    """Write one recurrent operator; the batch is symbolic."""
    directions, rows = 1 + (direction == "bidirectional"), GATES[kind] * hidden
    rng = np.random.default_rng(0)
    arrays = {
        "w": sparse((directions, rows, features), sparsity[0]),
        "r": 0.5 * sparse((directions, rows, hidden), sparsity[1], seed=1),
        "b": rng.standard_normal((directions, 2 * rows)).astype(np.float32),
        "p": np.ones((directions, 3 * hidden), np.float32),
    }
    batch_first = attributes.get("layout") == 1
    state = ["batch", directions] if batch_first else [directions, "batch"]
    ports = {"x": ["batch", steps, features] if batch_first else [steps, "batch", features]}
    names = ["x", "w", "r", "b" if bias else "", "lengths" if lengths else ""]
    if initial:
        ports |= {name: [*state, hidden] for name in STATES[kind]}
        names += STATES[kind]
    if peepholes:
        names += ["", "", "p"]
    kinds = [helper.make_tensor_value_info(name, 1, shape) for name, shape in ports.items()]
    if lengths:
        kinds.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]))
    if replaceable:
        kinds.append(helper.make_tensor_value_info("w", 1, arrays["w"].shape))
    made = ["y", *(f"last_{name}" for name in STATES[kind])]
    named = [name if outputs is None or name in outputs else "" for name in made]
    rnn = helper.make_node(
        kind, names, named, name="rnn", hidden_size=hidden, direction=direction, **attributes
    )
    used = {name for name in names if name in arrays}
    graph = helper.make_graph(
        [rnn],
        "g",
        kinds,
        [helper.make_tensor_value_info(name, 1, None) for name in named if name],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_recurrent_operator_keeps_its_outputs(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    path = tmp_path_factory.mktemp("rnn")
    kind = data.draw(st.sampled_from(["LSTM", "GRU"]))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    sparsity = data.draw(st.sampled_from([(0.9, 0.9), (0.9, 0.0), (0.0, 0.9)]))
    resets = {"linear_before_reset": data.draw(st.integers(0, 1))} if kind == "GRU" else {}
    made = ["y", *(f"last_{name}" for name in STATES[kind])]
    source = write(
        path / "in.onnx",
        kind,
        steps=data.draw(st.sampled_from([1, 5, "steps"])),
        features=data.draw(st.integers(5, 24)),
        hidden=data.draw(st.integers(5, 24)),
        direction=direction,
        bias=data.draw(st.booleans()),
        initial=data.draw(st.booleans()),
        sparsity=sparsity,
        outputs=data.draw(st.lists(st.sampled_from(made), min_size=1, unique=True)),
        **resets,
    )
    report = convert(source, path / "out.onnx", policy="condensed")
    assert len(report.parity) == 2
    assert {layer.kind for layer in report.layers} == {kind}
    for layer in report.layers:
        wanted = sparsity[0] if layer.name.startswith("w") else sparsity[1]
        assert layer.decision == ("condensed" if wanted > 0.5 else "dense")
        part = direction in ("forward", "reverse") or "forward" in layer.name
        assert part or "reverse" in layer.name
    assert kind not in [node.op_type for node in onnx.load(path / "out.onnx").graph.node]


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_samples_may_end_at_different_steps(tmp_path: Path, kind: str, direction: str):
    source = write(tmp_path / "in.onnx", kind, steps=6, direction=direction, lengths=True)
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((6, 4, 20)).astype(np.float32),
        "lengths": np.array([6, 3, 1, 4], np.int32),
    }
    convert(source, tmp_path / "out.onnx", policy="condensed", inputs=[feeds])
    expected = run(source, **feeds)
    actual = run(tmp_path / "out.onnx", library=True, **feeds)
    assert not expected[0][3:, :, 1].any()
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("kind", GATES)
def test_samples_without_steps_end_in_zeros_as_in_onnxruntime(tmp_path: Path, kind: str):
    fields = {"direction": "bidirectional", "lengths": True, "initial": True}
    source = write(tmp_path / "in.onnx", kind, **fields)
    convert(source, tmp_path / "out.onnx", policy="condensed")
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal((2, 3, 16)).astype(np.float32) for name in STATES[kind]}
    feeds["x"] = rng.standard_normal((4, 3, 20)).astype(np.float32)
    feeds["lengths"] = np.array([2, 0, 4], np.int32)
    expected = run(source, **feeds)
    assert not expected[1][:, 1].any()
    for ours, theirs in zip(
        run(tmp_path / "out.onnx", library=True, **feeds), expected, strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("kind", GATES)
def test_the_batch_may_come_first(tmp_path: Path, kind: str):
    """ONNX Runtime refuses layout 1 in the source, so it runs the transposed values in layout 0."""
    shared = {"direction": "bidirectional", "initial": True}
    source = write(tmp_path / "in.onnx", kind, layout=1, **shared)
    convert(source, tmp_path / "out.onnx", policy="condensed", verify=False)
    rng = np.random.default_rng(2)
    feeds = {"x": rng.standard_normal((3, 4, 20)).astype(np.float32)}
    feeds |= {name: rng.standard_normal((3, 2, 16)).astype(np.float32) for name in STATES[kind]}
    turned = {name: array.swapaxes(0, 1) for name, array in feeds.items()}
    expected = run(write(tmp_path / "other.onnx", kind, **shared), **turned)
    actual = run(tmp_path / "out.onnx", library=True, **feeds)
    np.testing.assert_allclose(actual[0], expected[0].transpose(2, 0, 1, 3), atol=1e-6)
    for ours, theirs in zip(actual[1:], expected[1:], strict=True):
        np.testing.assert_allclose(ours, theirs.swapaxes(0, 1), atol=1e-6)


LEFT: dict[str, tuple[Mapping[str, object], str]] = {
    "activations": ({"activations": ["Sigmoid", "Relu", "Tanh"]}, "its activations are Sigmoid, R"),
    "clip": ({"clip": 0.5}, "it clips what its gates get"),
    "peepholes": ({"peepholes": True}, "it has peepholes"),
    "tied gates": ({"input_forget": 1}, "its input gate is tied to the forget gate"),
    "replaceable": ({"replaceable": True}, "one of its weights is no constant"),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_a_loop_cannot_do_stays_with_the_reason(tmp_path: Path, case: str):
    # Weights of at least 1,024 entries have a line whatever reads them.
    fields, reason = LEFT[case]
    source = write(tmp_path / "in.onnx", hidden=32, features=32, **fields)
    layers = plan_conversion(source, policy="condensed")
    assert {layer.name for layer in layers} == ({"r"} if case == "replaceable" else {"w", "r"})
    for layer in layers:
        assert (layer.kind, layer.decision) == ("LSTM", "dense")
        assert layer.reason.startswith(reason)


@pytest.mark.parametrize("policy", ["auto", "condensed"])
def test_states_of_zeros_are_no_weights(tmp_path: Path, policy: str):
    source = write(tmp_path / "in.onnx", initial=True, hidden=32, direction="bidirectional")
    model = onnx.load(source)
    for port in [port for port in model.graph.input if port.name in ("h", "c")]:
        model.graph.input.remove(port)
        zeros = np.zeros((2, 20, 32), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(zeros, port.name))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 20
    onnx.save(model, source)
    layers = convert(source, tmp_path / "out.onnx", policy=policy).layers
    assert {layer.name.partition(" ")[0] for layer in layers} == {"w", "r"}


def test_a_loop_may_be_in_half_precision(tmp_path: Path):
    """onnx's reference does not run loops from the end, which the report says."""
    source = write(tmp_path / "in.onnx", direction="reverse")
    report = convert(source, tmp_path / "out.onnx", policy="condensed", precision="bfloat16")
    assert any("reference" in line for line in report.not_checked)
    assert any("bfloat16" in check.engine for check in report.parity)


def test_usual_activations_may_be_spelled_out(tmp_path: Path):
    usual = ["sigmoid", "Tanh", "tanh"] * 2
    source = write(tmp_path / "in.onnx", direction="bidirectional", activations=usual)
    layers = plan_conversion(source, policy="condensed")
    assert {layer.decision for layer in layers} == {"condensed"}


def test_small_operators_stay_as_they_are(tmp_path: Path):
    source = write(tmp_path / "in.onnx", steps=20)
    report = convert(source, tmp_path / "out.onnx", policy="auto")
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == ["LSTM"]
    for layer in report.layers:
        assert "as fast as the operator at 20 steps, batch 1" in layer.reason


def _costs(policy: str, batch: int = 1, portable: bool = False) -> Chooser:
    return Chooser(policy, batch, portable, CostModel(Calibration.shipped()))


def _size(hidden: int, sparsity: tuple[float, float], steps: int | None = 20) -> RecurrentSize:
    stored = [None if s == 0 else round((1 - s) * 4 * hidden * hidden) for s in sparsity]
    products = [Product(4 * hidden, hidden, count) for count in stored]
    return RecurrentSize(steps, None, hidden, (products[0],), (products[1],))


def test_a_loop_pays_for_itself_where_products_are_large():
    both, auto = (0.9, 0.9), _costs("auto")
    assert why_left(auto, _size(1024, both)) is None
    assert why_left(auto, _size(512, both)) is None
    assert "as fast as the operator at 20 steps" in str(why_left(auto, _size(64, both)))
    assert "at 32 steps" in str(why_left(auto, _size(64, both, steps=None)))
    assert "batch 8" in str(why_left(_costs("auto", batch=8), _size(32, both)))
    # The products of a step are where the operator spends its time at batch 1.
    assert why_left(auto, _size(512, (0, 0.9))) is None
    assert why_left(auto, _size(64, (0.9, 0))) is not None


def test_other_policies_decide_without_times():
    size = _size(1024, (0.9, 0.9))
    assert why_left(_costs("condensed"), _size(8, (0.9, 0.9))) is None
    assert "policy dense" in str(why_left(_costs("dense"), size))
    assert "policy structured" in str(why_left(_costs("structured"), size))
    assert "standard operators" in str(why_left(_costs("auto", portable=True), size))


class Tagger(nn.Module):
    def __init__(self, cls: type[nn.RNNBase], **options):
        super().__init__()
        self.rnn = cls(20, 16, batch_first=True, **options)
        self.head = nn.Linear(16 * (1 + self.rnn.bidirectional), 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0])


@pytest.mark.parametrize(
    ("cls", "options", "masked"),
    [
        (nn.LSTM, {"bidirectional": True}, True),
        (nn.GRU, {"bias": False}, False),
        pytest.param(nn.LSTM, {"num_layers": 2}, False, marks=pytest.mark.slow),
    ],
    ids=["lstm", "gru", "two layers"],
)
def test_torch_modules_take_the_same_way(
    tmp_path: Path, cls: type[nn.RNNBase], options: dict, masked: bool
):
    torch.manual_seed(0)
    model, masks = Tagger(cls, **options).eval(), {}
    for name, parameter in model.rnn.named_parameters():
        if parameter.ndim == 2:
            masks[f"rnn.{name}"] = torch.rand_like(parameter) < 0.1
            parameter.data *= masks[f"rnn.{name}"]
    path = tmp_path / "model.onnx"
    report = export(
        model, torch.randn(2, 5, 20), path, policy="condensed", masks=masks if masked else None
    )
    layers = {layer.name: layer for layer in report.layers}
    assert set(layers) == {*masks, "head.weight"}
    assert len(report.parity) == 2
    for name, mask in masks.items():
        assert layers[name].decision == "condensed"
        assert layers[name].sparsity == pytest.approx(1 - float(mask.float().mean()))
        assert layers[name].reason == ("by mask" if masked else "by its zeros")
    assert layers["head.weight"].decision == "dense"
    # A kernel packs its weight once only where it finds it in its own graph.
    loops = [node for node in onnx.load(path).graph.node if node.op_type == "Scan"]
    assert len(loops) == len(masks) / 2
    for loop in loops:
        body = next(a.g for a in loop.attribute if a.name == "body")
        (product,) = (node for node in body.node if node.op_type == "CondensedGemm")
        assert set(product.input[1:5]) <= {tensor.name for tensor in body.initializer}


@pytest.mark.slow
def test_torch_modules_that_stay_say_why(tmp_path: Path):
    torch.manual_seed(0)
    model = Tagger(nn.LSTM).eval()
    for parameter in model.rnn.parameters():
        parameter.data *= torch.rand_like(parameter) < 0.1
    report = export(model, torch.randn(2, 5, 20), tmp_path / "model.onnx", verify=False)
    reasons = {layer.name: layer.reason for layer in report.layers}
    assert "as fast as the operator at 5 steps" in reasons["rnn.weight_ih_l0"]
    assert "as fast as the operator at 5 steps" in reasons["rnn.weight_hh_l0"]


def test_a_loop_runs_on_an_empty_batch(tmp_path: Path):
    convert(write(tmp_path / "in.onnx"), tmp_path / "out.onnx", policy="condensed")
    y, h, c = run(tmp_path / "out.onnx", library=True, x=np.zeros((4, 0, 20), np.float32))
    assert (y.shape, h.shape, c.shape) == ((4, 1, 0, 16), (1, 0, 16), (1, 0, 16))


@pytest.mark.parametrize("given", [False, True], ids=["made up", "given"])
def test_an_empty_input_that_onnxruntime_aborts_on_is_refused(tmp_path: Path, given: bool):
    source = write(tmp_path / "in.onnx", "GRU", steps="steps" if given else 0)
    inputs = [{"x": np.zeros((4, 0, 20), np.float32)}] if given else None
    with pytest.raises(ExportError, match="its input x is empty, and ONNX Runtime's LSTM and GRU"):
        convert(source, tmp_path / "out.onnx", policy="condensed", inputs=inputs)
    assert not (tmp_path / "out.onnx").exists()
