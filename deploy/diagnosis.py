"""Explains why ONNX Runtime refused a model: first from the file, then from the error message.

The messages change between releases, and tell neither which domain was meant nor what to do. The
file's nodes, opset imports and external tensors do not change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from ..onnx_file import DataFileError, ModelFile, ModelFileError, Node, read_model_file
from ..ort_ops.contract import DOMAIN, OPS
from .errors import SessionError
from .transient import is_transient, mentions_transient_failure

_UPGRADE = "Upgrade fanin, or export the model again with this version."


def explain_load_failure(model: Path, error: Exception) -> SessionError:
    """Return the SessionError for ``error``, which ONNX Runtime raised when it opened ``model``."""
    text = plain(str(error))
    if re.search("Domain already set in registry|Conflicting with a registered kernel", text):
        return SessionError(
            "two custom-op libraries in the given options claim the same domain, or one that is "
            "not fanin's is registered twice",
            "Register each of them once, or leave them out (open_session registers fanin's own).",
            model=model,
        )
    if mentions_transient_failure(text) and not any(op in text for op in OPS):
        return SessionError(
            f"there is not enough memory, or another resource of this machine or process ({text})",
            "Free memory, close sessions and files, or raise the limits (ulimit -a lists them); "
            "then open it again.",
            model=model,
        )
    try:
        content = read_model_file(model)
    except ModelFileError:  # a flatbuffer, or replaced by another file since
        return _from_message(model, text, None)
    except OSError as reason:
        return unreadable(model, reason)
    return (
        _missing_external_data(model, content)
        or _unknown_op(model, content)
        or _from_message(model, text, content)
    )


def unreadable(model: Path, reason: OSError) -> SessionError:
    """Return the SessionError for a file that exists but cannot be read."""
    transient = is_transient(reason)
    return SessionError(
        f"the file cannot be read ({reason.strerror or reason})",
        "This may be temporary: try again." if transient else "Check the disk.",
        model=model,
    )


def not_onnx(model: Path, reason: ModelFileError) -> SessionError:
    """Return the SessionError for a file that is not ONNX, or has weights outside its folder."""
    if isinstance(reason, DataFileError):
        return SessionError(
            str(reason),
            "External data must be in the model's folder. Do not open this file unless you know "
            "where it comes from; onnx.load and onnx.save_model rewrite it.",
            model=model,
        )
    return SessionError(f"this is not an ONNX file: {reason}", _file_hint(model), model=model)


def plain(text: str) -> str:
    """Strip error codes and locations in ONNX Runtime's source from a message."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"/onnxruntime_src/\S+:\d+ .*?\) ", "", text)
    return " ".join(text.split())


def _file_hint(model: Path) -> str:
    with model.open("rb") as file:
        head = file.read(48)
    if head.startswith(b"version https://git-lfs"):
        return "It is a Git LFS pointer: run git lfs pull to get the model."
    if head.startswith(b"PK"):
        return "It looks like a PyTorch checkpoint: fanin export writes ONNX files from runs."
    if model.suffix == ".safetensors":
        return "It holds only weights: fanin export writes an ONNX file from the run folder."
    return "Copy or export the file again."


def _missing_external_data(model: Path, content: ModelFile) -> SessionError | None:
    folder = model.absolute().parent
    missing = [
        tensor for tensor in content.external if not os.path.exists(folder / tensor.location)
    ]
    if not missing:
        return None
    files = sorted({tensor.location for tensor in missing})
    return SessionError(
        f"its external data is missing: {', '.join(files)} (weights of {len(missing)} tensors, "
        f"for example '{missing[0].name}') is not in {folder}",
        "Copy the data file into the model's folder under that name.",
        model=model,
    )


