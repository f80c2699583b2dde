"""The interface of data sets to the training loop: two splits that yield batches."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ..seeds import derived_generator
from .augmentation import Augmentation, augment_batch


class DataError(Exception):
    """Training data are missing or damaged; the message says where, and what to do."""


@dataclass(frozen=True)
class DataConfig:
    """[data]: name of a data set, and options that some data sets have.

    Attributes:
        name: name of the data set.
        classes: number of classes of "imagenet" (folders), "webdataset" and "synthetic".
        image_size: side in pixels to which images of "imagenet" and "webdataset" are cropped.
        workers: processes that load "imagenet" and "webdataset".
        shape: image shape of "synthetic"; "fashion-mnist" and "mnist" are padded and repeated to
            it.
        samples: size of the training split of "synthetic"; of "fashion-mnist" and "mnist", how many
            of the first samples of each split to use (all of a smaller test split).
        train_shards: tar files of "webdataset" to train on, with braces for sets and ranges.
        test_shards: those that are evaluated.
        shuffle_buffer: samples that are shuffled together, of shards in random order; None: all.

    """

    name: str
    classes: int | None = None
    image_size: int | None = None
    workers: int | None = None
    shape: tuple[int, ...] | None = None
    samples: int | None = None
    train_shards: str | None = None
    test_shards: str | None = None
    shuffle_buffer: int | None = None


class DataSplit(Protocol):
    """Samples that are loaded in batches."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def to(self, device: torch.device) -> "DataSplit":
        """Yield batches on ``device`` from now on."""

    def order(self, seed: int, epoch: int) -> Tensor:
        """Return the sample order of an epoch, int64 [samples], from seed and epoch alone."""

    def batches(
        self, indices: Sequence[Tensor], seeds: Sequence[tuple[int, ...]] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of batches.

        Args:
            indices: sample indices of each batch.
            seeds: one per batch, to augment it; None: no augmentation.

        """

    def fingerprint(self) -> int:
        """Return a checksum; a resumed run must use the same data."""


@dataclass(frozen=True)
class Split:
    """A split in memory.

    Attributes:
        inputs: float32 [samples, *input_shape], normalized.
        labels: int64 [samples].
        augmentation: how training batches are changed.

    """

    inputs: Tensor
    labels: Tensor
    augmentation: Augmentation | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Split":
        """Return a copy on ``device``."""
        return Split(self.inputs.to(device), self.labels.to(device), self.augmentation)

    def order(self, seed: int, epoch: int) -> Tensor:
        """Return a random order."""
        return epoch_order(len(self), seed, epoch)

    def batches(
        self, indices: Sequence[Tensor], seeds: Sequence[tuple[int, ...]] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of batches; with ``seeds``, augmented."""
        for number, batch in enumerate(indices):
            batch = batch.to(self.labels.device)
            inputs, labels = self.inputs[batch], self.labels[batch]
            if seeds is not None and self.augmentation is not None:
                generator = derived_generator("augmentation", *seeds[number])
                inputs = augment_batch(inputs, self.augmentation, generator)
            yield inputs, labels

    def fingerprint(self) -> int:
        """Return a checksum of inputs and labels."""
        checksum = zlib.crc32(self.inputs.cpu().numpy().data)
        return zlib.crc32(self.labels.cpu().numpy().data, checksum)


@dataclass(frozen=True)
class Dataset:
    """Training and test split, and a description of their source."""

    train: DataSplit
    test: DataSplit
    source: str

    def fingerprint(self) -> int:
        """Return a checksum of the training split; a resumed run must use the same data."""
        return self.train.fingerprint()


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a data set without loading it.

    Attributes:
        describe: returns input shape and number of classes of a configuration.
        load: loads it.
        options: keys of [data] that it accepts besides its name.
        in_memory: whether augmentation works on whole batches.

    """

    describe: Callable[[DataConfig], tuple[tuple[int, ...], int]]
    load: Callable[[DataConfig, Path | None, Augmentation], Dataset]
    options: tuple[str, ...] = ()
    in_memory: bool = True


def fixed_shape(
    shape: tuple[int, ...], classes: int
) -> Callable[[DataConfig], tuple[tuple[int, ...], int]]:
    """Describe a data set of fixed shape and number of classes."""
    return lambda _: (shape, classes)


def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the random sample order of an epoch, int64 [samples], from seed and epoch alone."""
    generator = derived_generator(seed, "epoch order", epoch)
    return torch.randperm(samples, generator=generator)
