"""Checks for errors in a model that ONNX Runtime does not notice.

It does not check the attributes of custom ops, and a kernel cannot list those it was given: with a
misspelled ``clip_max``, the layer would silently not clip.
"""

from __future__ import annotations

from pathlib import Path

from .._base.names import near_matches
from ..onnx_file import ModelFile, ModelFileError, Node, read_checked
from ..ort_ops.contract import ATTRIBUTES, DOMAIN, DOMAIN_VERSION
from .diagnosis import not_onnx, unreadable
from .errors import SessionError


def check_model(model: Path) -> ModelFile:
    """Check a model before it is opened.

    Args:
        model: Path of the ONNX file.

    Returns:
        Its content.

    Raises:
        SessionError: If a node of fanin's has an unknown attribute, the model needs a different
            version of the ops, or ``checked_content`` refuses the file.

    """
    content = checked_content(model)
    for entry in (*content.opset_imports, *content.function_imports):
        if entry.domain == DOMAIN and entry.version != DOMAIN_VERSION:
            raise SessionError(
                f"the model needs version {entry.version} of the ops of domain '{DOMAIN}'; this "
                f"version of fanin has version {DOMAIN_VERSION}",
                "Upgrade fanin, or export the model again with this version.",
                model=model,
            )
    for node in (*content.nodes, *content.function_nodes):
        _check_attributes(model, node)
    return content


def safe_arguments(content: ModelFile) -> dict[str, list[str]]:
    """Return the arguments of an InferenceSession that keep a model from crashing the process."""
    optimizers = content.crashing_optimizers
    return {"disabled_optimizers": optimizers} if optimizers else {}


def checked_content(model: Path) -> ModelFile:
    """Scan an ONNX file; this package reads no model that has not passed here first.

    Args:
        model: Path of the ONNX file.

    Returns:
        The nodes, functions, opset imports and external tensors.

    Raises:
        SessionError: If the file cannot be read, is not valid ONNX, or has weights outside its
            folder.

    """
    try:
        return read_checked(model)
    except ModelFileError as reason:
        raise not_onnx(model, reason) from reason
    except OSError as reason:  # must not be opened unchecked
        raise unreadable(model, reason) from reason


def _check_attributes(model: Path, node: Node) -> None:
    known = ATTRIBUTES.get(node.op_type, ()) if node.domain == DOMAIN else ()
    for name in node.attributes if known else ():
        if name in known:
            continue
        raise SessionError(
            f"node '{node.name}' has an attribute '{name}', which {node.op_type} does not read",
            f"Rename or remove it.{near_matches(name, known)}",
            model=model,
            node=node.name,
        )
