"""What precision outputs are computed in, whatever their type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fanin.export import convert
from fanin.export.output_precision import output_precisions

from .onnx_models import node, node_types, sparse, write_model

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
W = sparse((48, 32))


def precisions(tmp_path: Path, nodes, arrays, outputs=("y",), **options) -> tuple[str, ...]:
    path = write_model(tmp_path / "m.onnx", nodes, arrays, y=None, **options)
    model = onnx.load(path)
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(n, FLOAT, None) for n in outputs)
    return output_precisions(model)


def test_casts_around_a_part_are_seen_in_what_depends_on_it_alone(tmp_path: Path):
    nodes = [
        node("Cast", ["x"], "h", to=HALF),
        node("MatMul", ["h", "wh"], "p"),
        node("Cast", ["p"], "q", to=FLOAT),
        node("MatMul", ["x", "w"], "r"),
        node("Add", ["q", "r"], "y"),
    ]
    arrays = {"w": W, "wh": W.astype(np.float16)}
    assert precisions(tmp_path, nodes, arrays, ("r", "q", "y")) == ("float32", "float16", "float16")


def test_weights_that_are_stored_in_half_precision_are_exact(tmp_path: Path):
    nodes = [node("Cast", ["wh"], "w", to=FLOAT), node("MatMul", ["x", "w"])]
    assert precisions(tmp_path, nodes, {"wh": W.astype(np.float16)}) == ("float32",)


@pytest.mark.parametrize(("kind", "name"), [(HALF, "float16"), (TensorProto.BFLOAT16, "bfloat16")])
def test_branches_and_functions_are_looked_into(tmp_path: Path, kind: int, name: str):
    rounds = [node("Cast", ["a"], "b", to=kind), node("Cast", ["b"], "c", to=FLOAT)]
    body = helper.make_function(
        "someone", "Round", ["a"], ["c"], rounds, [helper.make_opsetid("", 17)]
    )
    call = helper.make_node("Round", ["x"], ["y"], domain="someone")
    assert precisions(tmp_path, [call], {}, functions=[body]) == (name,)
    rounds[0].input[0] = "x"
    out = [helper.make_tensor_value_info("c", FLOAT, None)]
    branch = helper.make_graph(rounds, "branch", [], out)
    choose = node("If", ["flag"], then_branch=branch, else_branch=branch)
    assert precisions(tmp_path, [choose], {"flag": np.array(True)}) == (name,)


def test_a_part_in_half_precision_between_casts_is_condensed(tmp_path: Path):
    """As onnxconverter-common writes it with keep_io_types=True."""
    nodes = [
        node("MatMul", ["h", "w"], "a"),
        node("Relu", ["a"], "b"),
        node("MatMul", ["b", "v"], "c"),
        node("Cast", ["x"], "h", to=HALF),
        node("Cast", ["c"], "y", to=FLOAT),
    ]
    arrays = {"w": sparse((48, 64)), "v": sparse((64, 32), seed=1)}
    arrays = {name: array.astype(np.float16) for name, array in arrays.items()}
    source = write_model(tmp_path / "in.onnx", nodes, arrays)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert node_types(tmp_path / "out.onnx").count("CondensedGemm") == 2
    for check in report.parity:
        # Noise of the original may allow more, within what float16 may lose.
        assert 2e-3 <= check.tolerance <= 2e-2
        assert check.relative_error <= 2e-3
