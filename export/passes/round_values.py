"""Values of condensed layers in half precision: the file shrinks, sums stay float32."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ..errors import ExportError
from .access import input_of, label_of
from .nodes import condensed_nodes, layer_name, read_weight
from .result_pass import ResultPass


@dataclass
class RoundResult(ir.passes.PassResult):
    """A pass result that also says what rounding changed.

    Attributes:
        errors: change of the weight as a share of its norm, by name of each node that was rounded.
        saved: bytes by which the values of each of these nodes shrank.

    """

    errors: dict[str, float] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)


class RoundValuesPass(ResultPass[RoundResult]):
    """Round the float32 values of condensed nodes to nearest even."""

    def __init__(self, values_dtype: str, only: Collection[str]) -> None:
        """Store what will be rounded.

        Args:
            values_dtype: "float16" or "bfloat16".
            only: names of nodes; values that another node reads too are left as they are.

        """
        super().__init__()
        self.values_dtype = values_dtype
        self.only = frozenset(only)

    def call(self, model: ir.Model) -> RoundResult:
        """Round each array once, for all nodes that read it.

        Raises:
            ExportError: a value is too large for the type.

        """
        readers: dict[ir.Value, list[ir.Node]] = {}
        for node in condensed_nodes(model):
            readers.setdefault(input_of(node, 1), []).append(node)
        errors: dict[str, float] = {}
        saved: dict[str, int] = {}
        for values, nodes in readers.items():
            weight = read_weight(nodes[0])
            if weight is None or weight.values.dtype != np.float32:
                continue
            if not values.is_initializer() or not self.only.issuperset(map(label_of, nodes)):
                continue
            try:
                rounded = weight.astype(self.values_dtype).values
            except ValueError as error:
                raise ExportError(
                    f"{layer_name(nodes[0])}: {error}; bfloat16 has float32's range"
                ) from error
            _hold(values, rounded)
            exact = weight.values.astype(np.float64)
            norm = float(np.linalg.norm(exact)) or 1.0
            change = float(np.linalg.norm(rounded.astype(np.float64) - exact)) / norm
            for node in nodes:
                errors[label_of(node)] = change
                saved[label_of(node)] = weight.values.nbytes - rounded.nbytes
        return RoundResult(model, modified=bool(errors), errors=errors, saved=saved)


class WidenValuesPass(ir.passes.InPlacePass):
    """Store the values of condensed nodes as float32 again, bit for bit what they are."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Widen each array of half precision once."""
        arrays = {input_of(node, 1) for node in condensed_nodes(model)}
        half = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
        modified = False
        for value in arrays:
            tensor = value.const_value
            if tensor is not None and value.is_initializer() and value.dtype in half:
                _hold(value, tensor.numpy().astype(np.float32))
                modified = True
        return ir.passes.PassResult(model, modified=modified)


def _hold(value: ir.Value, array: np.ndarray) -> None:
    """Replace the content of an initializer."""
    tensor = ir.tensor(array, name=value.name)
    # A clone of a model shares the types of its values with it.
    value.const_value, value.type = tensor, ir.TensorType(tensor.dtype)
