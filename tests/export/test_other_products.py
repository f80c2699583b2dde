"""Products that are no MatMul of a right operand: Einsum, left operands, ConvTranspose.

The conversion compares its outputs with those of the source in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from fanin.deploy import open_session
from fanin.export import ExportReport, convert


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kept = rng.random(shape) < 0.2
    kept.reshape(len(kept), -1)[:, 0] = True
    return (rng.standard_normal(shape) * kept).astype(np.float32)


def converted(
    path: Path,
    op: str,
    x_shape: Sequence[int | str],
    array: np.ndarray,
    *,
    weight_first: bool = False,
    bias: np.ndarray | None = None,
    policy: str = "condensed",
    **attributes,
) -> ExportReport:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    names = ["w", "x"] if weight_first else ["x", "w"]
    constants = [numpy_helper.from_array(array, "w")]
    if bias is not None:
        names.append("b")
        constants.append(numpy_helper.from_array(bias, "b"))
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="layer", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", kind, x_shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path / "in.onnx")
    return convert(path / "in.onnx", path / "out.onnx", policy=policy, min_sparsity=0.2)


EQUATIONS = {
    "bi,oi->bo": (("batch", 40), (24, 40)),
    "bi,io->bo": (("batch", 40), (40, 24)),
    "btd,dhk->bthk": (("batch", 5, 40), (40, 3, 8)),
    "bthk,hkd->btd": (("batch", 5, 3, 8), (3, 8, 40)),
    "bhtk,hkd->btd": (("batch", 3, 5, 8), (3, 8, 40)),
    "btd,dhk->bhtk": (("batch", 5, 40), (40, 3, 8)),
    "bcn,oc->bon": (("batch", 40, 6), (24, 40)),
    "i,oi->o": ((40,), (24, 40)),
    "...i,oi->...o": (("batch", 3, 40), (24, 40)),
    "b...i,oi->ob...": (("batch", 3, 2, 40), (24, 40)),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_is_a_product(tmp_path: Path, equation: str):
    x_shape, shape = EQUATIONS[equation]
    report = converted(tmp_path, "Einsum", x_shape, weight(*shape), equation=equation)
    (layer,) = report.layers
    assert (layer.decision, layer.kind) == ("condensed", "Einsum")
    assert len(report.parity) > 0


def test_weight_may_be_the_first_operand_of_einsum(tmp_path: Path):
    w = weight(24, 40)
    equation = "oi,bi->bo"
    report = converted(tmp_path, "Einsum", ("batch", 40), w, equation=equation, weight_first=True)
    assert report.layers[0].decision == "condensed"


@pytest.mark.parametrize(
    ("equation", "x_shape", "shape", "reason"),
    [
        ("bhi,hio->bho", ("batch", 3, 40), (3, 40, 24), "differs along an axis that the output"),
        ("bi,oj->bo", ("batch", 40), (24, 30), "is no product of activations and a weight"),
        ("bi,oi", ("batch", 40), (24, 40), "names no output"),
        ("bi,oi->bo", ("batch", "size"), (24, 40), "an axis that its equation bi,oi->bo sums over"),
        ("bij,oij->bo", ("batch", 40, 4), (24, 40, 1), "sums over is not known"),
        ("bi,oo->bio", ("batch", 40), (24, 24), "takes a diagonal"),
    ],
)
def test_other_equations_stay_with_the_reason(
    tmp_path: Path, equation: str, x_shape, shape, reason: str
):
    (layer,) = converted(tmp_path, "Einsum", x_shape, weight(*shape), equation=equation).layers
    assert layer.decision == "dense"
    assert reason in layer.reason


def test_ellipsis_may_stand_in_the_output_alone(tmp_path: Path):
    report = converted(tmp_path, "Einsum", ("batch", 40), weight(24, 40), equation="bi,oi->...bo")
    assert report.layers[0].decision == "condensed"


def test_product_of_an_empty_batch_is_empty(tmp_path: Path):
    converted(tmp_path, "Einsum", ("batch", 8, 12), weight(64, 8, 12), equation="bij,oij->bo")
    session = open_session(tmp_path / "out.onnx")
    (y,) = session.run(None, {"x": np.zeros((0, 8, 12), np.float32)})
    assert y.shape == (0, 64)


def test_gemm_with_its_weight_on_the_left_stays(tmp_path: Path):
    for attributes in ({}, {"alpha": 2.0}, {"transA": 1}):
        report = converted(
            tmp_path, "Gemm", (40, "batch"), weight(40, 40), weight_first=True, **attributes
        )
        assert report.layers[0].reason == "the weight is the left operand"


@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_product_in_another_type_stays(tmp_path: Path, kind: type):
    report = converted(
        tmp_path, "MatMul", (40, "batch"), weight(24, 40).astype(kind), weight_first=True
    )
    assert report.layers[0].reason == f"computes in {kind.__name__}, which no kernel does"


@st.composite
def products(draw: st.DrawFn) -> tuple[str, list[int], list[int]]:
    """An equation of free, contracted and output axes in any order, with the sizes."""
    letters = draw(st.permutations("abcdefgh"))
    counts = [draw(st.integers(0, 2)), draw(st.integers(1, 2)), draw(st.integers(0, 2))]
    ends = np.cumsum(counts)
    free, contracted, outs = (
        letters[start:end] for start, end in zip([0, *ends], ends, strict=False)
    )
    assume(len(contracted) + len(outs) >= 2)
    size = {letter: draw(st.integers(2, 5)) for letter in letters}
    x = draw(st.permutations([*free, *contracted]))
    w = draw(st.permutations([*outs, *contracted]))
    y = draw(st.permutations([*free, *outs]))
    equation = f"{''.join(x)},{''.join(w)}->{''.join(y)}"
    return equation, [size[c] for c in x], [size[c] for c in w]


@settings(max_examples=25, deadline=None)
@given(product=products())
def test_any_product_keeps_its_outputs(tmp_path_factory: pytest.TempPathFactory, product):
    equation, x_shape, shape = product
    path = tmp_path_factory.mktemp("einsum")
    report = converted(path, "Einsum", x_shape, weight(*shape), equation=equation)
    (layer,) = report.layers
    assert layer.decision == "condensed" or layer.sparsity < 0.2


@pytest.mark.parametrize(
    "x_shape", [(40,), (40, 6), ("batch", 40, 6), ("batch", 2, 40, 6)], ids=str
)
def test_weight_on_the_left_is_condensed(tmp_path: Path, x_shape):
    report = converted(tmp_path, "MatMul", x_shape, weight(24, 40), weight_first=True)
    (layer,) = report.layers
    assert (layer.decision, layer.shape) == ("condensed", (24, 40))


def test_auto_leaves_a_slower_product_as_it_was(tmp_path: Path):
    report = converted(
        tmp_path, "Einsum", ("batch", 8), weight(8, 8), equation="bi,oi->bo", policy="auto"
    )
    assert report.layers[0].decision == "dense"
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == ["Einsum"]


@pytest.mark.parametrize(
    ("x_shape", "shape", "attributes"),
    [
        (("batch", 8, 7, 6), (8, 6, 3, 2), {}),
        (("batch", 8, 7, 6), (8, 6, 3, 3), {"pads": [1, 1, 1, 1]}),
        (("batch", 8, 7, 6), (8, 6, 3, 3), {"pads": [2, 0, 1, 2]}),
        (("batch", 8, 7, 6), (8, 3, 3, 3), {"group": 4, "dilations": [2, 1]}),
        (("batch", 8, 9), (8, 6, 5), {"pads": [1, 2]}),
    ],
    ids=str,
)
def test_transposed_convolution_of_stride_1_is_a_convolution(
    tmp_path: Path, x_shape, shape, attributes
):
    bias = np.linspace(-1, 1, shape[1] * attributes.get("group", 1)).astype(np.float32)
    report = converted(tmp_path, "ConvTranspose", x_shape, weight(*shape), bias=bias, **attributes)
    (layer,) = report.layers
    assert (layer.decision, layer.kind) == ("condensed", "ConvTranspose")


def test_transposed_convolution_of_unequal_strides_stays(tmp_path: Path):
    report = converted(
        tmp_path, "ConvTranspose", ("batch", 8, 7, 6), weight(8, 6, 3, 3), strides=[2, 1]
    )
    assert report.layers[0].reason.startswith("ConvTranspose of three axes, unequal strides")
