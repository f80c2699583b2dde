"""From an ONNX file with sparse weights to one with condensed layers, without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from .._base.atomic import output_path, staging_folder
from ..ort_ops.format.condensed import VALUE_TYPES, CondensedWeight
from ..ort_ops.format.conv_geometry import ConvGeometry
from .compute import (
    BFLOAT16_TOLERANCE,
    compute_in_bfloat16,
    compute_notes,
    values_for,
    with_compute,
)
from .declared_outputs import stage_checked
from .decoder_cases import takes_cache
from .dimensions import Dims, require_known, with_inferred
from .engines import custom_libraries
from .errors import ExportError
from .fingerprint import Fingerprint
from .forms import Choice, Chooser, Policy
from .gpu_cost import GpuCostModel
from .half_precision import before_conversion, in_precision, require_precision, set_precision
from .locate import first_difference
from .lowering import final_layers, lower
from .model_file import (
    EXTERNAL_DATA_THRESHOLD,
    MAX_INLINE_BYTES,
    StagedModel,
    link_notes,
    publish_model,
)
from .node_order import sort_nodes
from .onnx_cases import cases_for, dequantizes, optimized_cases, own_noise
from .onnx_reading import read_proto
from .onnx_schema import register_schemas
from .onnx_source import data_files, load_source
from .output_precision import output_precisions
from .passes.access import label_of
from .passes.compute_bfloat16 import nodes_in_bfloat16
from .passes.condense import CondensePass, CondenseResult, kept_names
from .passes.condense_layers import NOT_FINITE, Shape
from .passes.expand import ExpandPass
from .passes.nodes import quantized_nodes
from .quantization_units import Units, is_compared, units_of, with_noise
from .ranges import require_range
from .report import (
    NOT_VERIFIED,
    SPARSE,
    UNCHANGED,
    ExportReport,
    LayerCheck,
    LayerReport,
    ParityCheck,
    bytes_saved,
    note_on_held,
    note_on_sparsity,
    require_sparse_layers,
)
from .rounding import (
    round_condensed,
    rounding_notes,
    widened_cases,
    with_rounding,
    without_saved_bytes,
)
from .verify import Case, Reference, check_parity, check_structure, largest_change, usual_tolerance
from .verify_layers import LARGE, check_layers
from .verify_quantized import check_quantized_layers

_HOPELESS = 3.0
"""Times slower than dense from which a convolution is left as it is, whatever is around it."""


def convert(
    onnx_in: str | os.PathLike[str],
    onnx_out: str | os.PathLike[str],
    *,
    policy: Policy = "auto",
    batch: int = 1,
    threads: int = 1,
    device: str = "cpu",
    min_sparsity: float = SPARSE,
    portable: bool = False,
    fold: bool = True,
    inputs: Sequence[Mapping[str, np.ndarray]] | None = None,
    verify: bool = True,
    external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
    values_dtype: str = "float32",
    require_sparse: bool = False,
    compute: str = "float32",
    precision: str = "float32",
    dims: Dims | None = None,
    custom_op_libraries: Sequence[str | os.PathLike[str]] = (),
) -> ExportReport:
    """Write an ONNX model with its sparse layers as ``ai.fanin`` ops.

    MatMul and Gemm become CondensedGemm, Conv becomes CondensedConv.

    Args:
        onnx_in: the model; opset 11 to 23. It is only read.
        onnx_out: the file to write; its folder must exist. What a link leads to is replaced.
        policy: "auto" gives each layer the form that is predicted to be the fastest, "condensed",
            "structured" or "dense" the one that it names.
        batch: value of the first symbolic dimension that "auto" decides for.
        threads: intra-op threads of a session that "auto" decides for, 1 to 1024.
        device: what "auto" decides for: "cpu", "cuda" or "cuda:NAME", as for :func:`.export`.
        min_sparsity: weights with a smaller share of zeros stay dense.
        portable: use standard operators only.
        fold: take ablated neurons out of the graph where only element-wise nodes follow.
        inputs: inputs by name to compare on, beside made-up ones.
        verify: compare the outputs of both files. The structure is always checked.
        external_data_threshold: bytes of weights above which they go to a file of their own.
        values_dtype: "float32", "float16" or "bfloat16": what float32 values of condensed layers
            are rounded to; sums, biases and activations stay as they are. The converted model is
            compared with the original before it is rounded, and the rounded file with the same
            values in float32; the report says what the rounding changed.
        require_sparse: fail where no layer of the result is sparse.
        compute: "bfloat16" lets condensed linear layers round their inputs to bfloat16 before they
            multiply them, which is faster on CPUs with AVX512-BF16; sums stay float32. It implies
            ``values_dtype="bfloat16"``. The file is compared as usual before, and then with the
            same values computed in float32, within 4e-2 of the largest output.
        precision: "float16" or "bfloat16" converts a float32 graph to that type, as
            :func:`.export` does; "float32" leaves it in the types that it has.
        dims: sizes of symbolic dimensions of the inputs by name, such as ``{"sequence": 128}``:
            "auto" decides for them, and the outputs are compared on inputs of these sizes.
        custom_op_libraries: paths of libraries with operators of other domains that the model
            uses, for the comparison.

    Returns:
        What became of each weight, the parity error, and the sizes.

    Raises:
        FileNotFoundError: there is no such model.
        ExportError: it cannot be converted, or the result fails its checks; nothing is written.
        ValueError: an argument is out of its range.
        OSError: the output folder is missing or cannot be written.

    """
    source, target = Path(onnx_in), output_path(onnx_out)
    require_range("min_sparsity", min_sparsity, 0, 1)
    require_range("external_data_threshold", external_data_threshold, 0, MAX_INLINE_BYTES)
    if values_dtype not in VALUE_TYPES:
        raise ValueError(f"values_dtype is {values_dtype!r}, it must be {' or '.join(VALUE_TYPES)}")
    require_precision(precision, values_dtype)
    values_dtype = values_for(compute, values_dtype, precision, portable=portable, device=device)
    chooser = Chooser.of(policy, batch, portable, threads, device, precision, dims)
    if os.path.exists(target) and os.path.exists(source) and target.samefile(source):
        raise ValueError(f"{onnx_out} is the model itself; give the result another name")
    with (
        custom_libraries(custom_op_libraries),
        staging_folder(target) as scratch,
        _blaming(source),
    ):
        chooser = _for_own_type(chooser, source)
        model, notes, found, chooser = _condensed(source, chooser, min_sparsity)
        needed = data_files(source)
        if target.resolve() in needed:
            raise ValueError(f"{onnx_out} holds weights of {source}; give the result another name")
        halves = precision != "float32"
        before = model.clone() if halves and verify else None
        whole = None if notes or found.modified or found.held else Fingerprint.of(model)
        lowered = lower(model, chooser, fold=fold)
        unchanged = whole is not None and not halves and whole == Fingerprint.of(model)
        staged = _stage(model, source, scratch / target.name, external_data_threshold)
        large = staged.nbytes + bytes_saved(found.layers) > LARGE
        compares = verify and not unchanged
        broken = [layer for layer in found.layers if layer.reason == NOT_FINITE]
        comparison = (
            _Comparison.of(source, inputs, dims, broken) if compares and not large else None
        )
        if comparison and nodes_in_bfloat16(model):
            comparison = replace(comparison, least_tolerance=BFLOAT16_TOLERANCE)
        parity: tuple[ParityCheck, ...] = ()
        layer_checks: tuple[LayerCheck, ...] = ()
        missing: tuple[str, ...] = (UNCHANGED if unchanged else NOT_VERIFIED,)
        change: float | None = 0.0
        if comparison:
            layer_checks = comparison.check_layers(model)
            parity, missing = comparison.check(staged.path)
        rounded = None
        if values_dtype != "float32":
            rounded = round_condensed(model, values_dtype)
            lowered = without_saved_bytes(lowered, rounded.saved)
            staged = _stage(model, source, scratch / target.name, external_data_threshold)
            change = None
            if comparison:
                cases = widened_cases(model, scratch, comparison.names, comparison.cases)
                change = largest_change(comparison.cases, cases)
                parity, missing = comparison.check_rounded(staged.path, cases)
        if compute != "float32":
            compute_in_bfloat16(model)
            staged = _stage(model, source, scratch / target.name, external_data_threshold)
            if comparison:
                comparison = replace(comparison, least_tolerance=BFLOAT16_TOLERANCE)
                parity, missing = comparison.check_rounded(staged.path, cases)
        reports: Sequence[LayerReport] = found.layers
        made = None
        if halves:
            made = set_precision(
                model,
                staged,
                before,
                comparison.names if comparison else (),
                comparison.cases if comparison else (),
                precision,
                external_data_threshold,
                shape_after_every_node=False,
            )
            staged = made.staged
            parity = (*before_conversion(parity), *made.parity)
            missing = (*missing, *made.not_checked)
            reports, lowered = in_precision(reports, lowered, made, precision)
            notes += made.notes
        if compares and large:
            parity, missing = check_layers(staged.path)
        file_bytes = staged.nbytes
        layers = with_compute(final_layers(reports, lowered), nodes_in_bfloat16(model))
        if rounded:
            layers = with_rounding(layers, rounded.errors, values_dtype)
            notes += rounding_notes(layers, values_dtype, "they are of a different type already")
        layers = (*layers, *found.elsewhere.layers)
        if found.held:
            notes += (note_on_held(found.held, lowered.made_dense(reports)),)
        else:
            notes += note_on_sparsity(layers, found.elsewhere.sparsest, min_sparsity)
        if require_sparse and found.held == len(lowered.made_dense(reports)):
            require_sparse_layers(layers, notes)
        if compute != "float32":
            notes += compute_notes(layers)
        data_path = publish_model(staged, target, keep=needed)
    return ExportReport(
        path=os.fspath(onnx_out),
        data_path=str(data_path) if data_path else None,
        dense_path=None,
        opset=model.opset_imports[""],
        layers=layers,
        fused=lowered.fused,
        parity=parity,
        not_checked=missing,
        file_bytes=file_bytes,
        dense_file_bytes=file_bytes + bytes_saved(layers, kept_names(found.notes)),
        dense_file_measured=False,
        notes=(*notes, *found.notes, *link_notes(Path(onnx_out), data_path)),
        output_rounding_error=change,
        folded=lowered.folded,
        unfolded=lowered.unfolded,
        cost_model=chooser.costs.machine if policy == "auto" else "",
        threads=threads,
        layer_checks=layer_checks,
        measured_threads=chooser.costs.measured_threads,
        quantized_times=chooser.quantized_times(layers),
        device=chooser.device,
        counted_on=chooser.counted_on(layers),
        precision=precision,
        dense_precision_error=made.dense_error if made else None,
        other_cpu=chooser.other_cpu,
    )


def plan_conversion(
    onnx_in: str | os.PathLike[str],
    *,
    policy: Policy = "auto",
    batch: int = 1,
    threads: int = 1,
    device: str = "cpu",
    min_sparsity: float = SPARSE,
    dims: Dims | None = None,
) -> tuple[LayerReport, ...]:
    """Say what :func:`convert` would make of each weight, without writing anything.

    Raises:
        FileNotFoundError, ExportError, ValueError: as :func:`convert` does.

    """
    return plan_model(
        onnx_in,
        policy=policy,
        batch=batch,
        threads=threads,
        device=device,
        min_sparsity=min_sparsity,
        dims=dims,
    )[0]


def plan_model(
    onnx_in: str | os.PathLike[str],
    *,
    policy: Policy = "auto",
    batch: int = 1,
    threads: int = 1,
    device: str = "cpu",
    min_sparsity: float = SPARSE,
    dims: Dims | None = None,
) -> tuple[tuple[LayerReport, ...], ir.Model]:
    """Do what :func:`plan_conversion` does, and return the converted graph as well."""
    chooser = Chooser.of(policy, batch, portable=False, threads=threads, device=device, dims=dims)
    source = Path(onnx_in)
    with _blaming(source):
        chooser = _for_own_type(chooser, source)
        model, _, found, chooser = _condensed(source, chooser, min_sparsity)
        layers = final_layers(found.layers, lower(model, chooser, fold=True))
        return (*layers, *found.elsewhere.layers), model


def _for_own_type(chooser: Chooser, source: Path) -> Chooser:
    """Choose for one token where the source is a decoder; by the costs of a half source's type."""
    if takes_cache(read_proto(source).graph.input):
        chooser = replace(chooser, tokens=1)
    kinds = {tensor.data_type for tensor in read_proto(source).graph.initializer}
    halves = {onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.BFLOAT16: "bfloat16"}
    own = next((name for kind, name in halves.items() if kind in kinds), chooser.precision)
    costs = chooser.costs
    if isinstance(costs, GpuCostModel):
        costs = costs.in_precision(own)
    return replace(chooser, costs=costs, precision=own)


