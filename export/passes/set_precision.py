"""A graph of float32 in half precision: weights, activations, inputs and outputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ..errors import ExportError
from .access import name_of
from .half_types import FLOAT32, half_places, opset_with_half
from .nodes import Names, add_constant, is_quantized
from .result_pass import ResultPass

_QUANTIZED = frozenset(
    {
        "ConvInteger",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
    }
)

_INFINITE = 1e30
"""Constants from here on stand for infinity, as in attention masks; the largest number does too."""

LARGEST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120}
_SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133}

_NAMED = 3


@dataclass
class PrecisionResult(ir.passes.PassResult):
    """A pass result with what a user should know of it.

    Attributes:
        notes: operators that stay float32, and constants that the type could not hold.
        casts: how many Casts the graph got.

    """

    notes: list[str] = field(default_factory=list)
    casts: int = 0


class SetPrecisionPass(ResultPass[PrecisionResult]):
    """Give every float32 value the half type that its operators allow, names kept.

    A Cast stands where an operator has no form of that type (the opset's schema decides), around
    branches and loops, and around operators of other domains. The biases of condensed nodes stay
    float32, as the ops have them.
    """

    def __init__(self, precision: str, *, half_ports: bool) -> None:
        """Store the type.

        Args:
            precision: "float16" or "bfloat16".
            half_ports: whether inputs and outputs of the model are of that type too.

        """
        super().__init__()
        self.precision = precision
        self.half_ports = half_ports
        self.half = ir.DataType[precision.upper()]

    def call(self, model: ir.Model) -> PrecisionResult:
        """Convert the graph and its subgraphs; the functions of the model stay as they are.

        Raises:
            ExportError: as :func:`require_convertible` does, or a weight is too large for the type.

        """
        require_convertible(model, self.precision)
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        conversion = _Conversion(model, self.half, self.precision)
        if self.half_ports:
            for value in model.graph.inputs:
                if value.dtype == FLOAT32:
                    conversion.now_half[value] = None
        for node in model.graph.all_nodes():
            conversion.plan(node)
        conversion.convert_inputs_of_nodes()
        for graph in model.graphs():
            wants_half = graph is model.graph and self.half_ports
            conversion.convert_outputs(graph, wants_half)
        for value in conversion.now_half:
            conversion.hold(value)
        notes = [*conversion.float32_notes(), *conversion.clamped_notes()]
        return PrecisionResult(model, modified=True, notes=notes, casts=len(conversion.casts))


def require_convertible(model: ir.Model, precision: str) -> None:
    """Check that a graph computes in float32, or already in the half type.

    Raises:
        ExportError: it computes in 8 bits or holds another type of floats.

    """
    for node in model.graph.all_nodes():
        if is_quantized(node) or (node.domain == "" and node.op_type in _QUANTIZED):
            raise ExportError(
                f"{node.op_type} {node.name!r} computes in 8 bits; a {precision} file is made from "
                "a model of floats, leave the precision out for this one"
            )
    others = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
    others.remove(ir.DataType[precision.upper()])
    for value in (v for g in model.graphs() for v in (*g.inputs, *g.initializers.values())):
        if value.dtype in others:
            name = "float64" if value.dtype == ir.DataType.DOUBLE else value.dtype.name.lower()
            raise ExportError(
                f"{value.name!r} is {name} already; a {precision} file is made from a float32 "
                "model, export it from one"
            )


class _Conversion:
    """One conversion in progress.

    Attributes:
        now_half: values that were float32 and are half.
        casts: by value, what holds it in the other type.

    """

    def __init__(self, model: ir.Model, half: ir.DataType, precision: str) -> None:
        self.opset = model.opset_imports[""]
        self.half, self.precision = half, precision
        self.names = Names(model)
        self.now_half: dict[ir.Value, None] = {}
        self.casts: dict[ir.Value, ir.Value] = {}
        self._wanted: list[tuple[ir.Node, int, bool]] = []
        self._float32: Counter[str] = Counter()
        self._newer: dict[str, int] = {}
        self._clamped: list[str] = []

    def plan(self, node: ir.Node) -> None:
        """Decide for one node, and set what names the type of its output."""
        places = half_places(node, self.opset, self.half)
        for position, value in enumerate(node.inputs):
            if value is not None and value.dtype == FLOAT32:
                self._wanted.append((node, position, position in places.inputs))
        self.now_half.update((node.outputs[position], None) for position in sorted(places.outputs))
        if places.outputs:
            self._set_type(node)
        elif any(value.dtype == FLOAT32 for value in node.outputs):
            self._float32[node.op_type] += 1
            newer = opset_with_half(node, self.opset, self.half)
            if newer:
                self._newer[node.op_type] = newer

    def _set_type(self, node: ir.Node) -> None:
        if node.op_type == "Cast":
            node.attributes.add(ir.AttrInt64("to", self.half.value))
        elif node.op_type == "ConstantOfShape":
            attribute = node.attributes.get("value")
            filled = np.zeros(1, np.float32) if attribute is None else attribute.as_tensor().numpy()
            array = self._rounded(filled, node.name or node.op_type)
            node.attributes.add(ir.AttrTensor("value", ir.tensor(array)))

    def convert_inputs_of_nodes(self) -> None:
        """Give each node its inputs in the types that it needs."""
        wanted: dict[ir.Value, set[bool]] = {}
        for node, position, wants_half in self._wanted:
            value = node.inputs[position]
            if value is not None:
                wanted.setdefault(value, set()).add(wants_half)
        for value, kinds in wanted.items():
            if _is_fixed(value) and not value.is_graph_output() and kinds == {True}:
                self.now_half[value] = None
        for node, position, wants_half in self._wanted:
            value = node.inputs[position]
            assert value is not None
            node.replace_input_with(position, self._in_type(value, wants_half))

    def convert_outputs(self, graph: ir.Graph, wants_half: bool) -> None:
        """Give outputs of the model or of a subgraph their type, under their names."""
        for position, value in enumerate(graph.outputs):
            if value.dtype != FLOAT32 or (value in self.now_half) == wants_half:
                continue
            name = name_of(value)
            converted = self._in_type(value, wants_half)
            value.name = self.names.free(f"{name}_{self.precision if not wants_half else 'float'}")
            converted.name = name
            graph.outputs[position] = converted

    def hold(self, value: ir.Value) -> None:
        """Set the type of a value that is half now, and convert what it holds."""
        if value.const_value is not None:
            array = self._rounded(value.const_value.numpy(), name_of(value))
            value.const_value = ir.tensor(array, name=value.name)
        # A type of its own: clones of a graph share theirs.
        value.type = ir.TensorType(self.half)

    def _in_type(self, value: ir.Value, wants_half: bool) -> ir.Value:
        is_half = value in self.now_half
        if is_half == wants_half:
            return value
        if value in self.casts:
            return self.casts[value]
        label = f"{value.name}_{self.precision if wants_half else 'float32'}"
        if _is_fixed(value) and value.graph is not None and value.const_value is not None:
            array = value.const_value.numpy()
            if wants_half:
                array = self._rounded(array, name_of(value))
            converted = add_constant(value.graph, self.names.free(label), array)
        else:
            converted = self._cast(value, self.half if wants_half else FLOAT32, label)
        self.casts[value] = converted
        return converted

    def _cast(self, value: ir.Value, to: ir.DataType, label: str) -> ir.Value:
        name = self.names.free(label)
        cast = ir.node("Cast", [value], attributes={"to": to.value}, name=name)
        output = cast.outputs[0]
        output.name, output.type, output.shape = name, ir.TensorType(to), value.shape
        producer = value.producer()
        if producer is not None:
            producer.append(cast)
        else:
            graph = value.graph
            if graph is None:
                raise ExportError(f"{value.name!r} is in no graph")
            first = next(iter(graph), None)
            if first is None:
                graph.append(cast)
            else:
                first.prepend(cast)
        return output

    def _rounded(self, array: np.ndarray, name: str) -> np.ndarray:
        """Round to nearest; numbers that stand for infinity become the largest of the type."""
        kind = self.half.numpy()
        with np.errstate(over="ignore"):
            rounded = array.astype(kind)
        lost = np.isfinite(array) & ~np.isfinite(rounded)
        if lost.any():
            if array.size > 1 and float(np.abs(array[lost]).min()) < _INFINITE:
                largest = float(np.abs(array[lost]).max())
                raise ExportError(
                    f"{name} holds {largest:g}, too large for {self.precision}; bfloat16 has "
                    "float32's range"
                )
            limit = LARGEST[self.precision]
            rounded[lost] = (np.sign(array[lost]) * limit).astype(kind)
            self._clamped.append(name)
        elif array.size == 1 and array.any() and not rounded.any():
            # As the epsilon of a norm, whose part is to keep a divisor from 0.
            least = _SMALLEST[self.precision]
            rounded = np.full_like(rounded, np.sign(array.item()) * least)
            self._clamped.append(name)
        return rounded

    def float32_notes(self) -> list[str]:
        """Say which operators compute in float32, with what would change that."""
        if not self._float32:
            return []
        parts = []
        for op_type, count in sorted(self._float32.items()):
            newer = self._newer.get(op_type)
            parts.append(f"{count} {op_type}" + (f" (half from opset {newer})" if newer else ""))
        return [f"computed in float32, between Casts: {', '.join(parts)}"]

    def clamped_notes(self) -> list[str]:
        """Name the constants that became the nearest number of the type."""
        if not self._clamped:
            return []
        more = len(self._clamped) - _NAMED
        names = ", ".join(self._clamped[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        return [f"out of the range of {self.precision}, set to its nearest number: {names}"]


def _is_fixed(value: ir.Value) -> bool:
    """Return whether a value is a constant that no caller can replace."""
    return value.is_initializer() and not value.is_graph_input()
