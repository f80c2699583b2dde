"""``com.microsoft::Attention``, whose merged weight becomes a layer before the attention."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .access import input_of, optional_input
from .builder import Size
from .expansion import Expansion
from .nodes import dimensions_of, replace_node
from .origins import leave

_OTHERS = ("past_present_share_buffer", "qkv_hidden_sizes", "rotary_embedding_dim")

_TAKEN = ("mask_filter_value", "num_heads", "scale", "unidirectional")


def expand_attention(work: Expansion, node: ir.Node) -> bool:
    """Write it as MatMul, Add, Split and MultiHeadAttention, which has no weights."""
    weight = input_of(node, 1)
    if (reason := _why_left(work, node)) is not None:
        leave(node, weight, reason)
        return False
    found = work.weight(weight)
    assert found is not None
    builder, x = work.builder(node), input_of(node, 0)
    outputs = found.array.shape[1]
    kind, ahead = x.dtype, (dimensions_of(x) or [None, None, None])[:2]
    shape: list[Size] = [*ahead, outputs]
    y = builder.add("MatMul", x, weight, shape=shape, kind=kind, label="projection")
    bias = optional_input(node, 2)
    if bias is not None:
        y = builder.add("Add", y, bias, shape=shape, kind=kind)
    width = outputs // 3
    sizes = builder.integers("sizes", *[width] * 3)
    parts = builder.node("Split", y, sizes, shapes=[[*ahead, width]] * 3, kind=kind, axis=-1)
    read = [*parts.outputs, None, optional_input(node, 3), optional_input(node, 5)]
    while read[-1] is None:
        read.pop()
    attention = ir.node("MultiHeadAttention", read, domain=node.domain, name=node.name)
    for name in _TAKEN:
        if name in node.attributes:
            attention.attributes.add(node.attributes[name])
    node.prepend(attention)
    replace_node(node, attention.outputs[0])
    return True


def _why_left(work: Expansion, node: ir.Node) -> str | None:
    found, mask = work.weight(input_of(node, 1)), optional_input(node, 3)
    others = any(name in node.attributes for name in _OTHERS)
    if others or node.attributes.get_int("do_rotary", 0) != 0:
        return "its attention has rotary embeddings, shared buffers or other sizes"
    if len(node.outputs) > 1 or optional_input(node, 4) is not None:
        return "its attention has past keys and values"
    if len(node.inputs) > 6:
        return "its attention has a length of past keys and values"
    if mask is not None and len(dimensions_of(mask) or ()) != 2:
        return "its attention has a mask of other dimensions than batch and tokens"
    bias = optional_input(node, 2)
    biased = None if bias is None else work.weight(bias)
    if bias is not None and biased is None:
        return "its bias is no constant"
    if found is None or found.array.dtype != np.float32 or found.array.shape[1] % 3:
        return "it is no float32 weight of query, key and value"
    return None
