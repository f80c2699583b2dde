"""What a pruning did, layer by layer, as values that print themselves."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .._base.distributions import Distribution
from .._base.tables import Column, Printed, Sheet

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class PrunedLayer:
    """One weight of the file.

    Attributes:
        name: of the weight; of its node, where the weight's is made up.
        kind: operator that reads it.
        shape: of the weight, outputs first for what was pruned.
        sparsity_before: share of zeros in the source.
        sparsity: share of zeros now.
        fan_in: weights that each output keeps; None where nothing was pruned.
        kept_norm: share of the weight's norm that is left.
        reason: why it stays as it is; empty for a pruned one.

    """

    name: str
    kind: str
    shape: tuple[int, ...]
    sparsity_before: float
    sparsity: float
    fan_in: int | None
    kept_norm: float
    reason: str = ""

    @property
    def pruned(self) -> bool:
        """Whether weights of it were zeroed."""
        return not self.reason


@dataclass(frozen=True)
class PruneReport(Printed):
    """The result of one pruning.

    Attributes:
        source: the file that was read.
        path: the file that was written.
        data_path: the file beside it that holds its weights; None for a single file.
        asked_sparsity: that of the pruned layers together.
        distribution: how it was spread over them.
        layers: every weight: those of layers in the order of the graph, then others.
        notes: what else a user should know.

    """

    source: str
    path: str
    data_path: str | None
    asked_sparsity: float
    distribution: Distribution
    layers: tuple[PrunedLayer, ...]
    notes: tuple[str, ...] = ()

    def sheet(self) -> Sheet:
        """Lay out the layers, and what to do next."""
        rows = tuple(
            (
                layer.name.removesuffix(".weight"),
                layer.kind,
                "×".join(map(str, layer.shape)),
                f"{layer.sparsity_before:.1%}",
                f"{layer.sparsity:.1%}",
                "" if layer.fan_in is None else str(layer.fan_in),
                f"{layer.kept_norm:.1%}",
                f"unchanged: {layer.reason}" if layer.reason else "pruned",
            )
            for layer in self.layers
        )
        columns = (
            Column("layer", words=True),
            Column("operator", drop=3),
            Column("shape", right=True, drop=4),
            Column("zeros before", right=True, drop=1),
            Column("zeros", right=True),
            Column("fan-in", right=True, drop=5),
            Column("norm kept", right=True, drop=2),
            Column("result", words=True),
        )
        return Sheet(f"Pruned {self.source} to {self.path}", columns, rows, self._notes())

    def _notes(self) -> tuple[str, ...]:
        count = sum(layer.pruned for layer in self.layers)
        return (
            f"{count} of {len(self.layers)} weights pruned, equally many in each row "
            f"({self.distribution}, {self.asked_sparsity:.1%} asked for)",
            "accuracy is lower than before: measure it, and fine-tune with the masks where it "
            "matters (docs/pruning.md)",
            f"the file is as large and slow as before; next: fanin export {self.path} -o FAST.onnx",
            *self.notes,
        )

    def to_rich_table(self, width: int | None = None) -> Table:
        """Lay out the layers as a table for a terminal of that width."""
        return self.sheet().to_rich(width)

    def to_json(self) -> str:
        """Write all fields as a JSON object."""
        return json.dumps(asdict(self), indent=2)
