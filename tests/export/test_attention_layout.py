"""Reshapes, Transposes and Splits of attention: fewer of them, and nothing else changes."""

import itertools
import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes import common

from fanin.export.passes.flat_linear import UnflattenPass
from fanin.export.passes.head_layout import OrderHeadsPass
from fanin.export.passes.packed_projection import SplitProjectionPass
from fanin.export.passes.separate_projection import SeparateProjectionPass

BATCH = "batch"
X = (5, BATCH, 12)
WEIGHT = np.random.default_rng(0).standard_normal((12, 7)).astype(np.float32)


class Graph:
    """A graph from x, and w where something reads it; integers become constants."""

    def __init__(self, sizes=X):
        self.sizes, self.nodes, self.constants = sizes, [], {}

    def constant(self, array: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def __call__(self, op_type: str, *inputs, outputs: int = 1, **attributes):
        read = [x if isinstance(x, str) else self.constant(np.array(x)) for x in inputs]
        names = [f"{op_type}_{len(self.nodes)}_{place}" for place in range(outputs)]
        self.nodes.append(helper.make_node(op_type, read, names, name=names[0], **attributes))
        return names[0] if outputs == 1 else names

    def model(self, *outputs: str) -> onnx.ModelProto:
        ports = {"x": list(self.sizes), "w": [12, 7]}
        graph = helper.make_graph(
            self.nodes,
            "attention",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ports.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            list(self.constants.values()),
        )
        opsets = [helper.make_opsetid("", 18)]
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=opsets, ir_version=9), data_prop=True
        )


def rewritten(model: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
    """Run the passes that change the layout, in the order of an export."""
    graph = ir.from_proto(model)
    found = SplitProjectionPass()(graph)
    results = [
        found,
        OrderHeadsPass()(graph),
        UnflattenPass()(graph),
        SeparateProjectionPass(found.splits)(graph),
    ]
    common.RemoveUnusedNodesPass()(graph)
    changed = ir.to_proto(graph)
    onnx.checker.check_model(changed, full_check=True)
    return changed, any(result.modified for result in results)


def operators(model: onnx.ModelProto) -> dict[str, int]:
    found = sorted(node.op_type for node in model.graph.node)
    return {op_type: len(list(group)) for op_type, group in itertools.groupby(found)}


def same(model: onnx.ModelProto, changed: onnx.ModelProto, sizes=X, batches=(1, 3)) -> None:
    for batch in batches:
        shape = [batch if size == BATCH else size for size in sizes]
        x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        before, after = (
            ReferenceEvaluator(m).run(None, {"x": x, "w": WEIGHT}) for m in (model, changed)
        )
        for one, other in zip(before, after, strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(other, one, rtol=1e-5)


def check_rewritten(model: onnx.ModelProto, sizes=X, **wanted: int) -> None:
    changed, modified = rewritten(model)
    assert modified
    assert operators(changed) == wanted
    same(model, changed, sizes)


def check_left_alone(model: onnx.ModelProto) -> None:
    changed, modified = rewritten(model)
    assert not modified
    assert operators(changed) == operators(model)


def packed(**changes) -> onnx.ModelProto:
    """What takes query, key and value out of a packed projection."""
    g = Graph()
    at = {"shape": [5, -1, 3, 4], "unsqueeze": [0], "squeeze": [-2], "perm": [3, 1, 2, 0, 4]}
    at |= {"axis": 0, "indices": (0, 1, 2)} | changes
    y = g("Unsqueeze", g("Reshape", at.get("x", "x"), at["shape"]), at["unsqueeze"])
    y = g("Squeeze", g("Transpose", y, perm=at["perm"]), at["squeeze"])
    parts = [g("Gather", y, index, axis=at["axis"]) for index in at["indices"]]
    return g.model(*parts, *[y] * changes.get("read", False))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"squeeze": [3]},
        {"indices": (2, -2, 0)},
        {"indices": (1,)},
        {"shape": [5, -1, 4, 3]},
        {"shape": [5, -1, 2, 6], "indices": (0, 1)},
    ],
)
def test_parts_of_a_packed_projection_are_one_split(changes):
    check_rewritten(packed(**changes), Split=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"read": True},
        {"axis": 1},
        {"indices": ([0], [1], [2])},
        {"indices": (0, 0, 1)},
        {"perm": [3, 2, 1, 0, 4], "squeeze": [-2]},
        {"unsqueeze": [1], "perm": [3, 0, 2, 1, 4]},
        {"shape": [-1, 5, 3, 4]},
        {"shape": [15, -1, 1, 4], "indices": (0,)},
    ],
)
def test_what_is_no_packed_projection_is_left_alone(changes):
    check_left_alone(packed(**changes))


def heads(merged=(5, -1, 4), perm=(1, 0, 2), shape=(-1, 3, 5, 4), read="") -> onnx.ModelProto:
    """What brings heads to the front, counted as samples on the way."""
    g = Graph()
    merge = g("Reshape", "x", merged)
    turned = g("Transpose", merge, perm=perm)
    named = {"merge": merge, "turned": turned}
    return g.model(g("Reshape", turned, shape), *([named[read]] if read else []))


