"""Read LSTM and GRU: their weights by direction, and why one cannot become a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .access import optional_input
from .constants import ConstantWeight, folded_constant, resolve_constant

GATES = {"LSTM": 4, "GRU": 3}
"""Gates of each operator, whose rows a weight holds one after the other."""

_ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}

_PEEPHOLES = 7

Masks = Mapping[str, np.ndarray] | None


@dataclass(frozen=True)
class Stored:
    """Where the weight of one direction is.

    Attributes:
        value: ``[1 or directions, gates * hidden, features]``.
        at: its place in the first dimension; None where it is alone in it.

    """

    value: ir.Value
    at: int | None


@dataclass(frozen=True)
class Recurrent:
    """A recurrent operator whose weights are constant.

    Attributes:
        node: the LSTM or GRU.
        hidden: units of each direction.
        inputs: features of X.
        reverse: for each direction whether it goes from the end to the start.
        projections: ``W`` by direction.
        recurrent: ``R`` by direction.
        bias: ``[directions, 2 * gates * hidden]``.

    """

    node: ir.Node
    hidden: int
    inputs: int
    reverse: tuple[bool, ...]
    projections: tuple[Stored, ...]
    recurrent: tuple[Stored, ...]
    bias: np.ndarray

    @property
    def gates(self) -> int:
        """Gates of the operator."""
        return GATES[self.node.op_type]

    @property
    def batch_first(self) -> bool:
        """Whether the batch is the first dimension of X, states and outputs."""
        return self.node.attributes.get_int("layout", 0) == 1

    @property
    def resets_last(self) -> bool:
        """Whether a GRU multiplies with the reset gate after the product, as torch does."""
        return self.node.attributes.get_int("linear_before_reset", 0) != 0

    def input(self, position: int) -> ir.Value | None:
        """Return an optional input."""
        return optional_input(self.node, position)

    def part(self, direction: int) -> str:
        """Name a direction, where there are two."""
        if len(self.reverse) == 1:
            return ""
        return "reverse" if self.reverse[direction] else "forward"


def is_recurrent(node: ir.Node) -> bool:
    """Return whether a node is the standard LSTM or GRU."""
    return node.domain == "" and node.op_type in GATES


def read_recurrent(node: ir.Node, opset: int, masks: Masks) -> Recurrent | str | None:
    """Read a node for which :func:`is_recurrent` holds.

    Returns:
        The operator; why it cannot become a loop; None where no constant weight is involved.

    """
    values = [optional_input(node, position) for position in (1, 2)]
    if any(value is None for value in values):
        return None
    known = dict(masks) if masks is not None else None
    found = [resolve_constant(value, opset, known) for value in values if value is not None]
    arrays = [one.array for one in found if isinstance(one, ConstantWeight)]
    if not arrays:
        return None
    if len(arrays) < 2:
        return "one of its weights is no constant"
    reason = _unsupported(node)
    if reason is not None:
        return reason
    projection, recurrent = arrays
    direction = node.attributes.get_string("direction", "forward")
    reverse = {"forward": (False,), "reverse": (True,)}.get(direction, (False, True))
    if projection.ndim != 3 or recurrent.ndim != 3:
        return "its weights do not have three dimensions"
    hidden, rows = recurrent.shape[2], GATES[node.op_type] * recurrent.shape[2]
    shapes = (projection.shape[:2], recurrent.shape[:2])
    if shapes != ((len(reverse), rows),) * 2 or not projection.size:
        return "the shapes of its weights do not fit its direction and hidden size"
    for array in arrays:
        if array.dtype != np.float32:
            return f"computes in {array.dtype}, which a loop of ours does not"
        if not np.isfinite(array).all():
            return "the weight holds values that are not finite"
    bias = np.zeros((len(reverse), 2 * rows), np.float32)
    given = optional_input(node, 3)
    if given is not None:
        constant = folded_constant(given, opset)
        if constant is None or constant.shape != bias.shape:
            return "its bias is no constant"
        bias = constant
    w, r = (value for value in values if value is not None)
    return Recurrent(
        node,
        hidden,
        projection.shape[2],
        reverse,
        by_direction(w, len(reverse)),
        by_direction(r, len(reverse)),
        bias,
    )


def by_direction(value: ir.Value, directions: int) -> tuple[Stored, ...]:
    """Find what holds each direction of a weight: it itself, or what is concatenated to it."""
    if directions == 1:
        return (Stored(value, None),)
    maker = value.producer()
    if maker is not None and maker.op_type == "Concat" and maker.domain == "":
        sides = [side for side in maker.inputs if side is not None]
        if maker.attributes.get_int("axis", 0) in (0, -3) and len(sides) == directions:
            return tuple(Stored(side, None) for side in sides)
    return tuple(Stored(value, at) for at in range(directions))


def _unsupported(node: ir.Node) -> str | None:
    attributes = node.attributes
    if optional_input(node, _PEEPHOLES) is not None:
        return "it has peepholes"
    if attributes.get_int("input_forget", 0):
        return "its input gate is tied to the forget gate"
    if attributes.get_float("clip", 0.0):
        return "it clips what its gates get"
    given: Sequence[str] = attributes.get_strings("activations", ())
    usual = _ACTIVATIONS[node.op_type]
    for start in range(0, len(given), len(usual)):
        if tuple(name.lower() for name in given[start : start + len(usual)]) != usual:
            return (
                f"its activations are {', '.join(given)}, not {' and '.join(dict.fromkeys(usual))}"
            )
    return None
