"""From a verified float32 graph to a file in half precision, verified against float32 and dense."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from .engines import Engine, EngineUnavailableError, engines, reference_engine
from .errors import ExportError
from .forms import Chooser
from .lowering import Lowered, lower
from .model_file import StagedModel, stage_model
from .onnx_cases import rerun
from .passes.emulate_half import EmulateHalfPass
from .passes.fold_weights import FoldWeightsPass
from .passes.nodes import all_values, our_nodes
from .passes.set_precision import LARGEST, SetPrecisionPass, require_convertible
from .passes.watch_largest import WatchLargestPass
from .report import LayerReport, ParityCheck
from .rounding import round_condensed
from .verify import Case, case_batch, check_structure, max_error, scale_of

Precision = Literal["float32", "float16", "bfloat16"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2}
"""Share of the largest output that a file may differ by from float32, four units in the last place
of the type; LOSS_FACTOR times what the dense model in that precision does, if that is more."""

LOSS_FACTOR = 4

MOST_LOSS = {"float16": 0.02, "bfloat16": 0.1}
"""Over this difference of the dense model in half precision from float32, no file is written."""

_FLOAT16 = ir.DataType.FLOAT16

_REFERENCE_BYTES = 1 << 20
"""Bytes of a file up to which onnx's reference evaluator, which is slow, runs it as well."""


