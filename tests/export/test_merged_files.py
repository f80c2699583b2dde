"""Files of ours that other tools have put together, or whose names they have changed."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import compose, helper

from fanin.export import convert, inspect

from .onnx_models import node, run, sparse, write_model


def part(tmp_path: Path, name: str, seed: int) -> Path:
    """Write a file of ours of two layers from ``NAME_in`` to ``NAME_out``."""
    shape = ("batch", 32)
    source = write_model(
        tmp_path / f"{name}.dense.onnx",
        [
            node("MatMul", ["x", f"{name}.w"], f"{name}_h"),
            node("MatMul", [f"{name}_h", f"{name}.v"], "y"),
        ],
        {f"{name}.w": sparse((32, 32), seed=seed), f"{name}.v": sparse((32, 32), seed=seed + 1)},
        x=shape,
        y=shape,
    )
    convert(source, tmp_path / f"{name}.onnx", policy="condensed")
    model = onnx.load(tmp_path / f"{name}.onnx")
    names = {"x": f"{name}_in", "y": f"{name}_out"}
    for value in (*model.graph.input, *model.graph.output):
        value.name = names[value.name]
    for one in model.graph.node:
        one.name = f"{name}_{one.name}"
        for side in (one.input, one.output):
            side[:] = [names.get(value, value) for value in side]
    onnx.save(model, tmp_path / f"{name}.onnx")
    return tmp_path / f"{name}.onnx"


OPSETS = [helper.make_opsetid("", 17)]

X = np.random.default_rng(9).standard_normal((3, 32)).astype(np.float32)


def expected(first: Path, second: Path) -> np.ndarray:
    middle = run(first, library=True, **{f"{first.stem}_in": X})[0]
    return run(second, library=True, **{f"{second.stem}_in": middle})[0]


def test_constants_of_two_files_have_no_name_in_common(tmp_path: Path):
    names = [
        {tensor.name for tensor in onnx.load(part(tmp_path, name, seed)).graph.initializer}
        for name, seed in (("a", 0), ("b", 5))
    ]
    assert len(names[0]) == len(names[1]) == 9
    assert not names[0] & names[1]


def test_files_are_merged_without_prefixes_once_one_of_them_brings_the_functions(tmp_path: Path):
    first, second = part(tmp_path, "a", 0), part(tmp_path, "b", 5)
    left, right = onnx.load(first), onnx.load(second)
    del right.functions[:]
    onnx.save(
        compose.merge_models(left, right, io_map=[("a_out", "b_in")]), tmp_path / "merged.onnx"
    )
    merged = run(tmp_path / "merged.onnx", library=True, a_in=X)[0]
    np.testing.assert_array_equal(merged, expected(first, second))


@pytest.mark.parametrize("domain", ["ai.fanin", "someone"])
def test_an_export_gives_renamed_ops_their_names_back(tmp_path: Path, domain: str):
    first, second = part(tmp_path, "a", 0), part(tmp_path, "b", 5)
    merged = compose.merge_models(
        onnx.load(first), onnx.load(second), io_map=[("a_out", "b_in")], prefix1="p_", prefix2="q_"
    )
    for one in (*merged.graph.node, *merged.functions):
        one.domain = domain
    merged.opset_import.append(helper.make_opsetid(domain, 1))
    onnx.save(merged, tmp_path / "merged.onnx")
    said = inspect(tmp_path / "merged.onnx").altered
    assert said.startswith("2 p_CondensedGemm, 2 q_CondensedGemm: ops of fanin that another tool")
    report = convert(tmp_path / "merged.onnx", tmp_path / "out.onnx", policy="condensed")
    assert [note for note in report.notes if "renamed" in note] == [
        f"2 nodes {domain}::{prefix}_CondensedGemm are CondensedGemm again, which another tool had "
        "renamed"
        for prefix in "pq"
    ]
    model = onnx.load(tmp_path / "out.onnx")
    assert {(one.domain, one.op_type) for one in model.graph.node} == {
        ("ai.fanin", "CondensedGemm")
    }
    assert [body.name for body in model.functions] == ["CondensedGemm"]
    assert not inspect(tmp_path / "out.onnx").altered
    got = run(tmp_path / "out.onnx", library=True, p_a_in=X)[0]
    np.testing.assert_array_equal(got, expected(first, second))


def test_a_function_that_is_only_named_alike_stays(tmp_path: Path):
    body = helper.make_function(
        "someone", "MyCondensedGemm", ["x"], ["y"], [node("Neg", ["x"])], OPSETS
    )
    call = helper.make_node("MyCondensedGemm", ["x"], ["h"], domain="someone", name="call")
    source = write_model(
        tmp_path / "in.onnx",
        [call, node("MatMul", ["h", "w"])],
        {"w": sparse((48, 32))},
        functions=[body],
    )
    model = onnx.load(source)
    model.opset_import.append(helper.make_opsetid("someone", 1))
    onnx.save(model, source)
    convert(source, tmp_path / "out.onnx", policy="condensed")
    nodes = onnx.load(tmp_path / "out.onnx").graph.node
    assert [one.op_type for one in nodes] == ["MyCondensedGemm", "CondensedGemm"]
