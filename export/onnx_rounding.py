"""Half-precision values in a file that was converted from another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from .lowering import Lowered
from .model_file import EXTERNAL_DATA_THRESHOLD, stage_model
from .onnx_cases import rerun
from .passes.access import label_of
from .passes.nodes import condensed_nodes
from .passes.round_values import RoundResult, RoundValuesPass, WidenValuesPass
from .report import LayerReport
from .verify import Case


@dataclass(frozen=True)
class Rounded:
    """A model whose condensed values were rounded in place.

    Attributes:
        values_dtype: their type.
        done: what the rounding changed, by node.

    """

    values_dtype: str
    done: RoundResult

    def lowered(self, lowered: Lowered) -> Lowered:
        """Take the bytes that were saved off the sizes of the layers."""
        formed = {
            name: replace(
                entry, nbytes=entry.nbytes - sum(self.done.saved.get(n, 0) for n in entry.nodes)
            )
            for name, entry in lowered.formed.items()
        }
        return replace(lowered, formed=formed)

    def layers(self, layers: Sequence[LayerReport]) -> tuple[LayerReport, ...]:
        """Say in the final reports which layers hold rounded values."""
        errors = self.done.errors
        return tuple(
            replace(
                layer,
                values_dtype=self.values_dtype,
                rounding_error=max(errors[node] for node in layer.nodes),
            )
            if layer.nodes and all(node in errors for node in layer.nodes)
            else layer
            for layer in layers
        )


def round_condensed(model: ir.Model, values_dtype: str) -> Rounded:
    """Round the values of every condensed node of a lowered model, in place.

    Args:
        model: as it will be written.
        values_dtype: "float16" or "bfloat16".

    Raises:
        ExportError: a value is too large for the type.

    """
    names = {label_of(node) for node in condensed_nodes(model)}
    return Rounded(values_dtype, RoundValuesPass(values_dtype, names)(model))


def widened_cases(
    model: ir.Model, folder: Path, names: tuple[str, ...], cases: Sequence[Case]
) -> list[Case]:
    """Compute the rounded model in float32 throughout, which is what its file is held to.

    Args:
        model: rounded; its clone is changed, not the model.
        folder: for a scratch file.
        names: of the model's inputs, in the order of a case's.
        cases: whose inputs are taken.

    """
    wide = model.clone()
    WidenValuesPass()(wide)
    staged = stage_model(wide, folder / "widened.onnx", EXTERNAL_DATA_THRESHOLD)
    return rerun(staged.path, names, cases)
