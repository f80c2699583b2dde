"""The weights of a torch model: the user's masks for them, and their lines in the report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from .._base.names import near_matches
from .errors import ExportError
from .report import LayerReport

_READERS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU")
"""Operators whose reason for staying dense is that of the parameter."""


def own_names(model: nn.Module) -> dict[str, str]:
    """Map every name of a parameter to the first one; a shared parameter has several."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in every}


def tied_notes(model: nn.Module, layers: Iterable[LayerReport]) -> tuple[str, ...]:
    """Say what became of embeddings whose weight is that of another layer as well."""
    tables = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    forms = {layer.name: layer.decision for layer in layers}
    notes, first = [], own_names(model)
    for name, parameter in model.named_parameters():
        others = [other for other, own in first.items() if own == name != other]
        if id(parameter) in tables and others:
            note = f"{name} is {' and '.join(others)} as well: the file holds one tensor"
            condensed = forms.get(name) == "condensed"
            notes.append(note + " and, beside it, what is condensed of it" * condensed)
    return tuple(notes)


def check_masks(
    model: nn.Module, masks: Mapping[str, Tensor] | None
) -> dict[str, np.ndarray] | None:
    """Check the user's masks against the model.

    Args:
        model: float32 parameters on the CPU.
        masks: by qualified parameter name, any of a shared parameter's; None for none.

    Returns:
        Bool arrays by the first name of each parameter.

    Raises:
        ExportError: a mask names no parameter, has the wrong shape, or leaves out a weight that
            is not 0.

    """
    if masks is None:
        return None
    parameters = dict(model.named_parameters(remove_duplicate=False))
    names = own_names(model)
    found: dict[str, np.ndarray] = {}
    for name, mask in masks.items():
        if name not in parameters:
            hint = near_matches(name, parameters)
            raise ExportError(f"the mask {name!r} names no parameter of the model.{hint}")
        parameter = parameters[name]
        if mask.shape != parameter.shape or parameter.ndim < 2:
            raise ExportError(
                f"the mask of {name!r} has the shape {list(mask.shape)}, the parameter has "
                f"{list(parameter.shape)}; masks belong to weights of two or more dimensions"
            )
        array = mask.detach().cpu().numpy()
        if array.dtype != bool and not np.isin(array, (0, 1)).all():
            raise ExportError(f"the mask of {name!r} holds other values than 0 and 1")
        found[names[name]] = array.astype(bool)
        _require_zeros(name, parameter.detach().numpy(), found[names[name]])
    return found


def _require_zeros(name: str, weight: np.ndarray, mask: np.ndarray) -> None:
    left = np.argwhere((weight != 0) & ~mask)
    if len(left):
        place = ", ".join(map(str, left[0]))
        raise ExportError(
            f"{name}[{place}] is {weight[tuple(left[0])]} although its mask leaves it out "
            f"({len(left)} such weights); multiply the weight by its mask before the export"
        )


def list_weights(model: nn.Module, masks: Mapping[str, np.ndarray] | None) -> list[LayerReport]:
    """Describe every parameter of two or more dimensions, in the model's order, as dense.

    Args:
        model: float32 parameters on the CPU.
        masks: from :func:`check_masks`; without one for a weight its zeros count as left out.

    """
    reports, seen = [], set[int]()
    for module_name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if parameter.ndim < 2 or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            name = f"{module_name}.{key}" if module_name else key
            weight, bias = parameter.detach().numpy(), getattr(module, "bias", None)
            kept = (masks or {}).get(name, weight != 0)
            kind = type(module).__name__
            reports.append(
                LayerReport.of_dense(
                    name,
                    kind,
                    np.asarray(kept),
                    weight.nbytes + (bias.nbytes if isinstance(bias, Tensor) else 0),
                    f"{kind} is not supported" if weight.size else "the weight is empty",
                )
            )
    return reports


def merge_reports(
    weights: Iterable[LayerReport], found: Iterable[LayerReport], used: Collection[str]
) -> list[LayerReport]:
    """Say what became of each weight of the model.

    Args:
        weights: from :func:`list_weights`.
        found: what the graph pass reports, by initializer.
        used: names of the initializers that torch wrote.

    Returns:
        The weights in their order, then what is no parameter: buffers, plain tensors, slices that
        torch itself made constants of, and weights that were not computed.

    """
    condensed: dict[str, list[LayerReport]] = {}
    left: dict[str, str] = {}
    for layer in found:
        if layer.decision == "condensed":
            condensed.setdefault(layer.name, []).append(layer)
        elif layer.kind in _READERS:
            left.setdefault(layer.name, layer.reason)
    reports = []
    for report in weights:
        if pieces := [name for name in condensed if name.startswith(f"{report.name} (")]:
            # Each of its matrices is a layer, or a line that says why it is none.
            reports += [part for name in pieces for part in condensed.pop(name)]
            pieces = [name for name in left if name.startswith(f"{report.name} (")]
            reports += [layer for layer in found if layer.name in pieces]
            continue
        if parts := condensed.pop(report.name, []):
            if len(parts) == 1 and parts[0].sparsity > report.sparsity:
                # The graph computes it, as torch's pruning does with its mask.
                report = replace(
                    report,
                    sparsity=parts[0].sparsity,
                    active=parts[0].active,
                    fan_in=parts[0].fan_in,
                )
            report = replace(
                report,
                nodes=tuple(name for part in parts for name in part.nodes),
                decision="condensed",
                # Torch knows the weight by its name, not by the nodes that it went through.
                reason=parts[0].reason.partition(", behind ")[0],
                bytes_condensed=sum(part.bytes_in_file for part in parts),
            )
        elif report.name in left:
            report = replace(report, reason=left[report.name])
        elif report.name not in used:
            reason = "not in the file: no output depends on it"
            report = replace(report, reason=reason, bytes_dense=0)
        reports.append(report)
    names = {report.name for report in reports}
    unknown = [layer for layer in found if not layer.counted and layer.name not in names]
    return reports + [layer for parts in condensed.values() for layer in parts] + unknown