@dataclass(frozen=True)
class InPrecision:
    """A file in half precision in the scratch folder, with what the report says about it.

    Attributes:
        staged: the file.
        parity: one check for each engine against float32, and one against the dense model.
        not_checked: engines that did not run.
        dense_error: difference of the dense model in this precision from float32, as a share of
            the largest output; None where nothing was compared.
        errors: change of the weight as a share of its norm, by name of each condensed node.
        saved: bytes by which the values of each of these nodes shrank.
        kinds: names of the types of the constants, by name.
        notes: for the report.

    """

    staged: StagedModel
    parity: tuple[ParityCheck, ...] = ()
    not_checked: tuple[str, ...] = ()
    dense_error: float | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    saved: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def require_precision(precision: str, values_dtype: str) -> None:
    """Check the two options that name types.

    Raises:
        ValueError: an unknown precision, or a type of values beside one.

    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}, it must be {' or '.join(PRECISIONS)}")
    if precision != "float32" and values_dtype != "float32":
        raise ValueError(
            f"values_dtype is {values_dtype!r} beside precision {precision!r}, which the values "
            "have as well; leave values_dtype out"
        )


def has_half_ports(precision: str) -> bool:
    """Return whether inputs and outputs are of the type too.

    Those of a bfloat16 file stay float32: NumPy has no bfloat16, and session.run takes none.
    """
    return precision == "float16"


def set_precision(
    model: ir.Model,
    float32_file: StagedModel,
    dense: ir.Model | None,
    names: Sequence[str],
    cases: Sequence[Case],
    precision: str,
    threshold: int,
    *,
    shape_after_every_node: bool = True,
) -> InPrecision:
    """Convert a lowered model, in place, and write it over its float32 file.

    Args:
        model: lowered, float32; its file has been compared with the source.
        float32_file: that file.
        dense: the model before forms were chosen, which is changed; None if nothing is compared.
        names: names of the inputs, in the order of a case's.
        cases: whose inputs are taken, rounded to the type; none if nothing is compared.
        precision: "float16" or "bfloat16".
        threshold: bytes of weights above which they go to a file of their own.
        shape_after_every_node: as :func:`.verify.check_structure` has it.

    Raises:
        ExportError: the model has no such form, loses too much in it, or fails its checks.

    """
    folder = float32_file.path.parent
    require_convertible(model, precision)
    comparison = None
    if dense is not None and cases:
        rounded = [Case(_rounded(case.inputs, precision), case.outputs) for case in cases]
        exact = rerun(float32_file.path, tuple(names), rounded)
        losses = _dense_losses(dense, folder, names, exact, precision, threshold)
        comparison = _Comparison(names, losses, precision)
    FoldWeightsPass()(model)
    values = round_condensed(model, precision)
    notes = _convert(model, precision)
    staged = stage_model(model, float32_file.path, threshold)
    check_structure(staged.path, shape_after_every_node=shape_after_every_node)
    if comparison:
        comparison.check(model, staged, threshold)
    return InPrecision(
        staged,
        tuple(comparison.checks) if comparison else (),
        tuple(comparison.missing) if comparison else (),
        comparison.losses.error if comparison else None,
        values.errors,
        values.saved,
        _kinds(model),
        notes,
    )


def before_conversion(parity: Sequence[ParityCheck]) -> tuple[ParityCheck, ...]:
    """Say of checks that they are of the file before it was converted."""
    return tuple(replace(check, engine=f"{check.engine}, in float32") for check in parity)


def in_precision(
    layers: Sequence[LayerReport], lowered: Lowered, made: InPrecision, precision: str
) -> tuple[tuple[LayerReport, ...], Lowered]:
    """Give reports and sizes of layers what they have in the precision, dense ones too.

    Args:
        layers: reports before they are final.
        lowered: what the passes did in float32.
        made: the file.
        precision: of it.

    """
    formed = {}
    for name, entry in lowered.formed.items():
        if entry.choice.form == "condensed":
            nbytes = entry.nbytes - sum(made.saved.get(node, 0) for node in entry.nodes)
        else:
            ablated = entry.active < entry.out_features and entry.choice.form == "structured"
            places = 8 * entry.out_features if ablated else 0
            nbytes = (entry.nbytes - places) // 2 + places
        formed[name] = replace(entry, nbytes=nbytes)
    halved = []
    for layer in layers:
        kind = made.kinds.get(layer.name, precision)
        size = layer.bytes_dense if kind == "float32" else layer.bytes_dense // 2
        errors = [made.errors[node] for node in layer.nodes if node in made.errors]
        halved.append(
            replace(
                layer, bytes_dense=size, values_dtype=kind, rounding_error=max(errors, default=0.0)
            )
        )
    return tuple(halved), replace(lowered, formed=formed)


@dataclass(frozen=True)
class _Losses:
    """What half precision costs the dense model, and so may cost any form of it.

    Attributes:
        error: its difference from float32.
        tolerance: what is allowed for a file.
        pairs: for each case what float32 gives and what the dense model does.

    """

    error: float
    tolerance: float
    pairs: Sequence[tuple[Case, Case]]


def _convert(model: ir.Model, precision: str) -> tuple[str, ...]:
    result = SetPrecisionPass(precision, half_ports=has_half_ports(precision))(model)
    common.ShapeInferencePass(strict_mode=False)(model)
    return tuple(result.notes)


def _dense_losses(
    dense: ir.Model,
    folder: Path,
    names: Sequence[str],
    exact: Sequence[Case],
    precision: str,
    threshold: int,
) -> _Losses:
    """Run the dense model in the precision; what it loses, no form can be asked to keep."""
    lower(dense, Chooser.of("dense", 1, portable=False), fold=False)
    exact_model = dense.clone()
    _convert(dense, precision)
    if precision == "float16":
        _require_range(exact_model, _halves(dense), folder, names, exact, threshold)
    if precision == "bfloat16":
        EmulateHalfPass(precision)(dense)
    path = stage_model(dense, folder / "dense.onnx", threshold).path
    (engine,) = engines(uses_our_ops=False)[-1:]
    run = engine.load(path)
    outputs = [
        Case(case.inputs, tuple(run(_feeds(names, case.inputs, precision)))) for case in exact
    ]
    error = _largest(exact, outputs)
    most = MOST_LOSS[precision]
    if not error <= most:
        remedy = "try bfloat16, which has float32's range," if precision == "float16" else "stay"
        remedy += " or leave the model in float32" if precision == "float16" else " in float32"
        raise ExportError(
            f"in {precision} the dense model itself differs from float32 by {error:.2g} of its "
            f"largest output, over the {most:g} allowed; {remedy}"
        )
    tolerance = max(TOLERANCES[precision], LOSS_FACTOR * error)
    return _Losses(error, tolerance, list(zip(exact, outputs, strict=True)))


def _require_range(
    model: ir.Model,
    halves: Collection[str],
    folder: Path,
    names: Sequence[str],
    cases: Sequence[Case],
    threshold: int,
) -> None:
    """Refuse a model whose activations leave the range of float16; on a CPU that may not show.

    ONNX Runtime computes parts of a float16 graph in float32 there.

    Args:
        model: in float32, which is changed.
        halves: names of the values that are float16 in the file.
        folder: for the file that is run.
        names: of the inputs.
        cases: whose inputs are run.
        threshold: bytes of weights above which they go to a file of their own.

    Raises:
        ExportError: names the first operator.

    """
    watched = WatchLargestPass()(model).watched
    path = stage_model(model, folder / "largest.onnx", threshold).path
    (engine,) = engines(uses_our_ops=False)[-1:]
    run = engine.load(path)
    for case in cases:
        found = run(dict(zip(names, case.inputs, strict=True)))
        for (value, node), largest in zip(watched, found, strict=True):
            if value in halves and float(largest) > LARGEST["float16"]:
                raise ExportError(
                    f"{node} reaches {float(largest):.3g}, and the largest number of float16 is "
                    "65504; take bfloat16, which has float32's range, or leave the model in "
                    "float32; nothing was written"
                )


def _halves(model: ir.Model) -> set[str]:
    return {value.name for value in all_values(model) if value.name and value.dtype == _FLOAT16}


@dataclass
class _Comparison:
    """A comparison of a file with float32 and with the dense model in its precision.

    Attributes:
        names: of the inputs, in the order of a case's.
        losses: of the dense model.
        precision: of the file.
        checks: what was compared.
        missing: what was not, with the reason.

    """

    names: Sequence[str]
    losses: _Losses
    precision: str
    checks: list[ParityCheck] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def check(self, model: ir.Model, staged: StagedModel, threshold: int) -> None:
        """Run the file where there are kernels of the type, and emulated where there are none.

        Raises:
            ExportError: an output differs by more than the tolerance.

        """
        pairs = self.losses.pairs
        runners = engines(uses_our_ops=bool(our_nodes(model)))
        if self.precision == "float16":
            for engine in runners:
                self._compare(engine, engine.name, staged.path, pairs)
        else:
            self.missing += _without_kernels(runners, staged.path)
            if staged.nbytes <= _REFERENCE_BYTES:
                smallest = min(pairs, key=lambda pair: case_batch(pair[0]))
                reference = reference_engine()
                self._compare(reference, reference.name, staged.path, [smallest], partial=True)
            emulated = model.clone()
            EmulateHalfPass(self.precision)(emulated)
            path = stage_model(emulated, staged.path.with_name("emulated.onnx"), threshold).path
            for engine in runners:
                how = "float32 rounded to bfloat16 after every operator"
                self._compare(engine, f"{engine.name}, {how}", path, pairs)
        if any(not _is_float(y) for case, _ in pairs for y in case.outputs):
            self.missing.append(
                "outputs that are not floats, such as labels: rounding may flip them"
            )

    def _compare(
        self,
        engine: Engine,
        name: str,
        path: Path,
        pairs: Sequence[tuple[Case, Case]],
        *,
        partial: bool = False,
    ) -> None:
        """Add a check against float32 and one against dense, or why there is none.

        A ``partial`` engine does not run every valid model: onnx's GatherElements takes 64 entries.
        """
        try:
            run = engine.load(path)
        except EngineUnavailableError as error:
            self.missing.append(f"{engine.name}: {error}")
            return
        exact, dense = ([pair[side] for pair in pairs] for side in (0, 1))
        try:
            got = [
                Case(c.inputs, tuple(run(_feeds(self.names, c.inputs, self.precision))))
                for c in exact
            ]
        except Exception as problem:
            if partial:
                self.missing.append(f"{name}: it does not run this model ({problem})")
                return
            raise ExportError(
                f"the {self.precision} model fails in {name}: {problem}; nothing was written"
            ) from problem
        # Both files differ from float32, each in its own way.
        tolerance, apart = self.losses.tolerance, self.losses.tolerance + self.losses.error
        batches = tuple(dict.fromkeys(map(case_batch, exact)))
        for what, wanted, allowed in (
            ("float32", exact, tolerance),
            (f"dense in {self.precision}", dense, apart),
        ):
            relative, largest = _largest(wanted, got), _largest(wanted, got, scaled=False)
            if not relative <= allowed:
                raise ExportError(
                    f"an output in {name} differs from {what} by {relative:.3g} of its largest "
                    f"entry, over the {allowed:.3g} allowed; nothing was written"
                )
            check = ParityCheck(f"{name}, against {what}", batches, largest, relative, allowed)
            self.checks.append(check)


def _without_kernels(runners: Sequence[Engine], path: Path) -> list[str]:
    """Say which engines cannot run the file itself, each with its reason."""
    lines = []
    for engine in runners:
        try:
            engine.load(path)
        except EngineUnavailableError:
            continue  # said where it is to run the emulation
        except ExportError as error:
            reason = str(error.__cause__ or error).split(" : ")[-1].strip()
            lines.append(f"{engine.name}, the file itself: no kernels in bfloat16 ({reason})")
    return lines


def _feeds(
    names: Sequence[str], inputs: Sequence[np.ndarray], precision: str
) -> dict[str, np.ndarray]:
    half = has_half_ports(precision)
    return {
        name: x.astype(precision) if half and _is_float(x) else x
        for name, x in zip(names, inputs, strict=True)
    }


def _rounded(inputs: Sequence[np.ndarray], precision: str) -> tuple[np.ndarray, ...]:
    """Round float inputs to the type, which is what a file can be given at all."""
    kind = ir.DataType[precision.upper()].numpy()
    return tuple(x.astype(kind).astype(x.dtype) if _is_float(x) else x for x in inputs)


def _is_float(x: object) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


def _largest(wanted: Sequence[Case], got: Sequence[Case], *, scaled: bool = True) -> float:
    """Return the largest difference of a float output; NaN where one side has one."""
    found = [0.0]
    for one, other in zip(wanted, got, strict=True):
        for expected, actual in zip(one.outputs, other.outputs, strict=True):
            if _is_float(expected):
                scale = scale_of(expected) if scaled else 1.0
                found.append(max_error(actual, expected) / scale)
    return float(np.max(found))


def _kinds(model: ir.Model) -> dict[str, str]:
    """Name the float types of the constants."""
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    floats = {ir.DataType[p.upper() if p != "float32" else "FLOAT"]: p for p in PRECISIONS}
    return {v.name: floats[v.dtype] for v in values if v.name and v.dtype in floats}
