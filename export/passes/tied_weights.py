"""Keep the weight that an embedding and an output layer share one tensor."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .access import name_of, remove_unread_constant


class KeepTiedWeightsPass(ir.passes.InPlacePass):
    """Read the transpose of an embedding from the embedding itself.

    An output layer that is tied to the embedding reads its transpose, which torch's optimizer
    stores beside it where it is small. ONNX Runtime computes it once, when it loads the file.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace copies in the main graph."""
        read = [node.inputs[0] for node in model.graph if node.op_type == "Gather"]
        tables = {value.name: value for value in read if value is not None}
        shared = [_share(model.graph, table) for table in tables.values() if _is_weight(table)]
        return ir.passes.PassResult(model, modified=any(shared))


def _is_weight(value: ir.Value) -> bool:
    tensor = value.const_value
    return value.is_initializer() and tensor is not None and len(tensor.shape) == 2


def _share(graph: ir.Graph, table: ir.Value) -> bool:
    stored = table.const_value
    assert stored is not None  # asked before
    for value in list(graph.initializers.values()):
        copy = value.const_value
        if copy is None or value is table or copy.dtype != stored.dtype:
            continue
        if tuple(copy.shape) != (stored.shape[1], stored.shape[0]):
            continue
        if not np.array_equal(copy.numpy(), stored.numpy().T):
            continue
        name = f"{name_of(table)}.transpose"
        transposed = ir.node("Transpose", [table], {"perm": [1, 0]}, name=name)
        transposed.outputs[0].name = name
        transposed.outputs[0].shape = ir.Shape(copy.shape.numpy())
        transposed.outputs[0].dtype = stored.dtype
        graph.insert_before(graph[0], transposed)
        value.replace_all_uses_with(transposed.outputs[0])
        remove_unread_constant(value)
        return True
    return False
