"""Choose the forms of convolutions together: the runtime reorders activations between some.

ONNX Runtime's dense Conv works on channels in blocks; our op, and the structured form's Gather, on
planes. Wherever one kind reads what the other wrote, activations are copied into the other layout.
So a convolution that is faster by itself may cost more than it saves among dense ones, and one that
is a little slower may be worth it among condensed ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..report import Decision
from .conv_layer import is_conv
from .nodes import is_condensed_conv
from .region import BINARY, UNARY

_AGNOSTIC = (
    UNARY
    | BINARY
    | {
        "AveragePool",
        "BatchNormalization",
        "Concat",
        "Dropout",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "MaxPool",
    }
)
"""Operators between convolutions that the runtime computes in either layout."""


@dataclass(frozen=True)
class Border:
    """A convolution whose output others read.

    Attributes:
        writer: id of its node.
        readers: ids of the convolutions that read its output, through other operators or not.
        entries: entries of the output for one image.

    """

    writer: int
    readers: tuple[int, ...]
    entries: int


def find_borders(model: ir.Model, image_size: int) -> list[Border]:
    """List the convolutions of the main graph that feed others; symbolic sizes count as given."""
    borders = []
    for node in model.graph:
        if not (is_conv(node) or is_condensed_conv(node)):
            continue
        readers = tuple(map(id, _readers(node)))
        if readers:
            borders.append(Border(id(node), readers, _entries(node.outputs[0], image_size)))
    return borders


def _readers(node: ir.Node) -> Iterable[ir.Node]:
    seen, todo = set(), [node.outputs[0]]
    while todo:
        value = todo.pop()
        for use in value.uses():
            reader = use.node
            if id(reader) in seen:
                continue
            seen.add(id(reader))
            if is_conv(reader) or is_condensed_conv(reader):
                yield reader
            elif reader.domain == "" and reader.op_type in _AGNOSTIC:
                todo.append(reader.outputs[0])


def _entries(value: ir.Value, image_size: int) -> int:
    if value.shape is None:
        return 0
    return math.prod(
        size if isinstance(size, int) else image_size for size in list(value.shape)[1:]
    )


def settle_forms(
    seconds: Mapping[int, Mapping[Decision, float]], borders: Sequence[Border], reorder: float
) -> dict[int, Decision]:
    """Choose a form for each convolution so that all together take the least time.

    Single changes are made as long as one helps, from three starts: the fastest form of each on its
    own, all dense, and none dense. A single change can be worth nothing where a run of them is: two
    neighbors that both change save the copy between them. The best of the results is compared
    with all of them dense.

    Args:
        seconds: time by form, by id of the node; "dense" is one of the forms.
        borders: where layouts may change; other convolutions in them count as dense.
        reorder: seconds to copy one entry of the activations, for the whole batch.

    Returns:
        Form by id of the node.

    """
    near: dict[int, list[Border]] = {}
    for border in borders:
        for key in (border.writer, *border.readers):
            near.setdefault(key, []).append(border)

    def copies(border: Border, forms: Mapping[int, Decision]) -> float:
        keys = (border.writer, *border.readers)
        blocked = {forms.get(key, "dense") == "dense" for key in keys}
        return reorder * border.entries if len(blocked) > 1 else 0.0

    def around(key: int, forms: Mapping[int, Decision]) -> float:
        return seconds[key][forms[key]] + sum(copies(border, forms) for border in near.get(key, ()))

    def total(forms: Mapping[int, Decision]) -> float:
        times = sum(seconds[key][form] for key, form in forms.items())
        return times + sum(copies(border, forms) for border in borders)

    def improved(forms: dict[int, Decision]) -> dict[int, Decision]:
        changed = True
        while changed:
            changed = False
            for key, times in seconds.items():
                for form in times:
                    before, least = forms[key], around(key, forms)
                    forms[key] = form
                    if around(key, forms) < least:
                        changed = True
                    else:
                        forms[key] = before
        return forms

    alone = {key: min(times, key=times.__getitem__) for key, times in seconds.items()}
    dense: dict[int, Decision] = dict.fromkeys(seconds, "dense")
    planes: dict[int, Decision] = {}
    for key, times in seconds.items():
        others = [form for form in times if form != "dense"]
        planes[key] = min(others, key=times.__getitem__, default="dense")
    best = min(map(improved, (alone, dict(dense), planes)), key=total)
    if sum(times["dense"] for times in seconds.values()) <= total(best):
        return dense
    return best
