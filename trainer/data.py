"""Data sets, held in memory as normalised float tensors."""

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .idx_files import DataError, read_idx
from .names import near_matches
from .seeds import derived_generator

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

# Files of one split: images, labels; the names are those of the original distribution.
_IDX_SPLITS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


@dataclass(frozen=True)
class Split:
    """``inputs`` float32 [samples, *input_shape], normalised; ``labels`` int64 [samples]."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """Training and test split, and a sentence on where they come from."""

    train: Split
    test: Split
    source: str

    def fingerprint(self) -> int:
        """Checksum of the training split; a resumed run must see the same data."""
        checksum = zlib.crc32(self.train.inputs.numpy())
        return zlib.crc32(self.train.labels.numpy(), checksum)


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set without loading it."""

    input_shape: tuple[int, ...]
    classes: int
    load: Callable[[Path | None], Dataset]


def load_dataset(name: str, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set by name.

    ``folder``: where its files are, for data sets that have files. Raises DataError for an
    unknown name, missing files (naming the ways to get them) and damaged files.
    """
    return dataset_info(name).load(None if folder is None else Path(folder))


def dataset_info(name: str) -> DatasetInfo:
    """Shape and classes of a data set. Raises DataError for an unknown name."""
    if name not in DATASETS:
        raise DataError(f"unknown data set {name!r}." + near_matches(name, DATASETS))
    return DATASETS[name]


def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """Random order (int64 [samples]) of one epoch; depends on seed and epoch only."""
    generator = derived_generator(seed, "epoch order", epoch)
    return torch.randperm(samples, generator=generator)


def fashion_mnist_folder(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Where Fashion-MNIST lies on this machine without a download, or None.

    Looks in ``folder`` only when it is given, else in the folder of the Debian package.
    """
    root = DEBIAN_FASHION_MNIST if folder is None else Path(folder)
    for candidate in (root, root / "FashionMNIST" / "raw"):
        if all(_find(candidate, stem) for stems in _IDX_SPLITS.values() for stem in stems):
            return candidate
    return None


def _find(folder: Path, stem: str) -> Path | None:
    paths = (folder / f"{stem}.gz", folder / stem)
    return next((path for path in paths if path.is_file()), None)


def _load_fashion_mnist(folder: Path | None) -> Dataset:
    found = fashion_mnist_folder(folder)
    if found is None and folder is None:
        found = _download_fashion_mnist()
    if found is None:
        raise DataError(_missing_fashion_mnist(f"not found in {folder}"))
    mean, std = 0.2860, 0.3530  # of the training pixels, scaled to [0, 1]
    splits = {}
    for split, (image_stem, label_stem) in _IDX_SPLITS.items():
        image_path, label_path = _find(found, image_stem), _find(found, label_stem)
        images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
        if images.shape[1:] != (28, 28) or len(images) == 0:
            raise DataError(f"{image_path} holds images of {images.shape}, expected N×28×28")
        if len(images) != len(labels):
            raise DataError(
                f"{image_path} has {len(images)} images, {label_path} {len(labels)} labels"
            )
        if labels.max() > 9:
            raise DataError(f"{label_path} holds label {labels.max()}; there are 10 classes")
        inputs = torch.from_numpy(images[:, None].astype(np.float32)).div_(255)
        inputs = inputs.sub_(mean).div_(std)
        splits[split] = Split(inputs, torch.from_numpy(labels.astype(np.int64)))
    return Dataset(**splits, source=f"Fashion-MNIST from {found}")


def _download_fashion_mnist() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fanin"
    found = fashion_mnist_folder(cache)
    if found is not None:
        return found
    try:
        from torchvision.datasets import FashionMNIST

        FashionMNIST(cache, download=True)
    except (ImportError, OSError, RuntimeError) as error:
        raise DataError(_missing_fashion_mnist(f"the download failed ({error})")) from error
    found = fashion_mnist_folder(cache)
    if found is None:
        raise DataError(_missing_fashion_mnist(f"the download left no files in {cache}"))
    return found


def _missing_fashion_mnist(reason: str) -> str:
    names = ", ".join(f"{stem}.gz" for stems in _IDX_SPLITS.values() for stem in stems)
    return (
        f"Fashion-MNIST: {reason}. Three ways to get it: give a folder that holds {names}; "
        f"`apt-get install dataset-fashion-mnist` (it puts them in {DEBIAN_FASHION_MNIST}); or "
        "run once with network access and without a folder, to download it. "
        "The data set 'digits' needs no files."
    )


def _load_digits(folder: Path | None) -> Dataset:
    if folder is not None:
        raise DataError("the data set 'digits' comes with scikit-learn and takes no folder")
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise DataError("the data set 'digits' needs scikit-learn; install fanin[train]") from error
    images, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy(images.astype(np.float32).reshape(-1, 1, 8, 8))
    inputs = (inputs / 16 - 0.3053) / 0.3761  # mean and deviation of all pixels
    targets = torch.from_numpy(labels.astype(np.int64))
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels
    )
    return Dataset(
        train=Split(inputs[train], targets[train]),
        test=Split(inputs[test], targets[test]),
        source="digits of scikit-learn",
    )


DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo((1, 8, 8), 10, _load_digits),
    "fashion-mnist": DatasetInfo((1, 28, 28), 10, _load_fashion_mnist),
}