def _condensed(
    source: Path, chooser: Chooser, min_sparsity: float
) -> tuple[ir.Model, tuple[str, ...], CondenseResult, Chooser]:
    model, notes = load_source(source)
    _require_undone(source, model, chooser)
    require_known(chooser.dims, model, str(source))
    register_schemas()
    common.ShapeInferencePass(strict_mode=False)(model)
    chooser = replace(chooser, dims=with_inferred(model, chooser.dims, chooser.batch))

    def leave_dense(
        weight: CondensedWeight, shape: Shape, geometry: ConvGeometry | None
    ) -> Choice | None:
        """Leave a node unchanged if it would be exported dense anyway and nothing is ablated."""
        if geometry is None:
            choice = chooser.choose(weight, chooser.rows_of(shape))
        else:
            choice = chooser.choose_conv(weight, geometry, shape)
            seconds = chooser.conv_seconds(weight, geometry, shape)
            # Not far behind, it may still suit its neighbors, which are known later.
            mixed = chooser.policy == "auto" and not chooser.portable
            if mixed and seconds["condensed"] < _HOPELESS * seconds["dense"]:
                return None
        whole = weight.active == weight.out_features
        return choice if choice.form == "dense" and whole else None

    ExpandPass(chooser, min_sparsity=min_sparsity)(model)
    condense = CondensePass(
        min_sparsity=min_sparsity,
        leave_dense=leave_dense,
        choose_quantized=chooser.choose_quantized,
    )
    return model, notes, condense(model), chooser