def _unknown_op(model: Path, content: ModelFile) -> SessionError | None:
    imported = {entry.domain for entry in content.opset_imports}
    for node in content.nodes:
        if (node.domain, node.op_type) in content.functions and node.domain != DOMAIN:
            continue
        if node.domain == DOMAIN and DOMAIN not in imported:
            return SessionError(
                f"node '{node.name}' uses {node.op_type} of domain '{DOMAIN}', but the model has "
                "no opset import for that domain",
                f"Add opset_import {{domain: '{DOMAIN}', version: 1}} to the model, or export it "
                "with fanin export.",
                model=model,
                node=node.name,
            )
        if node.domain == DOMAIN and node.op_type not in OPS:
            return SessionError(
                f"node '{node.name}' uses {node.op_type}, which this version of fanin does not "
                f"have (it has {', '.join(OPS)})",
                _UPGRADE,
                model=model,
                node=node.name,
            )
        if node.domain != DOMAIN and node.op_type in OPS:
            return SessionError(
                f"node '{node.name}' uses {node.op_type} in domain '{node.domain}', but fanin's "
                f"ops are in domain '{DOMAIN}'",
                f"Set the node's domain to '{DOMAIN}', or export the model with fanin export.",
                model=model,
                node=node.name,
            )
    return None


def _from_message(model: Path, text: str, content: ModelFile | None) -> SessionError:
    unregistered = re.search(r"([\w.]+):(\w+)\(-?\d+\) is not a registered function/op", text)
    if unregistered:
        domain, op_type = unregistered.groups()
        node = _find(content, lambda node: (node.domain, node.op_type) == (domain, op_type))
        place = f"node '{node.name}' uses " if node else "it uses "
        return SessionError(
            f"{place}{op_type} of domain '{domain}', which is neither a standard op nor fanin's",
            f"Name the library that has the domain '{domain}': --custom-op-library PATH of fanin "
            "serve and doctor, custom_op_libraries=[PATH] of open_session.",
            model=model,
            node=node.name if node else None,
        )
    too_new = re.search(
        r"Unsupported model IR version: (\d+), max supported IR version: (\d+)", text
    )
    if too_new:
        return SessionError(
            f"its IR version is {too_new[1]}, but this onnxruntime reads only up to {too_new[2]}",
            "Upgrade onnxruntime, or export the model again (fanin writes IR version 9).",
            model=model,
        )
    if "guarantees* support for models stamped with official released" in text:
        return SessionError(
            f"this onnxruntime does not support the model's opset ({text})",
            "Upgrade onnxruntime, or export the model with a lower opset.",
            model=model,
        )
    if "can not be read in full" in text or ("out of bounds" in text and "External" in text):
        return SessionError(
            f"its external data is truncated or belongs to another model ({text})",
            "Copy the model and its data file again, both of them.",
            model=model,
        )
    # Our ops write node 'name'; the runtime writes ("name", Op, …) or node (name).
    node = _find(
        content,
        lambda node: any(mark % node.name in text for mark in ("'%s'", '("%s"', "node (%s)")),
    )
    name = node.name if node else None
    refusal = re.search(rf"Exception during initialization: ((?:{'|'.join(OPS)}) node .*)", text)
    if refusal:
        remedy = "The weights in the model are invalid: export it again with fanin export."
        if "FANIN_ISA" in text or "ISA '" in text:
            remedy = "Unset FANIN_ISA, or set it to one that fanin doctor lists for this CPU."
        elif "FANIN_CUDA_UNPROVEN" in text:
            remedy = "Unset FANIN_CUDA_UNPROVEN, or set it to on or off."
        elif "CUDA op" in text or "CUDAExecutionProvider" in text:
            remedy = "Do that, or open the model with providers=['CPUExecutionProvider']."
        elif "on device" in text or "CUDA error" in text:
            remedy = "See what nvidia-smi says about the device and its memory, or use the CPU."
        elif "out of memory" in text:
            remedy = "Close other sessions, or use a machine with more memory."
        return SessionError(refusal[1], remedy, model=model, node=name)
    kernel = re.search(r"Could not find an implementation for (\w+)\(\d+\)", text)
    if kernel or "'tensor(bfloat16)' of input parameter" in text:
        what = "bfloat16 there" if kernel is None else f"{kernel[1]} in the type of this model"
        return SessionError(
            f"the session's providers have no kernel for {what} ({text}); CPUs have hardly any "
            "in bfloat16",
            "Open it with providers=['CUDAExecutionProvider'] on a GPU, or export it with "
            "--precision float16 or float32.",
            model=model,
            node=name,
        )
    return SessionError(
        f"ONNX Runtime refused the model: {text}",
        "Check the file with onnx.checker.check_model(path, full_check=True).",
        model=model,
        node=name,
    )


def _find(content: ModelFile | None, wanted: Callable[[Node], bool]) -> Node | None:
    return next(filter(wanted, content.nodes), None) if content else None
