"""Weights that a graph computes from constants, as ONNX files often hold them.

Quantizers put a DequantizeLinear before a MatMul, half-precision converters a Cast, exporters a
Transpose, attention a Split of the packed projection, torch's pruning a product with the mask,
weight norm a norm and a quotient. The result is as constant as an initializer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from onnx import helper
from onnx.reference import ReferenceEvaluator

from .access import input_of, name_of
from .nodes import constant_of, stored_tensor
from .origins import part_of

_FOLDED = frozenset(
    {
        "Cast",
        "DequantizeLinear",
        "Identity",
        "Pad",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that give the numbers of their first input in another form."""

BROADCAST = frozenset(
    {
        "Add",
        "And",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Max",
        "Min",
        "Mul",
        "Or",
        "Pow",
        "Sub",
        "Where",
    }
)
"""Operators on single elements of several inputs, which broadcast them."""

_COMPUTED = BROADCAST | {
    "Abs",
    "CastLike",
    "Clip",
    "Concat",
    "ConstantOfShape",
    "Exp",
    "Expand",
    "Log",
    "MatMul",
    "Neg",
    "Not",
    "Reciprocal",
    "ReduceL2",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceSum",
    "ReduceSumSquare",
    "Relu",
    "Shape",
    "Sigmoid",
    "Sign",
    "Softplus",
    "Sqrt",
    "Tanh",
    "TopK",
}
"""Operators that make new numbers out of constants: masks, norms, scales, low ranks."""

_MOST_COMPUTED = 1 << 26
_MOST_GROWTH = 4
"""How many numbers may be computed for a weight: so many, or so many times those that are stored
for it, whichever are more."""


_VARIES = "fanin.varies"
"""Key in the ``meta`` of values that are known not to be constant, which no file holds."""


@dataclass(frozen=True)
class ConstantWeight:
    """A weight with its origin.

    Attributes:
        array: what the operator gets.
        mask: the mask of the origin, taken along the same way; None where it has none.
        root: the initializer or Constant output that it comes from; where it comes from several,
            the largest, and of equal ones the first that is no mask of zeros and ones.
        through: operators between root and use, such as ``("Transpose",)``.
        others: the other constants that it comes from.
        part: what of the root it is, for the report; empty where that is not known.

    """

    array: np.ndarray
    mask: np.ndarray | None
    root: ir.Value
    through: tuple[str, ...] = ()
    others: tuple[ir.Value, ...] = ()
    part: str = ""

    @property
    def computed(self) -> bool:
        """Whether its numbers are others than those of its root."""
        return not ({"Cast", "DequantizeLinear"} | _COMPUTED).isdisjoint(self.through)


def resolve_constant(
    value: ir.Value, opset: int, masks: dict[str, np.ndarray] | None = None
) -> ConstantWeight | str | None:
    """Follow a value back to the constants that it comes from.

    Returns:
        The weight; a reason why a stored weight is not constant; None when no weight is behind the
        value at all.

    """
    if is_constant(value):
        return _Evaluation(opset, masks or {}).of(value)
    # A stored weight that is not constant is worth a reason.
    while (node := value.producer()) is not None and node.op_type in _FOLDED and node.domain == "":
        data = input_of(node, 0)
        if is_constant(data):
            return f"{node.op_type} before it has an input that is no constant"
        value = data
    scales = node is not None and node.domain == "" and node.op_type in ("Mul", "Div")
    if node is not None and scales and any(_scales(side, value, node) for side in node.inputs):
        return f"{node.op_type} before it has an input that is no constant"
    if value.is_graph_input() and value.is_initializer():
        return (
            f"{value.name} is a graph input, which a caller can replace; if none does, take it out "
            "of the inputs with onnxruntime.tools.remove_initializer_from_input"
        )
    return None


def _scales(side: ir.Value | None, product: ir.Value, node: ir.Node) -> bool:
    """Return whether a stored matrix is multiplied with something smaller that is no constant."""
    if side is None or product.shape is None or len(product.shape) < 2 or not is_constant(side):
        return False
    others = [other for other in node.inputs if other is not None and other is not side]
    known = [other for other in others if other.shape is not None]
    return side.shape == product.shape and any(other.shape != side.shape for other in known)


