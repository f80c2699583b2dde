"""What calls of ONNX Runtime's quantizer have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from ..errors import ExportError

_MARKS = ("onnx.infer", "onnx.quant.pre_process")
"""Metadata by which the quantizer's own steps know each other."""


@contextmanager
def running(what: str) -> Iterator[None]:
    """Turn errors of the quantizer into one sentence, and keep its advice off the terminal."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    except (ExportError, OSError, MemoryError):
        raise
    except ImportError as error:
        raise ExportError(
            f"quantizing needs onnxruntime ({error}); run: pip install onnxruntime"
        ) from error
    except Exception as error:  # it has no class of errors of its own
        reason = str(error).strip() or type(error).__name__
        raise ExportError(f"onnxruntime's {what} refuses the model: {reason}") from error
    finally:
        root.setLevel(level)


def clean(path: Path) -> ir.Model:
    """Read a model that the quantizer has written, without what it noted for itself."""
    model = ir.load(path)
    for mark in _MARKS:
        model.metadata_props.pop(mark, None)
    return model
