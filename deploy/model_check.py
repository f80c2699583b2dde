"""What is wrong with a model that ONNX Runtime would open all the same.

The runtime does not check the attributes of a custom op, and a kernel cannot list its own: a
misspelt ``clip_max`` would be a layer without a clip.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ..onnx_file import ModelFile, ModelFileError, Node, read_checked
from ..ort_ops.contract import ATTRIBUTES, DOMAIN, DOMAIN_VERSION
from .diagnosis import not_onnx, unreadable
from .errors import SessionError


def check_model(model: Path) -> None:
    """Raise SessionError for attributes that no op reads, and for a later version of the ops.

    And for what checked_content refuses.
    """
    content = checked_content(model)
    for entry in (*content.opset_imports, *content.function_imports):
        if entry.domain == DOMAIN and entry.version != DOMAIN_VERSION:
            raise SessionError(
                f"the model wants version {entry.version} of the ops of domain '{DOMAIN}'; this "
                f"version of fanin has version {DOMAIN_VERSION}",
                "Upgrade fanin, or export the model again with this version.",
                model=model,
            )
    for node in (*content.nodes, *content.function_nodes):
        _check_attributes(model, node)


def checked_content(model: Path) -> ModelFile:
    """Scan an ONNX file; nothing else in this package reads one that this has not seen before.

    Raises SessionError for a file that cannot be read, that is no sound ONNX file, or whose weights
    lie outside of its folder.
    """
    try:
        return read_checked(model)
    except ModelFileError as reason:
        raise not_onnx(model, reason) from reason
    except OSError as reason:  # unchecked, it must not be opened
        raise unreadable(model, reason) from reason


def _check_attributes(model: Path, node: Node) -> None:
    known = ATTRIBUTES.get(node.op_type, ()) if node.domain == DOMAIN else ()
    for name in node.attributes if known else ():
        if name in known:
            continue
        close = get_close_matches(name, known, 1)
        raise SessionError(
            f"node '{node.name}' has an attribute '{name}', which {node.op_type} does not read "
            f"(it reads {', '.join(known)})",
            f"Rename it to '{close[0]}'." if close else "Take it out.",
            model=model,
            node=node.name,
        )
