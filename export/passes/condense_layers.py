"""Replaces single nodes by condensed ones, and remembers what it has seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.condensed import CondensedWeight
from ...ort_ops.format.conv_geometry import ConvGeometry
from ..forms import Choice
from ..report import SPARSE
from .access import graph_of, input_of, label_of, name_of, remove_node, remove_unread_constant
from .condense_quantized import (
    ChooseQuantized,
    QuantizedCondenser,
    is_quantized_layer,
    read_quantized_layer,
)
from .condense_reports import CondenseReports, kept_of, too_dense
from .condense_store import WeightStore, condense, condense_conv, key_of, prefix_of
from .constants import ConstantWeight, folded_constant, is_constant, live_readers, resolve_constant
from .conv_layer import is_conv, is_conv_transpose, mirrored, read_conv, read_conv_transpose
from .einsum_layer import EinsumLayer, Reorder, read_einsum, read_left_weight
from .elsewhere import Elsewhere, find_elsewhere
from .linear_layer import LinearLayer, is_linear, read_linear
from .nodes import (
    Names,
    add_constant,
    array_of,
    call_layer,
    dimensions_of,
    make_condensed,
    take_output,
)
from .origins import take_left
from .quantized_weight import Refused

STAYS = " stays"
"""Follows the name in notes on weights that stay beside condensed ones."""

NOT_FINITE = "the weight holds values that are not finite"

_ACTIVATIONS = ("float32", "float16")
"""Types of X that the op has CPU kernels for."""


Shape = Sequence[int | str | None] | None
"""Sizes, names of symbolic ones, None where unknown; None when not even the rank is known."""

LeaveDense = Callable[[CondensedWeight, Shape, ConvGeometry | None], Choice | None]
"""From a weight, the shape of X and, of a convolution, its geometry to the choice that leaves a
node as it is, or None."""


@dataclass(frozen=True)
class CondenseOptions:
    """What is condensed: the arguments of :class:`.condense.CondensePass`."""

    min_sparsity: float
    masks: dict[str, np.ndarray] | None
    leave_dense: LeaveDense
    choose_quantized: ChooseQuantized
    name_after_weights: bool
    leave_shared: LeaveDense


class Condenser:
    """One run of the pass: what it has seen, and the arrays that nodes share."""

    def __init__(self, model: ir.Model, options: CondenseOptions) -> None:
        self.opset = model.opset_imports.get("", 1)
        self.names = Names(model)
        self.min_sparsity, self.masks = options.min_sparsity, options.masks
        self.leave_dense, self.leave_shared = options.leave_dense, options.leave_shared
        self.name_after_weights = options.name_after_weights
        self.reports = CondenseReports()
        self._quantized = QuantizedCondenser(self.names, self.opset, options.choose_quantized)
        self._store = WeightStore(self.names)
        self._roots: dict[int, ir.Value] = {}
        # Whether a sparse convolution is there, which depthwise ones may go with.
        self.accompanied = False

    def is_sparse_conv(self, node: ir.Node) -> bool:
        """Return whether a convolution can be condensed by itself."""
        if not is_conv(node) or is_quantized_layer(node):
            return False
        found = resolve_constant(input_of(node, 1), self.opset, self.masks)
        if not isinstance(found, ConstantWeight) or found.array.ndim < 3 or not found.array.size:
            return False
        geometry = read_conv(node, found.array.shape)
        return not isinstance(geometry, str) and self._obstacle(node, found) is None

    def visit_left(self, node: ir.Node) -> bool:
        """Report the weights that the expansion of operators has left where they are."""
        left = take_left(node)
        for value, reason in left:
            found = resolve_constant(value, self.opset, self.masks)
            if isinstance(found, ConstantWeight):
                self.reports.leave(node, found, reason)
        return bool(left)

    def visit(self, node: ir.Node) -> None:
        """Replace a MatMul or Gemm."""
        if all(map(is_constant, node.outputs)):
            return  # a step on the way to a weight
        found = resolve_constant(input_of(node, 1), self.opset, self.masks)
        if found is None:
            left = resolve_constant(input_of(node, 0), self.opset, self.masks)
            if isinstance(left, ConstantWeight) and left.array.ndim >= 2:
                self._visit_product(node, left, read_left_weight(node, left))
        elif isinstance(found, str):
            self.reports.leave_unresolved(node, found)
        elif found.array.ndim >= 2 and found.array.size:
            obstacle = self._obstacle(node, found)
            if obstacle is None:
                self._replace(node, found)
            else:
                self.reports.leave(node, found, obstacle)

    def visit_conv(self, node: ir.Node) -> None:
        """Replace a Conv of float values."""
        found = resolve_constant(input_of(node, 1), self.opset, self.masks)
        if isinstance(found, str):
            self.reports.leave_unresolved(node, found)
        elif found is not None and found.array.ndim >= 3 and found.array.size:
            geometry = read_conv(node, found.array.shape)
            if isinstance(geometry, str):
                self.reports.leave(node, found, geometry)
                return
            obstacle = self._obstacle(node, found)
            if obstacle is None:
                self._replace_conv(node, found, geometry)
            elif self._may_accompany(node, found, geometry):
                whole = replace(found, mask=np.ones(found.array.shape, bool))
                self._replace_conv(node, whole, geometry, "depthwise, stored whole")
            else:
                self.reports.leave(node, found, obstacle)

    def visit_quantized(self, node: ir.Node) -> None:
        """Replace a layer of 8-bit inputs and weights."""
        layer = read_quantized_layer(node, self.opset)
        if layer is None:
            return
        refused = layer if isinstance(layer, Refused) else layer.weight.refuse("")
        if refused.kept is not None:
            sparsity = 1 - np.count_nonzero(refused.kept) / refused.kept.size
            if sparsity < self.min_sparsity:
                reason = too_dense(sparsity, self.min_sparsity)
                self.reports.leave_quantized(node, replace(refused, reason=reason))
                return
        if isinstance(layer, Refused):
            self.reports.leave_quantized(node, layer)
            return
        weight = layer.weight
        done = self._quantized.condense(layer, label_of(node))
        if isinstance(done, str):
            self.reports.leave_quantized(node, weight.refuse(done))
            return
        root = weight.found.root
        self._roots[id(root)] = root
        call_layer(done.node, name_of(root))
        self.reports.record_quantized(node, weight, done)

    def visit_conv_transpose(self, node: ir.Node) -> None:
        """Replace a ConvTranspose that is a convolution of the mirrored weight."""
        found = resolve_constant(input_of(node, 1), self.opset, self.masks)
        if not isinstance(found, ConstantWeight) or found.array.ndim < 3 or not found.array.size:
            return
        geometry = read_conv_transpose(node, found.array.shape)
        obstacle = self._obstacle(node, found)
        if obstacle is not None or isinstance(geometry, str):
            self.reports.leave(node, found, obstacle or str(geometry))
            return
        as_conv = replace(
            found,
            array=mirrored(found.array, geometry.group),
            mask=None if found.mask is None else mirrored(found.mask, geometry.group),
            through=(*found.through, "ConvTranspose"),
        )
        self._replace_conv(node, as_conv, geometry)

    def visit_einsum(self, node: ir.Node) -> None:
        """Replace an Einsum that is a product with a weight."""
        operands = [
            None if value is None else resolve_constant(value, self.opset, self.masks)
            for value in node.inputs
        ]
        weight = next((found for found in operands if isinstance(found, ConstantWeight)), None)
        layer = read_einsum(node, operands)
        if weight is not None and layer is not None:
            self._visit_product(node, weight, layer)

    def _visit_product(
        self, node: ir.Node, found: ConstantWeight, layer: EinsumLayer | str
    ) -> None:
        """Replace a product by a condensed one between what reorders its activations."""
        if not found.array.size:
            return
        if isinstance(layer, str):
            self.reports.leave(node, found, layer)
            return
        found, graph = layer.found, graph_of(node)
        obstacle = self._obstacle(node, found)
        if obstacle is not None:
            self.reports.leave(node, found, obstacle)
            return
        key = key_of(graph, found)
        weight = self._store.weight(key, lambda: condense(found))
        sizes = dimensions_of(layer.x)
        free = sizes and [sizes[axis] for axis in layer.x_axes[: layer.free]]
        rows = None if free is None else [*free, weight.in_features]
        choice = self.leave_dense(weight, rows, None)
        if choice is not None:
            self.reports.leave(node, found, choice.reason, choice.times)
            return
        prefix = prefix_of(found)
        weight, parts = self._store.add(graph, key, weight, None, prefix, None)
        self._roots[id(found.root)] = found.root
        reorder = Reorder(node, self.names)
        new = make_condensed(
            reorder.before(layer),
            parts,
            self._store.no_residual(graph, found.array.dtype, prefix),
            {"in_features": weight.in_features, "out_features": weight.out_features},
            name=(not self.name_after_weights and node.name) or self.names.free(prefix),
        )
        node.append(new)
        take_output(node.outputs[0], reorder.after(layer, new))
        remove_node(node)
        self._record(node, found, weight, new)

    def notes(self) -> list[str]:
        """Name the condensed weights of which the dense form stays in the file as well."""
        lines = []
        for root in self._roots.values():
            reader = next(live_readers(root), None)
            if reader is not None and root.is_initializer():
                lines.append(
                    f"{root.name}{STAYS} in the file as well: {reader.op_type} {reader.name} "
                    "reads it"
                )
        return lines

    def elsewhere(self, model: ir.Model) -> Elsewhere:
        """Find the sparse weights that no layer holds."""
        return find_elsewhere(model, self.reports.seen, self.min_sparsity or SPARSE, self.opset)

    def remove_unread(self) -> None:
        """Remove the dense form of weights: a large model has no room for both."""
        for root in self._roots.values():
            remove_unread_constant(root)

    def verbatim(self) -> frozenset[str]:
        """Name the constants of which entries are stored as they are."""
        names = {root.name for root in self._roots.values() if root.name is not None}
        return frozenset(names - self.reports.computed)

    def _obstacle(self, node: ir.Node, found: ConstantWeight) -> str | None:
        array = found.array
        unfit = self._unfit(node, found)
        if unfit is not None:
            return unfit
        if self.masks is not None and found.mask is None:
            return "no mask"
        sparsity = 1 - float(np.count_nonzero(kept_of(found))) / array.size
        if sparsity < self.min_sparsity:
            return too_dense(sparsity, self.min_sparsity)
        return None

    def _may_accompany(self, node: ir.Node, found: ConstantWeight, geometry: ConvGeometry) -> bool:
        """Return whether a dense convolution may be condensed beside sparse ones (depthwise)."""
        if not geometry.depthwise or not self.accompanied:
            return False
        return self._unfit(node, found) is None

    def _unfit(self, node: ir.Node, found: ConstantWeight) -> str | None:
        array = found.array
        if not is_conv(node) and not is_conv_transpose(node) and array.ndim != 2:
            return f"the weight has {array.ndim} dimensions"
        if array.dtype.name not in _ACTIVATIONS:
            return f"computes in {array.dtype.name}, which no kernel does"
        if not np.isfinite(array).all():
            return NOT_FINITE
        return None

    def _replace(self, node: ir.Node, found: ConstantWeight) -> None:
        graph, x = graph_of(node), input_of(node, 0)
        trans_b = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0
        layer = read_linear(node, found.array.shape[0 if trans_b else 1], self.opset)
        prefix = prefix_of(found)
        key = key_of(graph, found, layer.trans_b, layer.alpha)
        weight = self._store.weight(key, lambda: condense(found, layer))
        choice = self.leave_dense(weight, dimensions_of(x), None)
        if choice is None and not all(map(is_linear, live_readers(found.root))):
            choice = self.leave_shared(weight, dimensions_of(x), None)
        if choice is not None:
            self.reports.leave(node, found, choice.reason, choice.times)
            return
        bias = layer.bias(weight.out_features)
        place = layer.bias_place if bias is not None else None
        weight, parts = self._store.add(graph, key, weight, bias, prefix, place)
        self._roots[id(found.root)] = found.root
        if layer.alpha != 1:
            self.reports.computed.add(found.root.name)
        new = make_condensed(
            self._turned(layer) if layer.trans_a else x,
            parts,
            self._store.no_residual(graph, found.array.dtype, prefix),
            {"in_features": weight.in_features, "out_features": weight.out_features},
            name=(not self.name_after_weights and node.name) or self.names.free(prefix),
        )
        (layer.add or node).append(new)
        if layer.addend is None:
            take_output(layer.output, new.outputs[0])
        else:
            self._add_after(layer, new)
        for gone in filter(None, (layer.add, node)):
            remove_node(gone)
        self._record(node, found, weight, new)

    def _replace_conv(
        self,
        node: ir.Node,
        found: ConstantWeight,
        geometry: ConvGeometry,
        how: str | None = None,
    ) -> None:
        graph, x, bias = graph_of(node), input_of(node, 0), None
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            bias = folded_constant(node.inputs[2], self.opset)
            if bias is None:
                self.reports.leave(node, found, "its bias is no constant")
                return
            bias = bias.astype(np.float32)
        prefix = prefix_of(found)
        key = key_of(graph, found)
        weight = self._store.weight(key, lambda: condense_conv(found))
        choice = self.leave_dense(weight, dimensions_of(x), geometry)
        if choice is not None:
            self.reports.leave(node, found, choice.reason, choice.times)
            return
        place = (node, 2) if bias is not None else None
        weight, parts = self._store.add(graph, key, weight, bias, prefix, place)
        self._roots[id(found.root)] = found.root
        new = make_condensed(
            x,
            parts,
            self._store.no_residual(graph, found.array.dtype, prefix),
            geometry,
            name=(not self.name_after_weights and node.name) or self.names.free(prefix),
        )
        node.append(new)
        take_output(node.outputs[0], new.outputs[0])
        remove_node(node)
        self._record(node, found, weight, new, how)

    def _turned(self, layer: LinearLayer) -> ir.Value:
        turn = ir.node("Transpose", [layer.node.inputs[0]], attributes={"perm": [1, 0]})
        turn.name = self.names.free(f"{layer.node.name}_transpose")
        turn.outputs[0].name = self.names.free(f"{layer.output.name}_input")
        layer.node.prepend(turn)
        return turn.outputs[0]

    def _add_after(self, layer: LinearLayer, new: ir.Node) -> None:
        """Add a C that is no constant vector in a node of its own."""
        addend, last = layer.addend, new
        new.outputs[0].name = self.names.free(f"{layer.output.name}_product")
        if layer.beta != 1:
            kind = array_of(new.inputs[1]).dtype
            name = self.names.free(f"{new.name}.beta")
            factor = add_constant(graph_of(layer.node), name, np.array(layer.beta, kind))
            last = ir.node("Mul", [addend, factor], name=self.names.free(f"{new.name}_beta"))
            last.outputs[0].name = self.names.free(f"{layer.output.name}_addend")
            new.append(last)
            addend = last.outputs[0]
        add = ir.node("Add", [new.outputs[0], addend], name=self.names.free(f"{new.name}_add"))
        last.append(add)
        take_output(layer.output, add.outputs[0])

    def _record(
        self,
        node: ir.Node,
        found: ConstantWeight,
        weight: CondensedWeight,
        new: ir.Node,
        how: str | None = None,
    ) -> None:
        if not self.name_after_weights and found.root.name:
            call_layer(new, found.root.name)
        self.reports.record(node, found, weight, label_of(new), how)
