"""Files that ONNX Runtime has optimized and saved are converted, or named.

The conversion compares its outputs with those of the source in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.transformers import optimizer

from fanin.export import ExportReport, convert
from fanin.export.onnx_convert import plan_conversion

from .onnx_models import node, node_types, sparse

Level = onnxruntime.GraphOptimizationLevel


def write(
    path: Path,
    nodes: Sequence[NodeProto],
    constants: Mapping[str, np.ndarray],
    inputs: Mapping[str, Sequence[int | str]],
    kinds: Mapping[str, int] | None = None,
    y: Sequence[int | str] | None = None,
) -> Path:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [
            helper.make_tensor_value_info(name, (kinds or {}).get(name, TensorProto.FLOAT), shape)
            for name, shape in inputs.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    domains = ["", "com.microsoft"]
    opsets = [helper.make_opsetid(d, v) for d, v in zip(domains, (17, 1), strict=True)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def optimized(source: Path, level: Level) -> Path:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    path = source.with_name("optimized.onnx")
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return path


def converted(source: Path, **options) -> ExportReport:
    return convert(source, source.with_name("out.onnx"), **{"policy": "condensed", **options})


def residual_net(path: Path) -> Path:
    """Two convolutions with a residual sum between, a sigmoid, and a head, as in a ResNet."""
    nodes = [
        node("Conv", ["x", "w0", "b0"], "c0", pads=[1] * 4),
        node("Relu", ["c0"], "r0"),
        node("Conv", ["r0", "w1", "b1"], "c1", pads=[1] * 4),
        node("Add", ["c1", "r0"], "s1"),
        node("Relu", ["s1"], "r1"),
        node("Conv", ["r1", "w2", "b2"], "c2"),
        node("Sigmoid", ["c2"], "r2"),
        node("GlobalAveragePool", ["r2"], "p"),
        node("Flatten", ["p"], "f"),
        node("Gemm", ["f", "w3", "b3"], "g", transB=1),
        node("Relu", ["g"], "y"),
    ]
    constants = {
        "w0": sparse((16, 16, 3, 3)),
        "w1": sparse((16, 16, 3, 3), seed=1),
        "w2": sparse((64, 16, 1, 1), 0.8, seed=2),
        "w3": sparse((40, 64), 0.8, seed=3),
    }
    rng = np.random.default_rng(0)
    sizes = (16, 16, 64, 40)
    biases = {f"b{at}": rng.standard_normal(n).astype(np.float32) for at, n in enumerate(sizes)}
    return write(path, nodes, {**constants, **biases}, {"x": ("batch", 16, 8, 8)})


def test_fused_layers_are_what_they_were_before(tmp_path: Path):
    source = optimized(residual_net(tmp_path / "in.onnx"), Level.ORT_ENABLE_EXTENDED)
    fused = node_types(source)
    assert "FusedConv" in fused
    assert "FusedGemm" in fused
    report = converted(source)
    assert {layer.name: layer.decision for layer in report.layers} == {
        f"w{at}": "condensed" for at in range(4)
    }
    assert len(report.parity) == 2
    assert {"FusedConv", "FusedGemm"} <= {layer.kind for layer in report.layers}
    assert any(line.startswith("Relu into") for line in report.fused)
    assert not {"FusedConv", "FusedGemm"} & set(node_types(tmp_path / "out.onnx"))


def test_convolutions_in_blocked_layout_are_named_with_what_to_do(tmp_path: Path):
    source = optimized(residual_net(tmp_path / "in.onnx"), Level.ORT_ENABLE_ALL)
    report = converted(source)
    left = [layer for layer in report.layers if layer.decision == "dense"]
    assert len(left) == 3
    for layer in left:
        assert layer.reason == (
            "com.microsoft.nchwc::Conv reads it, which is not condensed; convert the file as it "
            "was before ONNX Runtime optimized or quantized it"
        )


ACTIVATIONS = {
    "Relu": [],
    "Tanh": [],
    "Sigmoid": [],
    "LeakyRelu": [0.3],
    "Clip": [-0.5, 0.75],
    "HardSigmoid": [0.3, 0.4],
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("adds", [False, True])
def test_every_activation_of_a_fused_convolution(tmp_path: Path, activation: str, adds: bool):
    inputs = ["x", "w", "b", *["z"] * adds]
    conv = node("FusedConv", inputs, pads=[1] * 4, activation=activation, domain="com.microsoft")
    if ACTIVATIONS[activation]:
        conv.attribute.append(helper.make_attribute("activation_params", ACTIVATIONS[activation]))
    constants = {"w": sparse((8, 12, 3, 3)), "b": np.linspace(-1, 1, 8).astype(np.float32)}
    ports = {"x": ("batch", 12, 6, 6), **({"z": ("batch", 8, 6, 6)} if adds else {})}
    (layer,) = converted(write(tmp_path / "in.onnx", [conv], constants, ports)).layers
    assert (layer.decision, layer.kind) == ("condensed", "FusedConv")
    assert "FusedConv" not in node_types(tmp_path / "out.onnx")


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_fused_product_keeps_its_outputs(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    first, a, b = (data.draw(st.booleans()) for _ in range(3))
    rank = data.draw(st.integers(2, 4)) if not first else 2
    size, rows = data.draw(st.integers(4, 24)), data.draw(st.integers(1, 5))
    alpha = data.draw(st.sampled_from([1.0, 0.125, -2.0]))
    weight = sparse((size, 16), 0.8)
    # What is multiplied with is of ``size`` features, along the axis that the flags leave.
    turned = a if first else b
    stored = weight.T if turned != first else weight
    last = b if first else not a
    x = [rows, size] if last else [size, rows]
    fused = node(
        "FusedMatMul",
        ["w", "x"] if first else ["x", "w"],
        alpha=alpha,
        transA=int(a),
        transB=int(b),
        domain="com.microsoft",
    )
    path = tmp_path_factory.mktemp("fused")
    ports = {"x": [*[2] * (rank - 2), *x]}
    report = converted(write(path / "in.onnx", [fused], {"w": np.ascontiguousarray(stored)}, ports))
    assert [layer.kind for layer in report.layers] == ["FusedMatMul"]
    assert report.layers[0].decision == "condensed" or report.layers[0].sparsity < 0.5


def attention(path: Path, *, mask: str | None = None, scores: bool = False, **attributes) -> Path:
    """Write an attention of 4 heads over 32 features, as transformers' optimizer makes it."""
    fused = node(
        "Attention",
        ["x", "w", "b", *(["mask" if mask else ""] if mask or scores else [])]
        + (["", "scores"] if scores else []),
        domain="com.microsoft",
        num_heads=4,
        **attributes,
    )
    rng = np.random.default_rng(0)
    constants = {"w": sparse((32, 96)), "b": rng.standard_normal(96).astype(np.float32)}
    ports: dict[str, Sequence[int | str]] = {"x": ("batch", 5, 32)}
    if mask:
        ports["mask"] = ("batch", 5) if mask == "tokens" else ("batch",)
    if scores:
        ports["scores"] = ("batch", 4, 5, 5)
    kinds = {"mask": TensorProto.INT32}
    return write(path, [fused], constants, ports, kinds, ("batch", 5, 32))


