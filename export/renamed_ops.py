"""Ops of ours that other tools have renamed: what merges files with prefixes, for instance.

Under another name or in another domain, a node calls its function, which is dense, whether or not
the library is there.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from ..ort_ops.contract import ATTRIBUTES, DOMAIN, DOMAIN_VERSION, INPUTS, OUTPUT, renamed_op
from .onnx_reading import graphs_inside, graphs_of

_Key = tuple[str, str]
"""Domain and name."""


def restore_names(model: onnx.ModelProto) -> tuple[str, ...]:
    """Give renamed ops of ours their names back, and remove the functions that they called.

    A function counts as ours by the end of its name, its inputs and its attributes.

    Returns:
        A line for the report for each such name.

    """
    functions = {(body.domain, body.name): body for body in model.functions}
    renamed: dict[_Key, str] = {}
    for key, body in functions.items():
        op = renamed_op(*key)
        if op is not None and _is_like(body, op):
            renamed[key] = op
    count = dict.fromkeys(renamed, 0)
    for node in _nodes(model):
        key = (node.domain, node.op_type)
        op = renamed.get(key)
        if op is not None:
            count[key] += 1
            node.domain, node.op_type = DOMAIN, op
    if not renamed:
        return ()
    kept = [body for key, body in functions.items() if key not in renamed]
    del model.functions[:]
    model.functions.extend(kept)
    if all(entry.domain != DOMAIN for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
    return tuple(
        f"{count[key]} node{'s' * (count[key] != 1)} {'::'.join(filter(None, key))} "
        f"are {op} again, which another tool had renamed"
        for key, op in renamed.items()
    )


def _is_like(body: onnx.FunctionProto, op: str) -> bool:
    given = {*body.attribute, *(attribute.name for attribute in body.attribute_proto)}
    ports = (list(body.input), list(body.output))
    return ports == (list(INPUTS[op]), [OUTPUT]) and given <= set(ATTRIBUTES[op])


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in graphs_of(model.graph):
        yield from graph.node
    for body in model.functions:
        yield from body.node
        for graph in graphs_inside(body.node):
            yield from graph.node
