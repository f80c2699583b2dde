"""Replace MatMul, Gemm and Conv with sparse constant weights by condensed nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.condensed import CondensedWeight
from ...ort_ops.format.conv_geometry import ConvGeometry
from ..forms import Choice
from ..onnx_op import no_residual
from ..report import SPARSE, LayerReport
from .access import graph_of, input_of, label_of, name_of, remove_node, remove_unread_constant
from .condense_quantized import (
    ChooseQuantized,
    QuantizedCondenser,
    is_quantized_layer,
    read_quantized_layer,
)
from .condense_reports import CondenseReports, kept_of, too_dense
from .constants import (
    ConstantWeight,
    folded_constant,
    forget_what_varies,
    is_constant,
    live_readers,
    resolve_constant,
)
from .conv_layer import (
    is_conv,
    is_conv_transpose,
    mirrored,
    read_conv,
    read_conv_transpose,
)
from .einsum_layer import EinsumLayer, Reorder, read_einsum, read_left_weight
from .elsewhere import Elsewhere, find_elsewhere
from .linear_layer import LinearLayer, is_linear, read_linear
from .nodes import (
    Names,
    Parts,
    add_constant,
    add_parts,
    array_of,
    call_layer,
    constant_of,
    dimensions_of,
    make_condensed,
    our_nodes,
    take_output,
)
from .origins import take_left
from .quantized_weight import Refused
from .result_pass import ResultPass

_STAYS = " stays"

NOT_FINITE = "the weight holds values that are not finite"

_ACTIVATIONS = ("float32", "float16")
"""Types of X that the op has CPU kernels for."""


Shape = Sequence[int | str | None] | None
"""Sizes, names of symbolic ones, None where unknown; None when not even the rank is known."""

LeaveDense = Callable[[CondensedWeight, Shape, ConvGeometry | None], Choice | None]
"""From a weight, the shape of X and, of a convolution, its geometry to the choice that leaves a
node as it is, or None."""


_WeightKey = tuple[int, int, bytes, tuple[int, ...], bool, float]
"""Id of the graph and of the constant, digest, shape, and how the layer reads it."""


@dataclass
class CondenseResult(ir.passes.PassResult):
    """A pass result that also says what was found.

    Attributes:
        layers: one report for each weight, in graph order.
        notes: what else a user should know.
        verbatim: condensed weights that store entries of the constant of that name as they are.
        elsewhere: weights that no layer holds.
        held: how many nodes of ours the model had before.

    """

    layers: list[LayerReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verbatim: frozenset[str] = frozenset()
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    held: int = 0


class CondensePass(ResultPass[CondenseResult]):
    """Replace MatMul, Gemm and Conv of a sparse constant weight, subgraphs included.

    The weight may be transposed, scaled (Gemm's alpha and beta), shared by several nodes, or stand
    behind operators that :mod:`.constants` folds. An Add of a constant vector after a MatMul
    becomes the bias. Layers of 8-bit inputs and weights, whichever operators say it, become nodes
    that compute in 8 bits. Names of nodes and of their outputs stay. Bodies of functions are left
    alone.
    """

    def __init__(
        self,
        *,
        min_sparsity: float,
        masks: Mapping[str, np.ndarray] | None = None,
        leave_dense: LeaveDense = lambda weight, shape, geometry: None,  # noqa: ARG005
        choose_quantized: ChooseQuantized = lambda *_: Choice("condensed", "sparse"),
        name_after_weights: bool = False,
        leave_shared: LeaveDense = lambda weight, shape, geometry: None,  # noqa: ARG005
    ) -> None:
        """Set what is condensed.

        Args:
            min_sparsity: weights with a smaller share of zeros stay.
            masks: bool arrays by the name of the initializer; when given, only these weights are
                candidates and the mask decides what is stored.
            leave_dense: has the last word on a weight that could be condensed.
            choose_quantized: the same for layers of 8-bit inputs and weights.
            name_after_weights: give nodes the names of their weights, ``fc1`` for ``fc1.weight``.
            leave_shared: has the last word on a weight that something else needs as it is, such as
                a tied embedding: a second copy may not pay.

        """
        super().__init__()
        self.min_sparsity = min_sparsity
        self.leave_dense = leave_dense
        self.leave_shared = leave_shared
        self.choose_quantized = choose_quantized
        self.name_after_weights = name_after_weights
        self.masks = None if masks is None else dict(masks)

    def call(self, model: ir.Model) -> CondenseResult:
        """Visit all nodes; what cannot be replaced is reported with the reason."""
        forget_what_varies(model)
        nodes = list(model.graph.all_nodes())
        held = len(our_nodes(model))
        work = _Work(model, self)
        work.accompanied = any(work.is_sparse_conv(node) for node in nodes)
        for node in nodes:
            if work.visit_left(node):
                continue
            if is_quantized_layer(node):
                work.visit_quantized(node)
            elif is_linear(node):
                work.visit(node)
            elif is_conv(node):
                work.visit_conv(node)
            elif is_conv_transpose(node):
                work.visit_conv_transpose(node)
            elif node.domain == "" and node.op_type == "Einsum":
                work.visit_einsum(node)
        layers, notes = work.reports.layers(), work.notes()
        elsewhere = work.elsewhere(model)
        work.remove_unread()
        changed = any(layer.decision == "condensed" for layer in layers)
        return CondenseResult(
            model,
            modified=changed,
            layers=layers,
            notes=notes,
            verbatim=work.verbatim(),
            elsewhere=elsewhere,
            held=held,
        )


def notes_on_kept(model: ir.Model, notes: Sequence[str]) -> tuple[str, ...]:
    """Return those notes on weights that stay beside condensed ones which still hold, each once."""
    stored = {name for graph in model.graphs() for name in graph.initializers}
    return tuple(note for note in dict.fromkeys(notes) if kept_names([note]) & stored)


def kept_names(notes: Sequence[str]) -> frozenset[str]:
    """Return the names of the weights that such notes are about."""
    return frozenset(note.partition(_STAYS)[0] for note in notes if _STAYS in note)


class _Work:
    """One run of the pass: what it has seen, and the arrays that nodes share."""

    def __init__(self, model: ir.Model, options: CondensePass) -> None:
        self.opset = model.opset_imports.get("", 1)
        self.names = Names(model)
        self.min_sparsity, self.masks = options.min_sparsity, options.masks
        self.leave_dense, self.leave_shared = options.leave_dense, options.leave_shared
        self.name_after_weights = options.name_after_weights
        self.reports = CondenseReports()
        self._quantized = QuantizedCondenser(self.names, self.opset, options.choose_quantized)
        # Weights without their bias, with the initializers that hold them.
        self._parts: dict[_WeightKey, tuple[CondensedWeight, Parts]] = {}
        self._residuals: dict[tuple[int, str], ir.Value] = {}
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
        key = _key(graph, found)
        weight = self._parts[key][0] if key in self._parts else _condense(found)
        sizes = dimensions_of(layer.x)
        free = sizes and [sizes[axis] for axis in layer.x_axes[: layer.free]]
        rows = None if free is None else [*free, weight.in_features]
        choice = self.leave_dense(weight, rows, None)
        if choice is not None:
            self.reports.leave(node, found, choice.reason, choice.times)
            return
        prefix = _prefix(found)
        weight, parts = self._add_parts(graph, key, weight, None, prefix, None)
        self._roots[id(found.root)] = found.root
        reorder = Reorder(node, self.names)
        new = make_condensed(
            reorder.before(layer),
            parts,
            self._no_residual(graph, found.array.dtype, prefix),
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
                    f"{root.name}{_STAYS} in the file as well: {reader.op_type} {reader.name} "
                    "reads it"
                )
        return lines

    def elsewhere(self, model: ir.Model) -> Elsewhere:
        return find_elsewhere(model, self.reports.seen, self.min_sparsity or SPARSE, self.opset)

    def remove_unread(self) -> None:
        """Remove the dense form of weights: a large model has no room for both."""
        for root in self._roots.values():
            remove_unread_constant(root)

    def verbatim(self) -> frozenset[str]:
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
        prefix = _prefix(found)
        key = _key(graph, found, layer.trans_b, layer.alpha)
        weight = self._parts[key][0] if key in self._parts else _condense(found, layer)
        choice = self.leave_dense(weight, dimensions_of(x), None)
        if choice is None and not all(map(is_linear, live_readers(found.root))):
            choice = self.leave_shared(weight, dimensions_of(x), None)
        if choice is not None:
            self.reports.leave(node, found, choice.reason, choice.times)
            return
        bias = layer.bias(weight.out_features)
        place = layer.bias_place if bias is not None else None
        weight, parts = self._add_parts(graph, key, weight, bias, prefix, place)
        self._roots[id(found.root)] = found.root
        if layer.alpha != 1:
            self.reports.computed.add(found.root.name)
        new = make_condensed(
            self._turned(layer) if layer.trans_a else x,
            parts,
            self._no_residual(graph, found.array.dtype, prefix),
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
        prefix = _prefix(found)
        key = _key(graph, found)
        weight = self._parts[key][0] if key in self._parts else _condense_conv(found)
        choice = self.leave_dense(weight, dimensions_of(x), geometry)
        if choice is not None:
            self.reports.leave(node, found, choice.reason, choice.times)
            return
        place = (node, 2) if bias is not None else None
        weight, parts = self._add_parts(graph, key, weight, bias, prefix, place)
        self._roots[id(found.root)] = found.root
        new = make_condensed(
            x,
            parts,
            self._no_residual(graph, found.array.dtype, prefix),
            geometry,
            name=(not self.name_after_weights and node.name) or self.names.free(prefix),
        )
        node.append(new)
        take_output(node.outputs[0], new.outputs[0])
        remove_node(node)
        self._record(node, found, weight, new, how)

    def _add_parts(
        self,
        graph: ir.Graph,
        key: _WeightKey,
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
        parts = add_parts(graph, biased, prefix, self.names, shared, stored)
        self._parts.setdefault(key, (weight, parts))
        return biased, parts

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
            self.names.release(name_of(old))
        return None

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

    def _no_residual(self, graph: ir.Graph, dtype: np.dtype, prefix: str) -> ir.Value:
        """Return the one of a graph, named after its first layer: files can be merged so."""
        key = (id(graph), dtype.name)
        if key not in self._residuals:
            name = self.names.free(f"{prefix}.no_residual")
            self._residuals[key] = add_constant(graph, name, no_residual(dtype.name))
        return self._residuals[key]


def _prefix(found: ConstantWeight) -> str:
    """Return what the parts of a condensed weight are named after."""
    name = name_of(found.root)
    # A torch model that is a single layer has no name of its own.
    return "layer" if name == "weight" else name.removesuffix(".weight").removesuffix("_weight")


def _key(
    graph: ir.Graph, found: ConstantWeight, trans_b: bool = True, alpha: float = 1.0
) -> _WeightKey:
    # The same operators may carry other attributes before two nodes; the content tells.
    content = hashlib.sha256(found.array.tobytes()).digest() if found.through else b""
    return (id(graph), id(found.root), content, found.array.shape, trans_b, alpha)


def _condense(found: ConstantWeight, layer: LinearLayer | None = None) -> CondensedWeight:
    array, kept = found.array, kept_of(found)
    if layer is not None and not layer.trans_b:
        array, kept = array.T, kept.T
    scaled = array.astype(np.float32, copy=False)
    if layer is not None and layer.alpha != 1:
        scaled = scaled * np.float32(layer.alpha)
    return CondensedWeight.from_dense(scaled, None, kept).astype(array.dtype.name)


def _condense_conv(found: ConstantWeight) -> CondensedWeight:
    wide = found.array.astype(np.float32, copy=False)
    return CondensedWeight.from_dense(wide, None, kept_of(found)).astype(found.array.dtype.name)
