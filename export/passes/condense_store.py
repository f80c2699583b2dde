"""Condensed weights in a graph: each is stored once for all nodes that read it alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.condensed import CondensedWeight
from ..onnx_op import no_residual
from .access import input_of, name_of, remove_unread_constant
from .condense_reports import kept_of
from .constants import ConstantWeight
from .linear_layer import LinearLayer
from .nodes import Names, Parts, add_constant, add_parts, array_of, constant_of

WeightKey = tuple[int, int, bytes, tuple[int, ...], bool, float]
"""Id of the graph and of the constant, digest, shape, and how the layer reads it."""


class WeightStore:
    """The arrays that the condensed nodes of a model share."""

    def __init__(self, names: Names) -> None:
        """Name new initializers by ``names``."""
        self._names = names
        # Weights without their bias, with the initializers that hold them.
        self._parts: dict[WeightKey, tuple[CondensedWeight, Parts]] = {}
        self._residuals: dict[tuple[int, str], ir.Value] = {}

    def weight(self, key: WeightKey, condense: Callable[[], CondensedWeight]) -> CondensedWeight:
        """Return the weight that is stored under ``key``, or else the one that is condensed now."""
        return self._parts[key][0] if key in self._parts else condense()

    def add(
        self,
        graph: ir.Graph,
        key: WeightKey,
        weight: CondensedWeight,
        bias: np.ndarray | None,
        prefix: str,
        place: tuple[ir.Node, int] | None,
    ) -> tuple[CondensedWeight, Parts]:
        """Store a weight once for all nodes of a graph that read it in the same way.

        ``place`` is where the old nodes read the bias: a node that goes, and its input.
        """
        biased = weight if bias is None else replace(weight, bias=bias)
        shared = self._parts[key][1] if key in self._parts else None
        if shared is not None and np.array_equal(array_of(shared.bias), biased.bias):
            return biased, shared
        stored = place and self._stored_bias(*place, f"{prefix}.bias", biased.bias)
        parts = add_parts(graph, biased, prefix, self._names, shared, stored)
        self._parts.setdefault(key, (weight, parts))
        return biased, parts

    def no_residual(self, graph: ir.Graph, dtype: np.dtype, prefix: str) -> ir.Value:
        """Return the one of a graph, named after its first layer: files can be merged so."""
        key = (id(graph), dtype.name)
        if key not in self._residuals:
            name = self._names.free(f"{prefix}.no_residual")
            self._residuals[key] = add_constant(graph, name, no_residual(dtype.name))
        return self._residuals[key]

    def _stored_bias(
        self, node: ir.Node, position: int, name: str, bias: np.ndarray
    ) -> ir.Value | None:
        """Return the old bias if it is what the new node needs; else free its name if possible."""
        old = input_of(node, position)
        array = constant_of(old) if old.name == name and old.graph is node.graph else None
        if array is not None and array.dtype == np.float32 and np.array_equal(array, bias):
            return old
        node.replace_input_with(position, None)
        if remove_unread_constant(old):
            self._names.release(name_of(old))
        return None


def prefix_of(found: ConstantWeight) -> str:
    """Return what the parts of a condensed weight are named after."""
    name = name_of(found.root)
    # A torch model that is a single layer has no name of its own.
    return "layer" if name == "weight" else name.removesuffix(".weight").removesuffix("_weight")


def key_of(
    graph: ir.Graph, found: ConstantWeight, trans_b: bool = True, alpha: float = 1.0
) -> WeightKey:
    """Return under what a weight is stored: layers with the same key have the same one."""
    # The same operators may carry other attributes before two nodes; the content tells.
    content = hashlib.sha256(found.array.tobytes()).digest() if found.through else b""
    return (id(graph), id(found.root), content, found.array.shape, trans_b, alpha)


def condense(found: ConstantWeight, layer: LinearLayer | None = None) -> CondensedWeight:
    """Condense the weight of a product, as the layer reads it."""
    array, kept = found.array, kept_of(found)
    if layer is not None and not layer.trans_b:
        array, kept = array.T, kept.T
    scaled = array.astype(np.float32, copy=False)
    if layer is not None and layer.alpha != 1:
        scaled = scaled * np.float32(layer.alpha)
    return CondensedWeight.from_dense(scaled, None, kept).astype(array.dtype.name)


def condense_conv(found: ConstantWeight) -> CondensedWeight:
    """Condense the weight of a convolution."""
    wide = found.array.astype(np.float32, copy=False)
    return CondensedWeight.from_dense(wide, None, kept_of(found)).astype(found.array.dtype.name)
