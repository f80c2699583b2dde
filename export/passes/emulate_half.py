"""A graph of half precision as one of float32 that rounds after every operator.

It computes what the graph does on a device whose sums are float32, as a GPU's are, and runs where
there are no kernels of that type: on CPUs ONNX Runtime has hardly any in bfloat16.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .access import name_of
from .half_types import FLOAT32
from .nodes import Names, all_values


class EmulateHalfPass(ir.passes.InPlacePass):
    """Compute in float32, with a Cast to the half type and back behind each operator."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.half = ir.DataType[precision.upper()]

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Widen all values of the type; outputs of the model of it become float32 as well."""
        names = Names(model)
        halves = [value for value in all_values(model) if value.dtype == self.half]
        for value in halves:
            value.type = ir.TensorType(FLOAT32)  # clones share types
            if value.const_value is not None:
                array = value.const_value.numpy().astype(np.float32)
                value.const_value = ir.tensor(array, name=value.name)
            node = value.producer()
            if node is not None:
                self._set_type(node)
                self._round(value, node, names)
        return ir.passes.PassResult(model, modified=bool(halves))

    def _set_type(self, node: ir.Node) -> None:
        if node.op_type == "Cast":
            node.attributes.add(ir.AttrInt64("to", FLOAT32.value))
        elif node.op_type == "ConstantOfShape":
            filled = node.attributes["value"].as_tensor().numpy().astype(np.float32)
            node.attributes.add(ir.AttrTensor("value", ir.tensor(filled)))

    def _round(self, value: ir.Value, node: ir.Node, names: Names) -> None:
        """Let all readers of a value read what is left of it in the half type."""
        down = ir.node("Cast", [value], attributes={"to": self.half.value})
        up = ir.node("Cast", [down.outputs[0]], attributes={"to": FLOAT32.value})
        rounded = up.outputs[0]
        name = name_of(value)
        ir.convenience.replace_all_uses_with(value, rounded, replace_graph_outputs=True)
        down.replace_input_with(0, value)
        value.name = names.free(f"{name}_exact")
        rounded.name, rounded.shape, rounded.type = name, value.shape, ir.TensorType(FLOAT32)
        half = down.outputs[0]
        half.name, half.shape = names.free(f"{name}_half"), value.shape
        half.type = ir.TensorType(self.half)
        node.append([down, up])