def _require_undone(source: Path, model: ir.Model, chooser: Chooser) -> None:
    """Refuse to leave 8-bit nodes of ours where another form of all layers is asked for."""
    nodes = quantized_nodes(model)
    if not nodes or (chooser.policy in ("auto", "condensed") and not chooser.portable):
        return
    asked = "portable files" if chooser.portable else f"the policy {chooser.policy}"
    raise ExportError(
        f"{source} holds condensed 8-bit layers ({label_of(nodes[0])!r} is a {nodes[0].op_type}), "
        f"which {asked} cannot keep and nothing turns back; convert the file that it was made from"
    )


def _stage(model: ir.Model, source: Path, path: Path, threshold: int) -> StagedModel:
    try:
        return stage_checked(model, path, threshold)
    except ExportError as error:
        raise _blame(source, error) from error


def _blame(source: Path, error: ExportError) -> ExportError:
    """Say so where onnx refuses the source as it refuses the result."""
    proto = read_proto(source)
    if sort_nodes(proto):
        return error  # which is mended
    try:
        check_structure(source, shape_after_every_node=False)
    except ExportError as cause:
        return ExportError(f"{cause}, and it refuses {source} already; nothing was written")
    return error


@contextmanager
def _blaming(source: Path) -> Iterator[None]:
    """Turn an error that nobody foresaw into a sentence where onnx refuses the source itself."""
    try:
        yield
    except (ExportError, OSError, MemoryError):
        raise
    except Exception as error:
        try:
            onnx.checker.check_model(source, full_check=True)
        except Exception as cause:  # the checker's own, and those of the library below it
            reason = str(cause).strip()
            raise ExportError(f"onnx refuses {source}: {reason}; nothing was written") from error
        raise


