"""The ops on 8-bit integers write Y over a residual that nothing else reads."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from fanin.ort_ops.contract import QUANTIZED_OPS
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._models import open_session, run
from ._quantized import QLINEAR_CONV, QLINEAR_GEMM, Node, random_node

every_op = pytest.mark.parametrize("op", QUANTIZED_OPS)


def halved(model: onnx.ModelProto, name: str) -> None:
    """Make an input a value between nodes, put together from two halves."""
    graph = model.graph
    given = next(value for value in graph.input if value.name == name)
    for half in ("a", "b"):
        part = helper.make_tensor_value_info(
            f"{name}_{half}", given.type.tensor_type.elem_type, None
        )
        graph.input.append(part)
    graph.input.remove(given)
    graph.node.insert(0, helper.make_node("Concat", [f"{name}_a", f"{name}_b"], [name], axis=0))


def halves(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{name}_a": array[:1], f"{name}_b": array[1:]}


def chain(node: Node, *names: str) -> onnx.ModelProto:
    """The node between others, with the named inputs as values between nodes."""
    model = node.build(fed=("X", *names))
    for name in names:
        halved(model, name)
    output = model.graph.output[0]
    model.graph.node.append(helper.make_node("Concat", ["Y", "Y"], ["Z"], axis=0))
    output.name = "Z"
    return model


@every_op
def test_a_residual_that_nothing_else_reads(op: str):
    for seed in range(4):
        node = random_node(op, seed, residual=True)
        session = open_session(chain(node, "residual"), threads=2)
        for _ in range(2):
            got = run(session, X=node.x, **halves("residual", node.arrays["residual"]))
            wanted = node.expected()
            np.testing.assert_array_equal(got, np.concatenate([wanted, wanted]))


@pytest.mark.parametrize("op", [QLINEAR_GEMM, QLINEAR_CONV])
def test_an_input_that_is_its_own_residual_is_not_overwritten(op: str):
    if op == QLINEAR_CONV:
        square = {"geometry": ConvGeometry(5, 5, (3, 3), pads=(1, 1, 1, 1))}
    else:
        square = {"in_features": 19, "outputs": 19}
    node = random_node(op, 5, x_type=np.uint8, y_type=np.uint8, residual=True, **square)
    node = node.having(residual=node.x)
    model = node.build()
    (made,) = model.graph.node
    made.input[list(node.arrays).index("residual")] = "X"
    residual = next(t for t in model.graph.initializer if t.name == "residual")
    model.graph.initializer.remove(residual)
    halved(model, "X")
    session = open_session(model, threads=2)
    got = run(session, **halves("X", node.x))
    np.testing.assert_array_equal(got, node.expected())
