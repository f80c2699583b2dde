"""What the expansion of an operator into simpler ones notes for the report, in ``meta`` alone."""

from __future__ import annotations

import onnx_ir as ir

_SOURCE = "fanin.source"
_LEFT = "fanin.left"
_PART = "fanin.part"


def mark_source(node: ir.Node, op_type: str) -> None:
    """Set the operator of the source that a node is a part of, which reports name instead."""
    node.meta[_SOURCE] = op_type


def source_of(node: ir.Node) -> str:
    """Return the operator of the source that a node is, or is a part of."""
    return str(node.meta.get(_SOURCE, node.op_type))


def is_part(node: ir.Node) -> bool:
    """Return whether a node was made from a part of an operator."""
    return _SOURCE in node.meta


def name_part(value: ir.Value, part: str) -> None:
    """Say which part of a stored weight a value is, such as ``reverse``."""
    if part:
        value.meta[_PART] = part


def part_of(value: ir.Value) -> str:
    """Return what :func:`name_part` said, an empty string if nothing."""
    return str(value.meta.get(_PART, ""))


def leave(node: ir.Node, value: ir.Value, reason: str) -> None:
    """Say why an operator keeps a sparse weight that it reads."""
    node.meta.setdefault(_LEFT, []).append((value, reason))


def take_left(node: ir.Node) -> list[tuple[ir.Value, str]]:
    """Return what :func:`leave` said of a node, once."""
    left: list[tuple[ir.Value, str]] = node.meta.pop(_LEFT, [])
    return left