@dataclass(frozen=True)
class _Comparison:
    """What the original computes, for its conversions to be compared with.

    Attributes:
        source: the original.
        names: of its inputs, in the order of a case's.
        cases: inputs and outputs.
        precisions: what each output is computed in.
        noises: the error of each from rounding.
        units: of its outputs, if it is quantized.
        least_tolerance: that no output's is below, where a layer computes in bfloat16.

    """

    source: Path
    names: tuple[str, ...]
    cases: Sequence[Case]
    precisions: tuple[str, ...]
    noises: tuple[float, ...]
    units: Units | None
    least_tolerance: float = 0.0

    @classmethod
    def of(
        cls,
        source: Path,
        inputs: Sequence[Mapping[str, np.ndarray]] | None,
        dims: Dims | None,
        broken: Sequence[LayerReport],
    ) -> _Comparison:
        """Run the original; ``broken`` are the weights that hold NaN or infinity."""
        remedy = "pass inputs of your own, or switch the verification off"
        if broken:
            holder = f"{broken[0].name} of a {broken[0].kind}"
            remedy = f"the weight {holder} holds values that are not finite: repair it, or {remedy}"
        cases, names = cases_for(source, inputs, remedy, dims)
        cases = optimized_cases(source, names, cases)
        proto = read_proto(source)
        sort_nodes(proto)
        units, precisions = units_of(proto), output_precisions(proto)
        if len(precisions) != len(cases[0].outputs):  # a sequence gives several
            precisions = (max(precisions, key=usual_tolerance),) * len(cases[0].outputs)
        if units is None:
            noises = own_noise(cases, precisions, integers=dequantizes(proto))
            return cls(source, names, cases, precisions, noises, None)
        units = with_noise(units, *zip(*((c.outputs, c.optimized) for c in cases), strict=True))
        return cls(source, names, cases, precisions, (), units)

    def check(self, path: Path) -> tuple[tuple[ParityCheck, ...], tuple[str, ...]]:
        quantized = self.units is not None
        locate = partial(first_difference, self.source, path, self.names, quantized=quantized)
        return self._check(path, "the original", self.cases, locate)

    def check_rounded(
        self, path: Path, cases: Sequence[Case]
    ) -> tuple[tuple[ParityCheck, ...], tuple[str, ...]]:
        return self._check(path, "the rounded weights in float32", cases, None)

    def check_layers(self, model: ir.Model) -> tuple[LayerCheck, ...]:
        """Compare the quantized layers one by one, on the inputs of the first case."""
        return check_quantized_layers(model, self.source, self.names, self.cases[0])

    def _check(
        self,
        path: Path,
        what: str,
        cases: Sequence[Case],
        locate: Callable[[Case, bool], str] | None,
    ) -> tuple[tuple[ParityCheck, ...], tuple[str, ...]]:
        reference = Reference(
            what,
            cases,
            units=self.units,
            locate=locate,
            least_tolerance=self.least_tolerance,
            noises=self.noises,
            precisions=self.precisions,
        )
        parity, missing = check_parity(path, reference)
        if self.units and not all(is_compared(output) for output in self.cases[0].outputs):
            missing += ("outputs that are neither floats nor 8-bit integers",)
        return parity, missing