def forget_what_varies(model: ir.Model) -> None:
    """Forget what is known not to be constant: it may have become so since."""
    for graph in model.graphs():
        for node in graph:
            for value in node.outputs:
                value.meta.pop(_VARIES, None)


def is_constant(value: ir.Value) -> bool:
    """Return whether a value is a constant or computed from constants alone, as weights are."""
    waiting = [value]
    reader: dict[ir.Value, ir.Value | None] = {value: None}
    while waiting:
        one: ir.Value | None = waiting.pop()
        assert one is not None
        node = one.producer() if _computes(one.producer()) else None
        stored = not one.is_graph_input() and stored_tensor(one) is not None
        if _VARIES in one.meta or (node is None and not stored):
            # The next search ends at one of these, not at the start of the network.
            while one is not None:
                one.meta[_VARIES] = True
                one = reader[one]
            return False
        for side in _sides(node):
            if side is not None and side not in reader:
                reader[side] = one
                waiting.append(side)
    return True


def _computes(node: ir.Node | None) -> bool:
    return node is not None and node.domain == "" and node.op_type in _FOLDED | _COMPUTED


def _sides(node: ir.Node | None) -> Sequence[ir.Value | None]:
    return () if node is None else node.inputs


class _Evaluation:
    """Computes constants, each once, and no more of them than fit into memory."""

    def __init__(self, opset: int, masks: dict[str, np.ndarray]) -> None:
        self._opset, self._masks = opset, masks
        self._done: dict[int, ConstantWeight | str] = {}
        self._stored = self._made = 0

    def of(self, value: ir.Value) -> ConstantWeight | str:
        """Compute a value for which :func:`is_constant` holds, or say why it is not computed."""
        waiting = [value]
        while waiting:
            one = waiting[-1]
            node = one.producer() if _computes(one.producer()) else None
            missing = [s for s in _sides(node) if s is not None and id(s) not in self._done]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if id(one) not in self._done:
                self._done[id(one)] = (
                    self._stored_constant(one) if node is None else self._computed(one, node)
                )
        return self._done[id(value)]

    def _stored_constant(self, value: ir.Value) -> ConstantWeight:
        array = constant_of(value)
        assert array is not None
        self._stored += array.size
        return ConstantWeight(array, self._masks.get(name_of(value)), value)

    def _computed(self, value: ir.Value, node: ir.Node) -> ConstantWeight | str:
        sides: list[ConstantWeight | None] = []
        for side in node.inputs:
            found = None if side is None else self._done[id(side)]
            if isinstance(found, str):
                return found
            sides.append(found)
        arrays = [None if side is None else side.array for side in sides]
        known = [side for side in sides if side is not None]
        source = known[0] if node.op_type in _FOLDED else _largest(known)
        shapes = [side.array.shape for side in known]
        sizes = " and ".join("×".join(map(str, shape)) for shape in shapes)
        try:
            self._made += _size(node.op_type, shapes, arrays[-1])
            if self._made > max(_MOST_COMPUTED, _MOST_GROWTH * self._stored):
                return f"{node.op_type} of constants of {sizes} before it makes too many numbers"
            array, mask = run_node(node, value, arrays, self._opset), self._mask(node, value, sides)
        except Exception as error:  # whatever the reference evaluator raises on what does not fit
            return f"{node.op_type} of constants of {sizes} before it cannot be computed: {error}"
        others = [side for side in known if side is not source]
        return replace(
            source,
            array=array,
            mask=mask,
            through=(*source.through, node.op_type),
            others=(*source.others, *(v for o in others for v in (o.root, *o.others))),
            part=part_of(value) or source.part,
        )

    def _mask(
        self, node: ir.Node, value: ir.Value, sides: list[ConstantWeight | None]
    ) -> np.ndarray | None:
        """Take the masks of the inputs along; None where nothing keeps the zeros of one."""
        if node.op_type in _FOLDED:
            assert sides[0] is not None
            mask = sides[0].mask
            if mask is None or node.op_type in ("Cast", "DequantizeLinear"):
                return mask
            arrays = [None if side is None else side.array for side in sides[1:]]
            return run_node(node, value, [mask, *arrays], self._opset)
        masks = [side.mask for side in sides if side is not None and side.mask is not None]
        if node.op_type == "Concat" and len(masks) == len(sides):
            return run_node(node, value, [mask.astype(bool) for mask in masks], self._opset)
        if not masks or node.op_type not in ("Mul", "Div") or sides[0] is None:
            return None
        if node.op_type == "Div" and sides[0].mask is None:
            return None
        shape = np.broadcast_shapes(*(side.array.shape for side in sides if side is not None))
        kept = np.ones(shape, bool)
        for mask in masks:
            kept &= mask.astype(bool)
        return kept


