"""ImageNet as folders train/CLASS/IMAGE and val/CLASS/IMAGE."""

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ..memory import require_memory
from .augmentation import Augmentation
from .base import DataConfig, DataError, Dataset, epoch_order
from .images import ImageSplit, read_image, training_transform

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchvision.datasets import ImageFolder

_CLASSES, _SIZE = 1000, 224


def describe_imagenet(config: DataConfig) -> tuple[tuple[int, ...], int]:
    """Return shape and number of classes.

    Raises:
        ValueError: a size is out of range.

    """
    size, classes = config.image_size or _SIZE, config.classes or _CLASSES
    if size < 1 or classes < 1 or (config.workers or 0) < 0:
        raise ValueError("image_size and classes must be at least 1, workers at least 0")
    require_memory(4 * 3 * size**2, "an image")
    return (3, size, size), classes


def load_imagenet(config: DataConfig, folder: Path | None, augmentation: Augmentation) -> Dataset:
    """Open both splits; images are read when their batch is.

    Raises:
        DataError: no folder is given, a part of it is missing, or the number of classes differs
            from the configured one.

    """
    if folder is None:
        raise DataError(
            "ImageNet cannot be downloaded automatically; give the folder that holds train and val"
        )
    from torchvision.datasets import ImageFolder

    (_, size, _), classes = describe_imagenet(config)
    sources = []
    for part in ("train", "val"):
        try:
            source = ImageFolder(folder / part, loader=read_image)
        except OSError as error:  # FileNotFoundError names a missing or empty class
            raise DataError(f"{folder / part} does not hold class folders: {error}") from error
        if len(source.classes) != classes:
            raise DataError(
                f"{folder / part} has {len(source.classes)} classes, but the recipe expects "
                f"{classes}; set data.classes"
            )
        sources.append(source)
    train, test = sources
    if train.classes != test.classes:
        raise DataError(f"train and val of {folder} have different classes")
    workers = config.workers or 0
    return Dataset(
        ImageSplit(FolderImages(train), training_transform(augmentation, size), size, workers),
        ImageSplit(FolderImages(test), None, size, workers),
        source=f"images from {folder}",
    )


class FolderImages:
    """The images of folders that are named after classes."""

    def __init__(self, files: "ImageFolder") -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> "tuple[Image, int]":
        image, label = self._files[index]
        return image, label

    def name(self, index: int) -> str:
        """Return the path of an image."""
        return str(self._files.samples[index][0])

    def order(self, seed: int, epoch: int) -> Tensor:
        """Return a random order."""
        return epoch_order(len(self), seed, epoch)

    def fingerprint(self) -> int:
        """Return a checksum of the names, sizes and classes of the images, not of their content."""
        checksum = 0
        for path, label in self._files.samples:
            file = Path(path)
            line = f"{file.parent.name}/{file.name} {file.stat().st_size} {label}\n"
            checksum = zlib.crc32(line.encode(), checksum)
        return checksum
