"""What a data set is to the training loop: two splits that hand out batches."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ..seeds import derived_generator
from .augmentation import Augmentation, augment_batch


@dataclass(frozen=True)
class DataConfig:
    """[data]: a data set's name, and options that some data sets have.

    ``classes``: of "imagenet" (folders) and "synthetic". ``image_size``: side of the images that
    "imagenet" is cut to. ``workers``: processes that load them. ``shape``: of the
    images of "synthetic"; "fashion-mnist" and "mnist" are padded and repeated to it. ``samples``:
    of the training split of "synthetic"; of the other two the first so many of each split, or all
    of a test split that has fewer.
    """

    name: str
    classes: int | None = None
    image_size: int | None = None
    workers: int | None = None
    shape: tuple[int, ...] | None = None
    samples: int | None = None


class DataSplit(Protocol):
    """Samples that are handed out in batches."""

    def __len__(self) -> int:
        """Count the samples."""

    def to(self, device: torch.device) -> "DataSplit":
        """Hand out batches on ``device``."""

    def batches(
        self, indices: Sequence[Tensor], seeds: Sequence[tuple[int, ...]] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of each batch; with ``seeds``, one per batch, augmented."""

    def fingerprint(self) -> int:
        """Return a checksum; a resumed run must see the same data."""


@dataclass(frozen=True)
class Split:
    """A split in memory: ``inputs`` float32 [samples, *input_shape], normalised; ``labels`` int64.

    ``augmentation``: what is done to training batches.
    """

    inputs: Tensor
    labels: Tensor
    augmentation: Augmentation | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Split":
        """Copy to ``device``."""
        return Split(self.inputs.to(device), self.labels.to(device), self.augmentation)

    def batches(
        self, indices: Sequence[Tensor], seeds: Sequence[tuple[int, ...]] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of each batch; with ``seeds``, one per batch, augmented."""
        for number, batch in enumerate(indices):
            batch = batch.to(self.labels.device)
            inputs, labels = self.inputs[batch], self.labels[batch]
            if seeds is not None and self.augmentation is not None:
                generator = derived_generator("augmentation", *seeds[number])
                inputs = augment_batch(inputs, self.augmentation, generator)
            yield inputs, labels

    def fingerprint(self) -> int:
        """Checksum of inputs and labels."""
        checksum = zlib.crc32(self.inputs.cpu().numpy().data)
        return zlib.crc32(self.labels.cpu().numpy().data, checksum)


@dataclass(frozen=True)
class Dataset:
    """Training and test split, and a sentence on where they come from."""

    train: DataSplit
    test: DataSplit
    source: str

    def fingerprint(self) -> int:
        """Checksum of the training split; a resumed run must see the same data."""
        return self.train.fingerprint()


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set without loading it.

    ``options``: keys of [data] that it takes besides its name. ``describe``: input shape and
    classes by configuration. ``in_memory``: whether augmentation works on whole batches.
    """

    describe: Callable[[DataConfig], tuple[tuple[int, ...], int]]
    load: Callable[[DataConfig, Path | None, Augmentation], Dataset]
    options: tuple[str, ...] = ()
    in_memory: bool = True


def fixed(
    shape: tuple[int, ...], classes: int
) -> Callable[[DataConfig], tuple[tuple[int, ...], int]]:
    """Describe a data set whose shape and classes are always the same."""
    return lambda _: (shape, classes)


def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """Random order (int64 [samples]) of one epoch; depends on seed and epoch only."""
    generator = derived_generator(seed, "epoch order", epoch)
    return torch.randperm(samples, generator=generator)
