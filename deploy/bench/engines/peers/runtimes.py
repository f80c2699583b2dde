"""A sparse layer or a model in other runtimes, each engine in a process of its own.

On Zen 4 at batch 1 and 16 DeepSparse runs sparse Gemm and MatMul no faster than dense ones, but the
same weights faster as a 1x1 convolution; quoting one form would be unfair to it, so all of them are
timed. ``torch-gather`` is how SRigL's authors run their condensed layers (SRigL, section 4.4).
OpenVINO computes in bfloat16 by default where the CPU has it; ``openvino`` is held to float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .....ort_ops.format.condensed import CondensedWeight
from ..protocol import Engine, UnavailableEngine
from .child_process import NO_DEEPSPARSE, REMEDIES, worker_command
from .deepsparse_int8 import deepsparse_int8_file
from .deepsparse_model import UnsupportedModelError, deepsparse_file
from .dense_forms import save_dense_form
from .remote import Child, RemoteEngine


class _Form(NamedTuple):
    """An engine, named ``option`` and ``suffix``, and how a layer is expressed to its runtime.

    ``format`` is one of _arrays or of save_dense_form.
    """

    option: str
    suffix: str
    format: str
    text: str

    @property
    def kind(self) -> str:
        """The worker's kind."""
        kinds = {"torch-compile": "torch", "openvino-default": "openvino"}
        return kinds.get(self.option, self.option)

    @property
    def columns(self) -> bool:
        """Whether input and output are [features, batch], so that nothing is transposed."""
        return self.format in ("csr-t", "spatial")


_CSR_T = "CSR x [in, batch], transposes not timed"
_SPATIAL = "Conv 1x1 on [1, in, 1, batch]: input and output transposed, which is not timed"
_COMPILED = "torch.compile(mode='max-autotune')"
_FORMS = (
    _Form("scipy-csr", "", "csr", "CSR x [batch, in]"),
    _Form("scipy-csr", "-t", "csr-t", _CSR_T),
    _Form("torch-csr", "", "csr", "CSR x [batch, in]"),
    _Form("torch-csr", "-t", "csr-t", _CSR_T),
    _Form("torch", "", "dense", "functional.linear, eager"),
    _Form("torch-compile", "", "dense", f"functional.linear, {_COMPILED}, frozen weights"),
    _Form("torch-gather", "", "condensed", f"(x[:, indices] * values).sum(-1), {_COMPILED}"),
    _Form("openvino", "", "gemm", "Gemm(transB=1), inference precision f32"),
    _Form("openvino-default", "", "gemm", "Gemm(transB=1), inference precision left to it"),
    _Form("deepsparse", "-gemm", "gemm", "Gemm(transB=1)"),
    _Form("deepsparse", "-matmul", "matmul", "MatMul, Add"),
    _Form("deepsparse", "-conv", "conv", "Conv 1x1 on [batch, in, 1, 1]"),
    _Form("deepsparse", "-spatial", "spatial", _SPATIAL),
)


def peer_engines(
    option: str,
    weight: CondensedWeight,
    batch: int,
    threads: int,
    folder: Path,
    deepsparse_python: Path,
) -> list[Engine]:
    """Make the engines of an option of the command line; their files go into ``folder``.

    Forms on columns are left out at batch 1, where they are the same as the others. Without
    ``deepsparse_python``, the interpreter that has DeepSparse, its only engine is one that is
    excluded with the reason.
    """
    if option == "deepsparse" and not deepsparse_python.is_file():
        return [UnavailableEngine(option, NO_DEEPSPARSE)]
    engines: list[Engine] = []
    for one in _FORMS:
        if one.option == option and (batch > 1 or not one.columns):
            name = one.option + one.suffix
            child = Child(
                one.kind,
                layer=_save(one, weight, batch, folder / name),
                null=_save(one, _null_layer(one.kind), 1, folder / f"{name}-null"),
                remedy=REMEDIES[one.kind],
                columns=one.columns,
                command=worker_command(one.kind, deepsparse_python),
            )
            output = (batch, weight.out_features)
            precision = "bfloat16" if option == "openvino-default" else "float32"
            engines.append(
                RemoteEngine(name, one.text, child, threads, output, precision=precision)
            )
    return engines