@pytest.mark.parametrize(
    "fields",
    [{}, {"unidirectional": 1}, {"mask": "tokens"}, {"scores": True}, {"scale": 0.5}],
    ids=str,
)
def test_merged_weight_of_attention_is_a_layer(tmp_path: Path, fields: dict):
    source = attention(tmp_path / "in.onnx", **fields)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 5, 32)).astype(np.float32)}
    if "mask" in fields:
        feeds["mask"] = np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    if "scores" in fields:
        feeds["scores"] = np.random.default_rng(2).standard_normal((2, 4, 5, 5)).astype(np.float32)
    report = converted(source, inputs=[feeds])
    (layer,) = report.layers
    assert (layer.name, layer.decision, layer.kind) == ("w", "condensed", "Attention")
    assert len(report.parity) == 2
    assert node_types(tmp_path / "out.onnx") == ["CondensedGemm", "Split", "MultiHeadAttention"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mask": "lengths"}, "its attention has a mask of other dimensions"),
        ({"qkv_hidden_sizes": [32, 32, 32]}, "its attention has rotary embeddings, shared"),
    ],
    ids=["lengths", "sizes"],
)
def test_attention_that_stays_says_why(tmp_path: Path, fields: dict, reason: str):
    source = attention(tmp_path / "in.onnx", **fields)
    (layer,) = plan_conversion(source, policy="condensed")
    assert (layer.decision, layer.kind) == ("dense", "Attention")
    assert layer.reason.startswith(reason)


def test_layers_beside_fused_operators_are_condensed(tmp_path: Path):
    """A feed-forward block, which onnxruntime.transformers fuses around its MatMuls."""
    constants = {
        "w0": sparse((32, 64)),
        "b0": np.ones(64, np.float32),
        "root": np.float32(np.sqrt(2)),
        "one": np.float32(1),
        "half": np.float32(0.5),
        "w1": sparse((64, 32), seed=1),
        "b1": np.ones(32, np.float32),
        "scale": np.ones(32, np.float32),
        "shift": np.zeros(32, np.float32),
    }
    nodes = [
        node("MatMul", ["x", "w0"], "m0"),
        node("Add", ["m0", "b0"], "a0"),
        node("Div", ["a0", "root"], "d"),
        node("Erf", ["d"], "e"),
        node("Add", ["e", "one"], "f"),
        node("Mul", ["a0", "f"], "g"),
        node("Mul", ["g", "half"], "h"),
        node("MatMul", ["h", "w1"], "m1"),
        node("Add", ["m1", "b1"], "a1"),
        node("Add", ["a1", "x"], "s"),
        node("LayerNormalization", ["s", "scale", "shift"], "y", axis=-1),
    ]
    source = write(tmp_path / "in.onnx", nodes, constants, {"x": ("batch", "tokens", 32)})
    made = optimizer.optimize_model(str(source), "bert", num_heads=4, hidden_size=32, opt_level=0)
    made.save_model_to_file(str(tmp_path / "fused.onnx"))
    assert {"BiasGelu", "SkipLayerNormalization"} <= set(node_types(tmp_path / "fused.onnx"))
    report = converted(tmp_path / "fused.onnx")
    assert [layer.decision for layer in report.layers] == ["condensed", "condensed"]
    assert len(report.parity) == 2
