"""Sizes that a graph computes although they are known, as torch's exporter writes them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .nodes import dimensions_of


def fix_sizes(value: ir.Value) -> None:
    """Make constants of the Shape nodes behind a value whose result is known."""
    waiting, seen = [value], {value}
    while waiting:
        node = waiting.pop().producer()
        if node is None:
            continue
        if node.op_type == "Shape" and node.domain == "":
            _fix(node)
            continue
        for side in node.inputs:
            if side is not None and side not in seen:
                seen.add(side)
                waiting.append(side)


def _fix(node: ir.Node) -> None:
    data = node.inputs[0]
    sizes = None if data is None else dimensions_of(data)
    if sizes is None:
        return
    start = node.attributes.get_int("start", 0)
    wanted = sizes[start : node.attributes.get_int("end", len(sizes))]
    if all(isinstance(size, int) for size in wanted):
        tensor = ir.tensor(np.array(wanted, np.int64))
        constant = ir.node("Constant", [], attributes={"value": tensor}, name=node.name)
        output = node.outputs[0]
        new = constant.outputs[0]
        new.name, new.type, new.shape = output.name, output.type, output.shape
        new.const_value = tensor
        node.append(constant)
        ir.convenience.replace_all_uses_with(output, new, replace_graph_outputs=True)
        output.name = None
        node.graph.remove(node, safe=True) if node.graph else None
