"""ImageNet as folders train/CLASS/IMAGE and val/CLASS/IMAGE, read and augmented by torchvision."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from ..memory import require_memory
from ..seeds import derived_generator
from .augmentation import Augmentation
from .base import DataConfig, DataError, Dataset

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchvision.datasets import ImageFolder

Transform = Callable[["Image"], Tensor]

_CLASSES, _SIZE = 1000, 224
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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
        FolderSplit(train, training_transform(augmentation, size), size, workers),
        FolderSplit(test, None, size, workers),
        source=f"images from {folder}",
    )


class FolderSplit:
    """Images that are read from files.

    Args:
        source: the images.
        transform: transform of images to be augmented; None: they never are.
        size: side of the images in pixels.
        workers: processes that read; 0: this one reads.

    """

    def __init__(
        self, source: "ImageFolder", transform: Transform | None, size: int, workers: int
    ) -> None:
        self._images = _Images(source, transform, evaluation_transform(size))
        self._workers, self._device = workers, torch.device("cpu")
        self._keys = _Batches()
        self._loader: DataLoader[Any] | None = None

    def __len__(self) -> int:
        return len(self._images.source)

    def to(self, device: torch.device) -> "FolderSplit":
        """Yield batches on ``device`` from now on."""
        self._device, self._loader = device, None
        return self

    def batches(
        self, indices: Sequence[Tensor], seeds: Sequence[tuple[int, ...]] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images float32 [batch, 3, size, size] and labels int64 [batch].

        With ``seeds``, the images are augmented.

        Raises:
            DataError: an image cannot be read.

        """
        keys = []
        for number, batch in enumerate(indices):
            draws: Sequence[int | None] = [None] * len(batch)
            if seeds is not None:
                generator = derived_generator("augmentation", *seeds[number])
                draws = torch.randint(2**31, (len(batch),), generator=generator).tolist()
            keys.append(list(zip(batch.tolist(), draws, strict=True)))
        if self._loader is None:
            self._loader = DataLoader(
                self._images,
                batch_sampler=self._keys,
                num_workers=self._workers,
                persistent_workers=self._workers > 0,  # starting some takes seconds an epoch
                pin_memory=self._device.type == "cuda",
                generator=torch.Generator(),  # keeps it from drawing from the global one
            )
        self._keys.batches = keys
        try:
            for images, labels in self._loader:
                yield (
                    images.to(self._device, non_blocking=True),
                    labels.to(self._device, non_blocking=True),
                )
        except DataError as error:
            # An error from a worker process is prefixed with that process's traceback.
            raise DataError(str(error).strip().rpartition("DataError: ")[2]) from error

    def fingerprint(self) -> int:
        """Return a checksum of the names, sizes and classes of the images, not of their content."""
        checksum = 0
        for path, label in self._images.source.samples:
            file = Path(path)
            line = f"{file.parent.name}/{file.name} {file.stat().st_size} {label}\n"
            checksum = zlib.crc32(line.encode(), checksum)
        return checksum


def read_image(path: str) -> "Image":
    """Read an image as RGB.

    Raises:
        ValueError: it has more pixels than Pillow considers safe.

    """
    from PIL import Image

    with Image.open(path) as image:
        limit = Image.MAX_IMAGE_PIXELS  # None if the application disabled the limit
        if limit is not None and image.width * image.height > limit:
            raise ValueError(f"it is too large ({image.width} × {image.height} pixels); remove it")
        return image.convert("RGB")


class _Batches(Sampler[list[tuple[int, int | None]]]):
    """The batches of the present pass, for a loader that outlives it."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int | None]]] = []

    def __iter__(self) -> Iterator[list[tuple[int, int | None]]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Images(TorchDataset[tuple[Tensor, int]]):
    def __init__(
        self, source: "ImageFolder", transform: Transform | None, evaluate: Transform
    ) -> None:
        self.source, self.transform, self.evaluate = source, transform, evaluate

    def __getitem__(self, key: tuple[int, int | None]) -> tuple[Tensor, int]:
        index, seed = key
        try:
            image, label = self.source[index]
        except Exception as error:  # damaged bytes make Pillow raise errors of any type
            raise DataError(f"{self.source.samples[index][0]} cannot be read: {error}") from error
        if seed is None or self.transform is None:
            return self.evaluate(image), label
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.transform(image), label


def training_transform(options: Augmentation, size: int) -> Transform:
    """Compose transforms from a PIL image to a normalized float32 tensor [3, size, size]."""
    from torchvision.transforms import v2

    if options.crop == "random-resized":
        steps = [v2.RandomResizedCrop(size)]
    elif options.crop == "random":
        resizes = [v2.Resize(side) for side in options.resize]
        steps = [v2.RandomChoice(resizes), v2.RandomCrop(size, pad_if_needed=True)]
    else:
        steps = [v2.Resize(round(size / 0.875)), v2.CenterCrop(size)]
    if options.flip:
        steps.append(v2.RandomHorizontalFlip())
    if options.policy == "autoaugment":
        steps.append(v2.AutoAugment(v2.AutoAugmentPolicy.IMAGENET))
    elif options.policy == "randaugment":
        steps.append(v2.RandAugment(magnitude=options.magnitude))
    steps += _to_tensor()
    if options.erasing:
        steps.append(v2.RandomErasing(options.erasing))
    composed: Transform = v2.Compose(steps)
    return composed


def evaluation_transform(size: int) -> Transform:
    """Resize the shorter side to size/0.875 (256 for 224), center crop, normalize."""
    from torchvision.transforms import v2

    steps = [v2.Resize(round(size / 0.875)), v2.CenterCrop(size), *_to_tensor()]
    composed: Transform = v2.Compose(steps)
    return composed


def _to_tensor() -> list[object]:
    from torchvision.transforms import v2

    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(_MEAN, _STD)]
