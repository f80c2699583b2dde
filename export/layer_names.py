"""What layers are called in reports: by their weight, or by their node where its name says more."""

from __future__ import annotations

import re

# torch.onnx (onnx::MatMul_123, val_12, _to_copy), tf2onnx and Keras (const_fold_opt__12), onnxsim
# and others (a number).
_MADE_UP = re.compile(
    r"onnx::\w+|((val|const|tmp)_)?\d+|(_to_copy|clone|permute|transpose|t)(_\d+)?"
    r"|const_fold_opt__\d+|(.*/)?_?Constant(_\d+)?(_output_\d+)?"
)


def is_made_up(name: str) -> bool:
    """Return whether a weight has a name that its exporter made up, which says nothing."""
    return _MADE_UP.fullmatch(name) is not None


def name_in_reports(weight: str, node: str) -> str:
    """Return what a layer is called: as its weight, or as its node if that name is made up."""
    return node if node and is_made_up(weight) else weight