def _largest(sides: Sequence[ConstantWeight]) -> ConstantWeight:
    most = max(side.array.size for side in sides)
    large = [side for side in sides if side.array.size == most]
    return next((side for side in large if not _is_mask(side.array)), large[0])


def _is_mask(array: np.ndarray) -> bool:
    return array.dtype == bool or bool(np.isin(array, (0, 1)).all())


def _size(op: str, shapes: Sequence[tuple[int, ...]], last: np.ndarray | None) -> int:
    """Bound how many numbers an operator makes of constants of these shapes, the last as given."""
    if op in ("ConstantOfShape", "Expand") and last is not None:
        return sum(map(math.prod, shapes[:-1])) + math.prod(abs(int(size)) for size in last.flat)
    if op in BROADCAST:
        return math.prod(np.broadcast_shapes(*shapes))
    if op == "MatMul" and min(map(len, shapes)) > 1:
        batch = np.broadcast_shapes(*(shape[:-2] for shape in shapes))
        return math.prod(batch) * shapes[0][-2] * shapes[1][-1]
    return sum(map(math.prod, shapes))


def live_readers(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that need a value.

    Operators that are folded into weights stand for those that read what they give.
    """
    for form in forms_of(value):
        yield from readers_of(form)
        if form is not value and form.is_graph_output() and (maker := form.producer()):
            yield maker


def readers_of(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that read a value and are not folded into weights."""
    for node, _ in value.uses():
        if not _is_folded(node):
            yield node


def forms_of(value: ir.Value) -> Iterator[ir.Value]:
    """Yield a constant and what operators that are folded into weights make of it, each once."""
    waiting, seen = [value], {id(value)}
    while waiting:
        form = waiting.pop()
        yield form
        for node, _ in form.uses():
            if not _is_folded(node):
                continue
            for output in node.outputs:
                if id(output) not in seen:
                    seen.add(id(output))
                    waiting.append(output)


def _is_folded(node: ir.Node) -> bool:
    return node.domain == "" and (
        node.op_type in _FOLDED
        or (node.op_type in _COMPUTED and all(map(is_constant, node.outputs)))
    )


def folded_constant(value: ir.Value, opset: int) -> np.ndarray | None:
    """Read a constant, also one that the graph computes; None for anything else."""
    found = resolve_constant(value, opset)
    return found.array if isinstance(found, ConstantWeight) else None


def run_node(
    node: ir.Node, output: ir.Value, inputs: list[np.ndarray | None], opset: int
) -> np.ndarray:
    """Compute an output of one node with onnx's reference implementation."""
    proto = ir.serde.serialize_node(node)
    feeds, names = {}, []
    for position, array in enumerate(inputs):
        names.append("" if array is None else f"in{position}")
        if array is not None:
            feeds[names[-1]] = array
    del proto.input[:]
    proto.input.extend(names)
    ports = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(feeds[name].dtype), None
        )
        for name in feeds
    ]
    wanted = helper.make_empty_tensor_value_info(name_of(output))
    graph = helper.make_graph([proto], "fold", ports, [wanted])
    # Its DequantizeLinear begins at 19, which differs from older ones in types only.
    opset_import = helper.make_opsetid("", max(opset, 19))
    model = helper.make_model(graph, opset_imports=[opset_import])
    # A node of several outputs, such as Split, is computed for one of them.
    with np.errstate(all="ignore"):  # numbers that are not finite are refused by name later
        (result,) = ReferenceEvaluator(model).run([output.name], feeds)
    return np.asarray(result)
