"""A part of a split: some of its samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..seeds import derived_generator
from .base import DataSplit


@dataclass(frozen=True)
class Part:
    """The samples of a split at some indices.

    Attributes:
        whole: the split.
        indices: int64 [samples].

    """

    whole: DataSplit
    indices: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device) -> "Part":
        """Yield batches on ``device`` from now on."""
        return Part(self.whole.to(device), self.indices)

    def order(self, seed: int, epoch: int) -> Tensor:
        """Return the whole split's order of these samples, as positions in the part."""
        place = torch.full((len(self.whole),), -1)
        place[self.indices] = torch.arange(len(self))
        order = place[self.whole.order(seed, epoch)]
        return order[order >= 0]

    def batches(
        self, indices: Sequence[Tensor], seeds: Sequence[tuple[int, ...]] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of batches; with ``seeds``, augmented."""
        return self.whole.batches([self.indices[batch.cpu()] for batch in indices], seeds)

    def fingerprint(self) -> int:
        """Return the checksum of the whole split."""
        return self.whole.fingerprint()


def held_out(split: DataSplit, fraction: float, seed: int) -> tuple[Part, Part]:
    """Divide a split at random into training and validation samples.

    Args:
        split: the split.
        fraction: of the samples for validation, in (0, 1); both parts get at least one.
        seed: seed of the training.

    Raises:
        ValueError: there are fewer than two samples.

    """
    if len(split) < 2:
        raise ValueError(f"{len(split)} training samples cannot be divided; remove validation")
    order = torch.randperm(len(split), generator=derived_generator(seed, "validation"))
    count = min(max(1, round(fraction * len(split))), len(split) - 1)
    return Part(split, order[count:].sort().values), Part(split, order[:count].sort().values)
