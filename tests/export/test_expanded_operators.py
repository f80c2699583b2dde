"""Weights of experts, convolutions over three axes and strided ConvTranspose are condensed.

The conversion compares its outputs with those of the source in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from torch import nn

from fanin.export import ExportReport, convert, export
from fanin.export.onnx_convert import plan_conversion

from .onnx_models import node_types, run, sparse


def write(
    path: Path,
    op: str,
    x_shape: Sequence[int | str],
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    **attributes,
) -> Path:
    constants = [numpy_helper.from_array(weight, "w")]
    names = ["x", "w"]
    if bias is not None:
        constants.append(numpy_helper.from_array(bias, "b"))
        names.append("b")
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="layer", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", 1, x_shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def converted(path: Path, *arguments, policy: str = "condensed", **fields) -> ExportReport:
    source = write(path / "in.onnx", *arguments, **fields)
    return convert(source, path / "out.onnx", policy=policy)


@pytest.mark.parametrize(
    "x_shape",
    [(3, "tokens", 20), ("batch", 3, 5, 20), ("tokens", 20), (1, "tokens", 20)],
    ids=str,
)
def test_each_expert_becomes_a_layer(tmp_path: Path, x_shape: Sequence[int | str]):
    report = converted(tmp_path, "MatMul", x_shape, sparse((3, 20, 12)))
    assert [layer.name for layer in report.layers] == [f"w (matrix {n})" for n in range(3)]
    assert {layer.decision for layer in report.layers} == {"condensed"}
    assert {layer.shape for layer in report.layers} == {(12, 20)}
    assert node_types(tmp_path / "out.onnx").count("CondensedGemm") == 3


def test_a_dense_expert_stays_dense_beside_sparse_ones(tmp_path: Path):
    weight = sparse((4, 20, 12))
    weight[2] = 1
    report = converted(tmp_path, "MatMul", (4, 5, 20), weight)
    decisions = {layer.name: layer.decision for layer in report.layers}
    assert decisions.pop("w (matrix 2)") == "dense"
    assert set(decisions.values()) == {"condensed"}


@pytest.mark.parametrize(
    ("x_shape", "weight", "reason"),
    [
        (("batch", 5, 20), (3, 20, 24), "it is not known that what it is multiplied with is of 3"),
        ((65, 2, 4), (65, 4, 6), "it is 65 matrices, and at most 64"),
    ],
    ids=["batches", "many"],
)
def test_experts_that_stay_have_a_reason(tmp_path: Path, x_shape, weight, reason: str):
    source = write(tmp_path / "in.onnx", "MatMul", x_shape, sparse(weight))
    (layer,) = plan_conversion(source, policy="condensed")
    assert (layer.decision, layer.name) == ("dense", "w")
    assert layer.reason.startswith(reason)


@pytest.mark.parametrize("policy", ["auto", "dense", "structured"])
def test_small_experts_stay_as_they_are(tmp_path: Path, policy: str):
    report = converted(tmp_path, "MatMul", (8, 2, 16), sparse((8, 16, 12)), policy=policy)
    wanted = "matrices is predicted" if policy == "auto" else f"policy {policy}, which leaves"
    assert wanted in report.layers[0].reason
    assert node_types(tmp_path / "out.onnx") == ["MatMul"]


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.from_numpy(sparse((3, 20, 12))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.transpose(0, 1), self.up).transpose(0, 1)


def test_bmm_of_torch_has_a_line_for_each_expert(tmp_path: Path):
    path = tmp_path / "out.onnx"
    report = export(Experts().eval(), torch.randn(2, 3, 20), path, policy="condensed")
    assert [layer.name for layer in report.layers] == [f"up (matrix {n})" for n in range(3)]
    assert {layer.decision for layer in report.layers} == {"condensed"}
    assert len(report.parity) == 2


@st.composite
def transposed(draw: st.DrawFn) -> dict[str, object]:
    """A ConvTranspose of a stride over 1, over one or two axes."""
    axes, stride, group = draw(st.integers(1, 2)), draw(st.integers(2, 3)), draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 5)) for _ in range(axes)]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * axes)]
    more = [draw(st.integers(0, stride - 1)) for _ in range(axes)]
    sizes = [draw(st.integers(2, 5)) for _ in range(axes)]
    for axis in range(axes):
        end = pads[axis + axes] - more[axis]
        assume(-(-kernel[axis] // stride) * stride - kernel[axis] + end >= 0)
        assume((sizes[axis] - 1) * stride + kernel[axis] - pads[axis] - end > 0)
    return {
        "x_shape": ["batch", 2 * group, *sizes],
        "weight": sparse((2 * group, 3, *kernel), 0.7, seed=sum(kernel)),
        "bias": draw(st.sampled_from([None, np.arange(3 * group, dtype=np.float32)])),
        "strides": [stride] * axes,
        "pads": pads,
        "output_padding": more,
        "group": group,
    }


@settings(max_examples=15, deadline=None)
@given(layer=transposed())
def test_any_strided_transposed_convolution_keeps_its_outputs(
    tmp_path_factory: pytest.TempPathFactory, layer: dict[str, object]
):
    path = tmp_path_factory.mktemp("transposed")
    x_shape, weight = layer.pop("x_shape"), layer.pop("weight")
    report = converted(path, "ConvTranspose", x_shape, weight, **layer)
    (found,) = report.layers
    assert found.kind == "ConvTranspose"
    if (weight != 0).mean() <= 0.5:
        assert found.decision == "condensed"


def test_phases_store_each_weight_once(tmp_path: Path):
    weight = sparse((16, 8, 4, 4))
    report = converted(
        tmp_path, "ConvTranspose", (1, 16, 5, 5), weight, strides=[2, 2], pads=[1] * 4
    )
    (layer,) = report.layers
    assert layer.shape == (32, 16, 2, 2)
    stored = layer.active * layer.fan_in - layer.padding
    assert stored == np.count_nonzero(weight)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"strides": [2, 1]}, "ConvTranspose of three axes, unequal strides"),
        ({"strides": [2, 2], "dilations": [2, 2]}, "ConvTranspose of three axes, unequal strides"),
        ({"strides": [2, 2], "auto_pad": "SAME_UPPER"}, "ConvTranspose of automatic pads"),
        ({"strides": [2, 2], "output_padding": [1, 1]}, "its output_padding reaches beyond"),
    ],
    ids=["unequal", "dilated", "automatic", "padded"],
)
def test_transposed_convolutions_that_stay_have_a_reason(tmp_path: Path, attributes, reason):
    source = write(
        tmp_path / "in.onnx", "ConvTranspose", (1, 8, 5, 5), sparse((8, 6, 4, 4)), **attributes
    )
    (layer,) = plan_conversion(source, policy="condensed")
    assert (layer.decision, layer.kind) == ("dense", "ConvTranspose")
    assert layer.reason.startswith(reason)


def test_auto_leaves_a_small_transposed_convolution(tmp_path: Path):
    report = converted(
        tmp_path,
        "ConvTranspose",
        (1, 4, 3, 3),
        sparse((4, 4, 2, 2), 0.75),
        policy="auto",
        strides=[2, 2],
    )
    assert node_types(tmp_path / "out.onnx") == ["ConvTranspose"]
    assert "a sparse convolution in its place is predicted" in report.layers[0].reason


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((1, 1, 1), {}),
        ((3, 1, 1), {"pads": [1, 0, 0, 2, 0, 0], "strides": [2, 1, 1]}),
        ((3, 1, 1), {"dilations": [2, 3, 1]}),
        ((1, 1, 3), {"pads": [0, 0, 1, 0, 0, 1]}),
        ((1, 1, 2), {"group": 2}),
        ((1, 3, 2), {"pads": [0, 1, 0, 0, 1, 1], "strides": [1, 2, 1], "dilations": [1, 1, 2]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [(6, 4, 5), ("d", "h", "w")], ids=["fixed", "symbolic"])
def test_convolution_along_some_of_three_axes_is_condensed(
    tmp_path: Path, kernel, attributes, sizes
):
    weight = sparse((12, 16 // attributes.get("group", 1), *kernel))
    bias = np.arange(12, dtype=np.float32)
    report = converted(tmp_path, "Conv", ("batch", 16, *sizes), weight, bias, **attributes)
    (layer,) = report.layers
    assert layer.decision == "condensed"
    x = np.random.default_rng(0).standard_normal((2, 16, 7, 3, 6)).astype(np.float32)
    if sizes[0] == "d":
        for some in (x, x[:0]):
            (expected,), (actual,) = (
                run(tmp_path / name, library=name == "out.onnx", x=some)
                for name in ("in.onnx", "out.onnx")
            )
            np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [((3, 3, 3), {}), ((2, 1, 3), {}), ((1, 1, 1), {"strides": [2, 1, 2]})],
    ids=["cube", "ends", "strided"],
)
def test_other_convolutions_over_three_axes_stay(tmp_path: Path, kernel, attributes):
    source = write(
        tmp_path / "in.onnx", "Conv", (1, 16, 4, 4, 4), sparse((12, 16, *kernel)), **attributes
    )
    (layer,) = plan_conversion(source, policy="condensed")
    assert layer.reason == "convolutions over three axes have no kernel"


def test_convolution_over_one_axis_is_condensed(tmp_path: Path):
    report = converted(
        tmp_path, "Conv", ("batch", 16, "length"), sparse((12, 16, 5)), strides=[2], pads=[2, 1]
    )
    assert report.layers[0].decision == "condensed"
    assert node_types(tmp_path / "out.onnx") == ["CondensedConv"]
