"""Building the nodes that take the place of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.conv_geometry import ConvGeometry
from .nodes import Names, add_constant
from .origins import mark_source

Size = int | str | None

Attribute = int | float | str | Sequence[int] | ir.Graph


class Builder:
    """Adds nodes with free names, and the constants that they read, to one graph.

    Args:
        graph: holds the constants.
        insert: puts a node into the graph.
        names: names in use in the model.
        prefix: of all new names.
        source: operator that the nodes are made from, which reports name.

    """

    def __init__(
        self,
        graph: ir.Graph,
        insert: Callable[[ir.Node], None],
        names: Names,
        prefix: str,
        source: str,
    ) -> None:
        self._graph, self._insert, self._names = graph, insert, names
        self._prefix, self._source = prefix, source

    def add(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        shape: Sequence[Size] | None = None,
        kind: ir.DataType | None = ir.DataType.FLOAT,
        outputs: int = 1,
        label: str = "",
        domain: str = "",
        **attributes: Attribute,
    ) -> ir.Value:
        """Add a node and return its first output.

        Args:
            op_type: the operator.
            inputs: what it reads.
            shape: of the output, as far as it is known.
            kind: type of the output.
            outputs: how many it has.
            label: end of the node's name instead of the operator's.
            domain: of the operator.
            attributes: of the node.

        """
        return self.node(
            op_type,
            *inputs,
            shapes=[shape] * outputs,
            kind=kind,
            label=label,
            domain=domain,
            **attributes,
        ).outputs[0]

    def node(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        shapes: Sequence[Sequence[Size] | None],
        kind: ir.DataType | None = ir.DataType.FLOAT,
        label: str = "",
        domain: str = "",
        **attributes: Attribute,
    ) -> ir.Node:
        """Add a node with one output for each of ``shapes``."""
        name = self._names.free(f"{self._prefix}_{label or op_type.lower()}")
        node = ir.node(
            op_type,
            list(inputs),
            attributes=attributes,
            domain=domain,
            num_outputs=len(shapes),
            name=name,
        )
        for value, shape in zip(node.outputs, shapes, strict=True):
            value.name = self._names.free(f"{name}_output")
            describe(value, shape, kind)
        mark_source(node, self._source)
        self._insert(node)
        return node

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """Add a constant."""
        return add_constant(self._graph, self._names.free(f"{self._prefix}_{name}"), array)

    def integers(self, name: str, *numbers: int) -> ir.Value:
        """Add a vector of integers, such as sizes and axes."""
        return self.constant(name, np.array(numbers, np.int64))

    def value(
        self, name: str, shape: Sequence[Size] | None, kind: ir.DataType = ir.DataType.FLOAT
    ) -> ir.Value:
        """Make a value that no node computes, such as an input of a body."""
        value = ir.Value(name=self._names.free(f"{self._prefix}_{name}"))
        describe(value, shape, kind)
        return value


def write_conv(
    builder: Builder, x: ir.Value, weight: ir.Value, bias: ir.Value | None, geometry: ConvGeometry
) -> ir.Value:
    """Add a Conv of a geometry; returns its output."""
    inputs = [x, weight] if bias is None else [x, weight, bias]
    return builder.add(
        "Conv",
        *inputs,
        kind=x.dtype,
        kernel_shape=geometry.kernel_shape,
        strides=geometry.strides,
        pads=geometry.pads,
        dilations=geometry.dilations,
        group=geometry.group,
    )


def describe(value: ir.Value, shape: Sequence[Size] | None, kind: ir.DataType | None) -> None:
    """Set type and shape of a value, as far as they are known."""
    value.shape = None if shape is None else ir.Shape(shape)
    value.type = None if kind is None else ir.TensorType(kind)
