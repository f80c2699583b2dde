"""What a user may name as a source although no command reads it, and which call does."""

from __future__ import annotations

import os
from pathlib import Path

from .common import refuse

_HEAD = 16
_PICKLE = b"\x80"


def torch_file(source: Path) -> str | None:
    """Say what a file of PyTorch is; None for any other file, and for none."""
    if not os.path.isfile(source):
        return None
    with source.open("rb") as file:
        head = file.read(_HEAD)
    if source.suffix == ".safetensors":
        return "holds weights without the model"
    if head.startswith(b"PK"):
        return "was written by torch.save, torch.jit.save or torch.export.save"
    # An ONNX file starts with its ir_version, 0x08.
    if head.startswith(_PICKLE) and source.suffix != ".onnx":
        return "is a pickle, as torch.save wrote it once"
    return None


def refuse_torch_file(source: Path, call: str) -> None:
    """Exit with the Python call to use where the source is a file of PyTorch.

    Args:
        source: the argument of a command.
        call: what takes the loaded module.

    """
    found = torch_file(source)
    if found is not None:
        refuse(
            f"{source} {found}, which says too little to run it; make the module in Python and "
            f"load the weights into it (model.load_state_dict), then call {call}"
        )