def peer_model(
    kind: str,
    path: Path,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    threads: int,
    folder: Path,
    deepsparse_python: Path,
    calibration: Sequence[Mapping[str, np.ndarray]] | None = None,
) -> Engine:
    """Run a model of one input and one output, of these shapes, in OpenVINO or DeepSparse.

    The weights in the file are as sparse as ours, which is all that DeepSparse needs to know.
    With ``calibration``, inputs by name, the engine is called KIND-int8: OpenVINO has to compute
    the model in 8 bits as it is written, for DeepSparse a model in float32 is quantized.
    Returns an unavailable engine without DeepSparse, or where it cannot read the model.
    """
    name = kind if calibration is None else f"{kind}-int8"
    form, more = f"{path.name}, precision f32", {"precision": "f32"}
    if kind == "deepsparse":
        if not deepsparse_python.is_file():
            return UnavailableEngine(name, NO_DEEPSPARSE)
        copy = folder / f"{name}.onnx"
        try:
            if calibration is None:
                changes = deepsparse_file(path, copy)
            else:
                changes = deepsparse_int8_file(path, copy, calibration)
        except UnsupportedModelError as error:
            return UnavailableEngine(name, str(error))
        path, form, more = copy, f"{path.name}, {changes}", {}
    null, null_file = _null_layer(kind), folder / f"{kind}-null.onnx"
    child = Child(
        kind=kind,
        layer={
            "model": str(path.absolute()),
            "shape": list(inputs),
            "int8": calibration is not None,
            **more,
        },
        null={**save_dense_form(null_file, "gemm", null.to_dense(), null.bias, 1), **more},
        remedy=REMEDIES[kind],
        command=worker_command(kind, deepsparse_python),
    )
    precision = "float32" if calibration is None else "int8"
    return RemoteEngine(name, form, child, threads, outputs, precision=precision)


def _null_layer(kind: str) -> CondensedWeight:
    """Make a layer too small to matter, whose run is the cost of a call."""
    features = 16 if kind == "deepsparse" else 1
    dense = np.ones((features, features), np.float32)
    return CondensedWeight.from_dense(dense, dense[0])


def _save(form: _Form, weight: CondensedWeight, batch: int, path: Path) -> dict[str, Any]:
    """Write the layer to ``path`` with a suffix; returns the worker's ``layer``."""
    settings = {
        "columns": form.columns,
        "compile": form.option == "torch-compile",
        "precision": None if form.option == "openvino-default" else "f32",
    }
    arrays = _arrays(form.format, weight)
    if arrays is None:
        file = path.with_suffix(".onnx")
        dense = weight.to_dense()
        return {**save_dense_form(file, form.format, dense, weight.bias, batch), **settings}
    np.savez(path.with_suffix(".npz"), bias=weight.bias, **arrays)
    shape = [weight.in_features, batch] if form.columns else [batch, weight.in_features]
    return {"arrays": str(path.with_suffix(".npz")), "shape": shape, **settings}


def _arrays(format: str, weight: CondensedWeight) -> dict[str, Any] | None:
    """Return what the worker needs of the layer besides its bias; None for an ONNX model."""
    if format == "dense":
        return {"weight": weight.to_dense()}
    if format == "condensed":
        return {
            # Padding, where rows are unequal, holds zeros at columns that are read anyway.
            "values": weight.values.astype(np.float32),
            "indices": weight.indices.astype(np.int64),
            "rows": weight.rows.astype(np.int64),
        }
    if format not in ("csr", "csr-t"):
        return None
    entries = weight.is_entry()
    counts = np.zeros(weight.out_features + 1, np.int32)
    counts[1 + weight.rows] = entries.sum(axis=1)
    return {
        "data": weight.values[entries].astype(np.float32),
        # int32: MKL takes nothing else here, and torch would convert int64 in each call.
        "indices": weight.indices[entries].astype(np.int32),
        "indptr": np.cumsum(counts, dtype=np.int32),
        "shape": np.array([weight.out_features, weight.in_features]),
    }
