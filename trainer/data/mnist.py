"""Fashion-MNIST and MNIST: idx files in a folder, or downloaded by torchvision."""

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..._base.user_folders import cache_folder
from ..memory import require_memory
from .augmentation import Augmentation
from .base import DataConfig, DataError, Dataset, Split
from .idx_files import read_idx

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
_SIDE = 28
_TRAIN = 60_000

# Files of one split: images, labels; the names are those of the original distributions.
_IDX_SPLITS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


@dataclass(frozen=True)
class _Kind:
    """One of the two data sets.

    Attributes:
        title: name for messages.
        torchvision: name of its class in torchvision.
        mean: mean of the training pixels, scaled to [0, 1].
        std: their standard deviation.

    """

    title: str
    torchvision: str
    mean: float
    std: float


_FASHION = _Kind("Fashion-MNIST", "FashionMNIST", 0.2860, 0.3530)
_DIGITS = _Kind("MNIST", "MNIST", 0.1307, 0.3081)


def fashion_mnist_folder(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Return where Fashion-MNIST is on this machine, or None if it would have to be downloaded.

    Args:
        folder: the only folder to look in; None: that of the Debian package.

    """
    return _find_files(_FASHION, DEBIAN_FASHION_MNIST if folder is None else Path(folder))


def describe_mnist(config: DataConfig) -> tuple[tuple[int, ...], int]:
    """Return shape and number of classes.

    Raises:
        ValueError: images of 28×28 cannot be padded to the shape, or a size is out of range.

    """
    shape = (1, _SIDE, _SIDE) if config.shape is None else config.shape
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < _SIDE:
        raise ValueError(
            f"shape must be [channels, height, width] from [1, {_SIDE}, {_SIDE}] up, "
            f"got {list(shape)}"
        )
    if config.samples is not None and config.samples < 1:
        raise ValueError(f"samples must be at least 1, got {config.samples}")
    require_memory(4 * prod(shape) * min(config.samples or _TRAIN, _TRAIN), "the samples")
    return tuple(shape), 10


def load_fashion_mnist(
    config: DataConfig, folder: Path | None, augmentation: Augmentation
) -> Dataset:
    """Load from ``folder``, or else from the Debian package, the cache, or the network.

    Raises:
        DataError: the files are missing, damaged, or cannot be downloaded.

    """
    default = fashion_mnist_folder() if folder is None else None
    return _load(_FASHION, default or folder, config, augmentation)


def load_mnist(config: DataConfig, folder: Path | None, augmentation: Augmentation) -> Dataset:
    """Load from ``folder``, or else from the cache or the network.

    Raises:
        DataError: the files are missing, damaged, or cannot be downloaded.

    """
    return _load(_DIGITS, folder, config, augmentation)


def _find_files(kind: _Kind, root: Path) -> Path | None:
    for candidate in (root, root / kind.torchvision / "raw"):
        if all(_find(candidate, stem) for stems in _IDX_SPLITS.values() for stem in stems):
            return candidate
    return None


def _find(folder: Path, stem: str) -> Path | None:
    paths = (folder / f"{stem}.gz", folder / stem)
    return next((path for path in paths if path.is_file()), None)


def _path(kind: _Kind, folder: Path, stem: str) -> Path:
    path = _find(folder, stem)
    if path is None:
        raise DataError(_missing(kind, f"{stem} has disappeared from {folder}"))
    return path


def _load(
    kind: _Kind, folder: Path | None, config: DataConfig, augmentation: Augmentation
) -> Dataset:
    shape, _ = describe_mnist(config)
    found = _download(kind) if folder is None else _find_files(kind, folder)
    if found is None:
        raise DataError(_missing(kind, f"not found in {folder}"))
    splits = {}
    for split, (image_stem, label_stem) in _IDX_SPLITS.items():
        image_path, label_path = _path(kind, found, image_stem), _path(kind, found, label_stem)
        images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
        if images.shape[1:] != (_SIDE, _SIDE) or len(images) == 0:
            raise DataError(f"{image_path} holds images of {images.shape}, expected N×28×28")
        if len(images) != len(labels):
            raise DataError(
                f"{image_path} has {len(images)} images, {label_path} {len(labels)} labels"
            )
        if labels.max() > 9:
            raise DataError(f"{label_path} holds label {labels.max()}, but there are 10 classes")
        if split == "train" and (config.samples or 0) > len(images):
            raise DataError(f"samples is {config.samples}, but {image_path} has {len(images)}")
        inputs = _padded_images(images[: config.samples], shape)
        inputs = inputs.sub_(kind.mean).div_(kind.std)
        targets = torch.from_numpy(labels[: config.samples].astype(np.int64))
        splits[split] = Split(inputs, targets, augmentation if split == "train" else None)
    return Dataset(**splits, source=f"{kind.title} from {found}")


def _padded_images(images: NDArray[np.uint8], shape: tuple[int, ...]) -> torch.Tensor:
    """Scale to [0, 1], center on black images, and repeat for all channels."""
    channels, height, width = shape
    rows, columns = height - _SIDE, width - _SIDE
    margins = ((0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
    pixels = torch.from_numpy(np.pad(images, margins)[:, None].astype(np.float32)).div_(255)
    return pixels.repeat(1, channels, 1, 1)


def _download(kind: _Kind) -> Path:
    cache = cache_folder()
    if cache is None:
        raise DataError(_missing(kind, "cannot be downloaded, since this user has no home folder"))
    found = _find_files(kind, cache)
    if found is not None:
        return found
    try:
        from torchvision import datasets

        getattr(datasets, kind.torchvision)(cache, download=True)
    except (ImportError, OSError, RuntimeError) as error:
        raise DataError(_missing(kind, f"the download failed ({error})")) from error
    found = _find_files(kind, cache)
    if found is None:
        raise DataError(_missing(kind, f"the download left no files in {cache}"))
    return found


def _missing(kind: _Kind, reason: str) -> str:
    names = ", ".join(f"{stem}.gz" for stems in _IDX_SPLITS.values() for stem in stems)
    package = (
        f" `apt-get install dataset-fashion-mnist` (into {DEBIAN_FASHION_MNIST});"
        if kind is _FASHION
        else ""
    )
    return (
        f"{kind.title}: {reason}. To get it, give a folder that holds {names};{package} or run "
        "once with network access and without a folder, which downloads it. "
        "The data set 'digits' needs no files."
    )
