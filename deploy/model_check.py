"""What is wrong with a model that ONNX Runtime would open all the same.

The runtime does not check the attributes of a custom op, and a kernel cannot list its own: a
misspelt ``clip_max`` would be a layer without a clip.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from .diagnosis import DOMAIN, unreadable
from .errors import SessionError
from .external_data import check_external_data
from .model_file import ModelFileError, read_model_file

VERSION = 1
ATTRIBUTES = {
    "CondensedGemm": ("in_features", "out_features", "clip_min", "clip_max"),
    "CondensedConv": (
        "kernel_shape",
        "strides",
        "pads",
        "dilations",
        "group",
        "in_channels",
        "out_channels",
        "clip_min",
        "clip_max",
        "gate_scale",
        "gate_shift",
    ),
}


def check_model(model: Path) -> None:
    """Raise SessionError for attributes that no op reads, and for a later version of the ops.

    And for weights that lie outside of the model's folder.

    What cannot be read as an ONNX file is left to the runtime to refuse.
    """
    if model.suffix == ".ort":  # a flatbuffer, which only the runtime reads
        return
    try:
        content = read_model_file(model)
    except ModelFileError:
        return
    except OSError as reason:  # unchecked, it must not be opened
        raise unreadable(model, reason) from reason
    check_external_data(model, content)
    version = content.opset_imports.get(DOMAIN, VERSION)
    if version != VERSION:
        raise SessionError(
            f"the model wants version {version} of the ops of domain '{DOMAIN}'; this version of "
            f"fanin has version {VERSION}",
            "Upgrade fanin, or export the model again with this version.",
            model=model,
        )
    for node in content.nodes:
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
