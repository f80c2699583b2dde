"""From an ONNX file with sparse weights to one with condensed layers, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from onnx_ir.passes import common

from .atomic import staging_folder
from .errors import ExportError
from .locate import first_difference
from .model_file import EXTERNAL_DATA_THRESHOLD, MAX_INLINE_BYTES, publish_model, stage_model
from .onnx_cases import cases_for, own_noise
from .onnx_schema import register_schemas
from .onnx_source import load_source
from .passes.attach_functions import AttachFunctionsPass
from .passes.condense import CondensePass
from .passes.fuse_activation import FuseActivationPass
from .report import ExportReport
from .verify import Case, Reference, check_parity, check_structure


def convert(
    onnx_in: str | os.PathLike[str],
    onnx_out: str | os.PathLike[str],
    *,
    min_sparsity: float = 0.5,
    inputs: Sequence[Mapping[str, np.ndarray]] | None = None,
    verify: bool = True,
    external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
) -> ExportReport:
    """Write an ONNX model with its sparse MatMul and Gemm as ``ai.fanin::CondensedGemm``.

    Args:
        onnx_in: the model; opset 11 to 23. It is only read.
        onnx_out: the file to write; its folder must exist.
        min_sparsity: weights with a smaller share of zeros stay dense.
        inputs: inputs by name to compare on, beside made-up ones.
        verify: compare the outputs of both files. The structure is always checked.
        external_data_threshold: bytes of weights above which they go to a file of their own.

    Returns:
        What became of each weight, the parity error, and the sizes.

    Raises:
        FileNotFoundError: there is no such model.
        ExportError: it cannot be converted, or the result fails its checks; nothing is written.
        ValueError: an argument is out of its range.
        OSError: the output folder is missing or cannot be written.

    """
    source, target = Path(onnx_in), Path(onnx_out)
    if not 0 <= min_sparsity <= 1:
        raise ValueError(f"min_sparsity is {min_sparsity}, it must be 0 to 1")
    if not 0 <= external_data_threshold <= MAX_INLINE_BYTES:
        raise ValueError(
            f"external_data_threshold is {external_data_threshold}, it must be 0 to "
            f"{MAX_INLINE_BYTES}"
        )
    if target.exists() and source.exists() and target.samefile(source):
        raise ValueError(f"{target} is the model itself; give the result another name")
    with staging_folder(target) as scratch:
        model, notes = load_source(source)
        register_schemas()
        common.ShapeInferencePass(strict_mode=False)(model)
        condensed = CondensePass(min_sparsity=min_sparsity)(model)
        fused = FuseActivationPass()(model).fused
        common.RemoveUnusedNodesPass()(model)
        AttachFunctionsPass()(model)
        common.ShapeInferencePass(strict_mode=False)(model)
        staged = stage_model(model, scratch / target.name, external_data_threshold)
        check_structure(staged.path, shape_after_every_node=False)
        parity, missing = (), ("outputs: verification was switched off",)
        if verify:
            cases, names = cases_for(source, inputs)
            reference = Reference(
                "the original",
                cases,
                own_noise(source, cases, names),
                partial(_locate, source, staged.path, names),
            )
            parity, missing = check_parity(staged.path, reference)
        data_path = publish_model(staged, target)
        file_bytes = sum(p.stat().st_size for p in (target, data_path) if p is not None)
    layers = tuple(condensed.layers)
    saved = sum(layer.bytes_dense - layer.bytes_in_file for layer in layers)
    return ExportReport(
        path=str(target),
        data_path=str(data_path) if data_path else None,
        dense_path=None,
        opset=model.opset_imports[""],
        layers=layers,
        fused=tuple(fused),
        parity=parity,
        not_checked=missing,
        file_bytes=file_bytes,
        dense_file_bytes=file_bytes + saved,
        dense_file_measured=False,
        notes=(*notes, *condensed.notes),
    )


def _locate(source: Path, path: Path, names: tuple[str, ...], case: Case, library: bool) -> str:
    feeds = dict(zip(names, case.inputs, strict=True))
    try:
        return first_difference(source, path, feeds, library=library, tolerance=1e-4)
    except ExportError:
        return ""
