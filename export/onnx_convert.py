"""From an ONNX file with sparse weights to one with condensed layers, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from .atomic import staging_folder
from .condensed import CondensedWeight
from .conv_geometry import ConvGeometry
from .errors import ExportError
from .forms import Chooser, Policy
from .locate import first_difference
from .lowering import final_layers, lower
from .model_file import EXTERNAL_DATA_THRESHOLD, MAX_INLINE_BYTES, publish_model, stage_model
from .onnx_cases import cases_for, own_noise
from .onnx_schema import register_schemas
from .onnx_source import data_files, load_source
from .passes.condense import CondensePass, CondenseResult, Shape
from .ranges import require_range
from .report import NOT_VERIFIED, ExportReport, LayerReport, ParityCheck, bytes_saved
from .verify import Case, Reference, check_parity, check_structure
from .verify_layers import LARGE, check_layers

_HOPELESS = 1.3
"""Times slower than dense from which a convolution is left as it is, whatever is around it."""


def convert(
    onnx_in: str | os.PathLike[str],
    onnx_out: str | os.PathLike[str],
    *,
    policy: Policy = "auto",
    batch: int = 1,
    min_sparsity: float = 0.5,
    portable: bool = False,
    fold: bool = True,
    inputs: Sequence[Mapping[str, np.ndarray]] | None = None,
    verify: bool = True,
    external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
) -> ExportReport:
    """Write an ONNX model with its sparse layers as ``ai.fanin`` ops.

    MatMul and Gemm become CondensedGemm, Conv becomes CondensedConv.

    Args:
        onnx_in: the model; opset 11 to 23. It is only read.
        onnx_out: the file to write; its folder must exist.
        policy: "auto" gives each layer the form that is predicted to be the fastest, "condensed",
            "structured" or "dense" the one that it names.
        batch: value of the first symbolic dimension that "auto" decides for.
        min_sparsity: weights with a smaller share of zeros stay dense.
        portable: use standard operators only.
        fold: take ablated neurons out of the graph where only element-wise nodes follow.
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
    require_range("min_sparsity", min_sparsity, 0, 1)
    require_range("external_data_threshold", external_data_threshold, 0, MAX_INLINE_BYTES)
    chooser = Chooser.of(policy, batch, portable)
    if target.exists() and source.exists() and target.samefile(source):
        raise ValueError(f"{target} is the model itself; give the result another name")
    with staging_folder(target) as scratch:
        model, notes, found = _condensed(source, chooser, min_sparsity)
        lowered = lower(model, chooser, fold=fold)
        staged = stage_model(model, scratch / target.name, external_data_threshold)
        try:
            check_structure(staged.path, shape_after_every_node=False)
        except ExportError as error:
            raise _blame(source, error) from error
        parity, missing = (), (NOT_VERIFIED,)
        if verify and staged.nbytes + bytes_saved(found.layers) > LARGE:
            parity, missing = check_layers(staged.path)
        elif verify:
            parity, missing = _verify(source, staged.path, inputs)
        file_bytes = staged.nbytes
        layers = final_layers(found.layers, lowered)
        data_path = publish_model(staged, target, keep=data_files(source))
    return ExportReport(
        path=str(target),
        data_path=str(data_path) if data_path else None,
        dense_path=None,
        opset=model.opset_imports[""],
        layers=layers,
        fused=lowered.fused,
        parity=parity,
        not_checked=missing,
        file_bytes=file_bytes,
        dense_file_bytes=file_bytes + bytes_saved(layers),
        dense_file_measured=False,
        notes=(*notes, *found.notes),
        folded=lowered.folded,
        unfolded=lowered.unfolded,
        cost_model=chooser.costs.machine if policy == "auto" else "",
    )


def plan_conversion(
    onnx_in: str | os.PathLike[str],
    *,
    policy: Policy = "auto",
    batch: int = 1,
    min_sparsity: float = 0.5,
) -> tuple[LayerReport, ...]:
    """Say what :func:`convert` would make of each weight, without writing anything.

    Raises:
        FileNotFoundError, ExportError, ValueError: as :func:`convert` does.

    """
    chooser = Chooser.of(policy, batch, portable=False)
    model, _, found = _condensed(Path(onnx_in), chooser, min_sparsity)
    return final_layers(found.layers, lower(model, chooser, fold=True))


def _condensed(
    source: Path, chooser: Chooser, min_sparsity: float
) -> tuple[ir.Model, tuple[str, ...], CondenseResult]:
    model, notes = load_source(source)
    register_schemas()
    common.ShapeInferencePass(strict_mode=False)(model)

    def leave_dense(
        weight: CondensedWeight, shape: Shape, geometry: ConvGeometry | None
    ) -> str | None:
        """Leave a node as it is where it would come back dense, and nothing is ablated."""
        if geometry is None:
            choice = chooser.choose(weight, chooser.rows_of(shape))
        else:
            choice = chooser.choose_conv(weight, geometry, shape)
            seconds = chooser.conv_seconds(weight, geometry, shape)
            # Not far behind, it may still suit its neighbours, which are known later.
            mixed = chooser.policy == "auto" and not chooser.portable
            if mixed and seconds["condensed"] < _HOPELESS * seconds["dense"]:
                return None
        whole = weight.active == weight.out_features
        return choice.reason if choice.form == "dense" and whole else None

    condense = CondensePass(min_sparsity=min_sparsity, leave_dense=leave_dense)
    return model, notes, condense(model)


def _blame(source: Path, error: ExportError) -> ExportError:
    """Say so where onnx refuses the source as it refuses the result."""
    try:
        check_structure(source, shape_after_every_node=False)
    except ExportError as cause:
        return ExportError(f"{cause}, and it refuses {source} already; nothing was written")
    return error


def _verify(
    source: Path, path: Path, inputs: Sequence[Mapping[str, np.ndarray]] | None
) -> tuple[tuple[ParityCheck, ...], tuple[str, ...]]:
    cases, names = cases_for(source, inputs)
    noise = own_noise(source, cases, names)
    locate = partial(_locate, source, path, names)
    return check_parity(path, Reference("the original", cases, noise, locate))


def _locate(source: Path, path: Path, names: tuple[str, ...], case: Case, library: bool) -> str:
    feeds = dict(zip(names, case.inputs, strict=True))
    try:
        return first_difference(source, path, feeds, library=library, tolerance=1e-4)
    except ExportError:
        return ""