def test_heads_are_brought_to_the_front_by_one_transpose():
    check_rewritten(heads(), Reshape=1, Transpose=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (-1, 5, 3, 4)},
        {"shape": (3, -1, 5, 4)},
        {"shape": (-1, 3, 4, 5)},
        {"shape": (-1, 6, 5, 2)},
        {"merged": (5, -1, 6)},
        {"merged": (-1, 3, 4), "shape": (-1, 3, 5, 4)},
        {"perm": (0, 2, 1)},
        {"read": "merge"},
        {"read": "turned"},
    ],
)
def test_other_ways_through_three_dimensions_are_left_alone(changes):
    check_left_alone(heads(**changes))


SCORES = (BATCH, 3, 5, 4)


def key(merged=(-1, 5, 4), perm=(0, 2, 1), shape=(-1, 3, 4, 5), read=False) -> onnx.ModelProto:
    """What exchanges the last two dimensions of a key."""
    g = Graph(SCORES)
    turned = g("Transpose", g("Reshape", "x", merged), perm=perm)
    return g.model(g("Reshape", turned, shape), *[turned] * read)


def test_a_key_is_turned_by_one_transpose():
    check_rewritten(key(), SCORES, Transpose=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"merged": (-1, 4, 5), "shape": (-1, 3, 5, 4)},
        {"shape": (-1, 3, 5, 4)},
        {"shape": (3, -1, 4, 5)},
        {"perm": (1, 0, 2)},
        {"read": True},
    ],
)
def test_what_turns_something_else_is_left_alone(changes):
    check_left_alone(key(**changes))


def last_layer(flat=(-1, 12), shape=(5, -1, 7), **changes) -> onnx.ModelProto:
    """What follows attention: tokens to the front, the layer, samples to the front again."""
    g = Graph(SCORES)
    x = g("Transpose", "x", perm=changes.get("perm", (2, 0, 1, 3)))
    rows = g("Reshape", x, flat)
    weight = "w" if changes.get("computed") else g.constant(WEIGHT)
    if changes.get("gemm"):
        y = g("Gemm", rows, weight, np.arange(7, dtype=np.float32), transB=0)
    else:
        y = g("MatMul", rows, weight)
    back = g("Reshape", y, shape)
    read = {"x": x, "rows": rows, "y": y, "back": back}[changes.get("read", "x")]
    return g.model(
        g("Transpose", back, perm=changes.get("last", (1, 0, 2))),
        *[read] * ("read" in changes),
    )


@pytest.mark.parametrize(("gemm", "layer"), [(False, "MatMul"), (True, "Gemm")])
def test_rows_of_the_last_layer_get_their_order_once(gemm, layer):
    wanted = {"Transpose": 1, "Reshape": 2, layer: 1}
    check_rewritten(last_layer(gemm=gemm), SCORES, **wanted)


@pytest.mark.parametrize(
    "changes",
    [
        {"computed": True},
        {"shape": (-1, 5, 7)},
        {"last": (0, 2, 1)},
        {"read": "x"},
        {"read": "rows"},
        {"read": "y"},
        {"read": "back"},
    ],
)
def test_another_order_of_rows_is_left_alone(changes):
    check_left_alone(last_layer(**changes))


@st.composite
def chains(draw):
    """Transposes and Reshapes at random, of sizes that are easily confused."""
    sizes = draw(st.sampled_from([(2, BATCH, 4), (BATCH, 2, 4), (BATCH, 2, 2, 2), (4, BATCH, 4)]))
    g, value, shape = Graph(sizes), "x", [3 if size == BATCH else size for size in sizes]
    for _ in range(draw(st.integers(2, 6))):
        if draw(st.booleans()):
            perm = draw(st.permutations(range(len(shape))))
            if draw(st.booleans()):
                perm = [1, 0, *range(2, len(shape))] if len(shape) > 2 else [1, 0]
            value, shape = g("Transpose", value, perm=perm), [shape[place] for place in perm]
        else:
            place = draw(st.integers(0, len(shape) - 2))
            total = math.prod(shape)
            if draw(st.booleans()) and len(shape) > 2:
                shape = [*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :]]
            elif len(shape) < 5 and any(size % 2 == 0 for size in shape):
                place = next(i for i, size in enumerate(shape) if size % 2 == 0)
                shape = [*shape[:place], 2, shape[place] // 2, *shape[place + 1 :]]
            # The batch is the only odd factor, and is 3.
            wanted = [-1 if size % 3 == 0 else size for size in shape]
            assert total == math.prod(shape)
            value = g("Reshape", value, wanted)
    return g.model(value), sizes


@given(chains())
def test_reordering_at_random_gives_the_same(chain):
    model, sizes = chain
    changed, _ = rewritten(model)
    same(model, changed, sizes, batches=(3, 1) if sizes[0] == BATCH else (3,))
