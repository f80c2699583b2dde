"""What passes add to a file has names that nothing else in it has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from fanin.export import convert

from .onnx_models import node, node_types, run, sparse, write_model


def test_new_values_in_a_branch_shadow_no_value_around_it(tmp_path: Path):
    # Two Transposes of attention's heads become one; new values are called "val_0" and so on.
    inner = [("Reshape", "merged"), ("Transpose", [1, 0, 2]), ("Reshape", "parts")]
    nodes, last = [], "x"
    for place, (op, how) in enumerate(inner):
        inputs, perm = ([last, how], {}) if op == "Reshape" else ([last], {"perm": how})
        last = f"inner_{place}"
        nodes.append(node(op, inputs, last, **perm))
    nodes.append(node("Add", [last, "val_19"], "sum"))
    port = helper.make_tensor_value_info("sum", TensorProto.FLOAT, [None] * 4)
    shapes = {"merged": np.array([5, -1, 4]), "parts": np.array([-1, 3, 5, 4])}
    constants = [numpy_helper.from_array(array, name) for name, array in shapes.items()]
    yes = helper.make_graph(nodes, "yes", [], [port], constants)
    other = helper.make_tensor_value_info("other", TensorProto.FLOAT, [None] * 4)
    no = helper.make_graph([node("Expand", ["val_3", "large"], "other")], "no", [], [other])
    chain = [node("ReduceMax", ["x"], "val_0", keepdims=0)]
    chain += [node("Mul", [f"val_{i - 1}", "half"], f"val_{i}") for i in range(1, 20)]
    arrays = {"large": np.array([1, 3, 5, 4]), "half": np.float32(0.5)}
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    source = write_model(
        tmp_path / "in.onnx",
        [*chain, node("If", ["flag"], then_branch=yes, else_branch=no)],
        arrays,
        x=(5, "batch", 12),
        y=(None, 3, 5, 4),
        inputs=[flag],
    )
    convert(source, tmp_path / "out.onnx")
    x = np.random.default_rng(0).standard_normal((5, 2, 12)).astype(np.float32)
    inputs = {"x": x, "flag": np.array(True)}
    np.testing.assert_array_equal(*run(tmp_path / "out.onnx", **inputs), *run(source, **inputs))


def test_layers_that_share_a_flattened_input_each_get_a_view_of_their_own(tmp_path: Path):
    nodes = [node("Reshape", ["x", "matrix"], "flat")]
    for place in range(2):
        nodes.append(node("MatMul", ["flat", f"w{place}"], f"product_{place}"))
        nodes.append(node("Reshape", [f"product_{place}", "rows"], f"rows_{place}"))
    nodes.append(node("Add", ["rows_0", "rows_1"]))
    arrays = {
        "w0": sparse((48, 32), seed=1),
        "w1": sparse((48, 32), seed=2),
        "matrix": np.array([-1, 48]),
        "rows": np.array([-1, 5, 32]),
    }
    source = write_model(
        tmp_path / "in.onnx", nodes, arrays, x=("batch", 5, 6, 8), y=("batch", 5, 32)
    )
    convert(source, tmp_path / "out.onnx", policy="condensed")
    x = np.random.default_rng(0).standard_normal((2, 5, 6, 8)).astype(np.float32)
    (actual,), (expected,) = run(tmp_path / "out.onnx", library=True, x=x), run(source, x=x)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_packed_projections_without_node_names_are_split_under_names_of_their_own(tmp_path: Path):
    nodes = []
    for place in range(2):
        steps = [
            ("MatMul", ["w"], {}),
            ("Reshape", ["parts"], {}),
            ("Unsqueeze", ["zero"], {}),
            ("Transpose", [], {"perm": [3, 1, 2, 0, 4]}),
            ("Squeeze", ["third"], {}),
            ("Gather", ["first"], {"axis": 0}),
        ]
        last = "x" if place == 0 else "part_0"
        for op, others, attributes in steps:
            output = f"part_{place}" if op == "Gather" else f"{op}_{place}"
            nodes.append(helper.make_node(op, [last, *others], [output], **attributes))
            last = output
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    arrays = {
        "w": sparse((48, 96)),
        "parts": np.array([5, -1, 2, 48]),
        "zero": np.array([0]),
        "third": np.array([3]),
        "first": np.array(0),
    }
    source = write_model(
        tmp_path / "in.onnx", nodes, arrays, x=(5, "batch", 48), y=(5, "batch", 48)
    )
    convert(source, tmp_path / "out.onnx", policy="condensed")
    assert node_types(tmp_path / "out.onnx").count("Split") == 2
    x = np.random.default_rng(0).standard_normal((5, 2, 48)).astype(np.float32)
    (actual,), (expected,) = run(tmp_path / "out.onnx", library=True, x=x), run(source, x=x)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
