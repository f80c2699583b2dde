"""What calls of ONNX Runtime's quantizer have in common."""

from __future__ import annotations

import io
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import onnx_ir as ir

from ..errors import ExportError
from ..passes.access import name_of
from ..passes.nodes import Names

_MARKS = ("onnx.infer", "onnx.quant.pre_process")
"""Metadata by which the quantizer's own steps know each other."""


@contextmanager
def running(what: str) -> Iterator[None]:
    """Turn errors of the quantizer into one sentence, and keep its advice off the terminal."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()):  # the calibrators report their progress there
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


def clean(path: Path, layers: Collection[str]) -> ir.Model:
    """Read a model that the quantizer has written, without what it noted for itself.

    Args:
        path: the model.
        layers: names of nodes, which get them back where they were extended.

    """
    model = ir.load(path)
    for mark in _MARKS:
        model.metadata_props.pop(mark, None)
    names = Names(model)
    for node in model.graph:
        before = (node.name or "").removesuffix("_quant").removesuffix("_MatMul")
        if before in layers and before != node.name:
            node.name = names.free(before)
    for value in list(model.graph.initializers.values()):
        before = name_of(value).removesuffix("_Transposed_quantized")
        if before != value.name:
            value.name = names.free(f"{before}_quantized")
    return model
