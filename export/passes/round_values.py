"""Values of condensed layers in half precision: the file shrinks, sums stay float32."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ..errors import ExportError
from .nodes import condensed_nodes, read_weight


@dataclass
class RoundResult(ir.passes.PassResult):
    """A pass result that also says what rounding changed.

    Attributes:
        errors: change of the weight as a share of its norm, by name of each node that was rounded.

    """

    errors: dict[str, float] = field(default_factory=dict)


class RoundValuesPass(ir.passes.InPlacePass):
    """Round the float32 values of condensed nodes to nearest even."""

    def __init__(self, values_dtype: str, only: Collection[str]) -> None:
        """Set what is rounded.

        Args:
            values_dtype: "float16" or "bfloat16".
            only: names of nodes; values that another node reads too are left as they are.

        """
        super().__init__()
        self.values_dtype = values_dtype
        self.only = only

    def call(self, model: ir.Model) -> RoundResult:
        """Round each array once, for all nodes that read it.

        Raises:
            ExportError: a value is too large for the type.

        """
        readers: dict[ir.Value, list[ir.Node]] = {}
        for node in condensed_nodes(model):
            readers.setdefault(node.inputs[1], []).append(node)
        errors = {}
        for values, nodes in readers.items():
            weight = read_weight(nodes[0])
            if weight is None or weight.values.dtype != np.float32:
                continue
            if not values.is_initializer() or any(node.name not in self.only for node in nodes):
                continue
            try:
                rounded = weight.astype(self.values_dtype).values
            except ValueError as error:
                raise ExportError(
                    f"{nodes[0].name}: {error}; bfloat16 has float32's range"
                ) from error
            values.const_value = ir.tensor(rounded, name=values.name)
            values.dtype = values.const_value.dtype
            exact = weight.values.astype(np.float64)
            norm = float(np.linalg.norm(exact)) or 1.0
            change = float(np.linalg.norm(rounded.astype(np.float64) - exact)) / norm
            errors |= {node.name: change for node in nodes}
        return RoundResult(model, modified=bool(errors), errors=errors)
