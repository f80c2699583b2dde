"""Images that are read, decoded and augmented when their batch is, by torchvision."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from ..seeds import derived_generator
from .augmentation import Augmentation
from .base import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Transform = Callable[["Image"], Tensor]

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ImageSource(Protocol):
    """Where the images of a split are."""

    def __len__(self) -> int:
        """Return the number of images."""

    def __getitem__(self, index: int) -> "tuple[Image, int]":
        """Read an image as RGB, with its class; errors of any type are reported with its name."""

    def name(self, index: int) -> str:
        """Return what to call an image in a message."""

    def order(self, seed: int, epoch: int) -> Tensor:
        """Return the order of an epoch, int64 [images]."""

    def fingerprint(self) -> int:
        """Return a checksum; a resumed run must use the same data."""


class ImageSplit:
    """A split of images.

    Args:
        source: the images.
        transform: transform of images to be augmented; None: they never are.
        size: side of the images in pixels.
        workers: processes that read; 0: this one reads.

    """

    def __init__(
        self, source: ImageSource, transform: Transform | None, size: int, workers: int
    ) -> None:
        self._images = _Images(source, transform, evaluation_transform(size))
        self._workers, self._device = workers, torch.device("cpu")
        self._keys = _Batches()
        self._loader: DataLoader[Any] | None = None

    def __len__(self) -> int:
        return len(self._images.source)

    def to(self, device: torch.device) -> "ImageSplit":
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

    def order(self, seed: int, epoch: int) -> Tensor:
        """Return the order of an epoch, int64 [samples]."""
        return self._images.source.order(seed, epoch)

    def fingerprint(self) -> int:
        """Return the checksum of the source."""
        return self._images.source.fingerprint()


def read_image(file: str | BinaryIO) -> "Image":
    """Read an image as RGB, from a path or an open file.

    Raises:
        ValueError: it has more pixels than Pillow considers safe.

    """
    from PIL import Image

    with Image.open(file) as image:
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
        self, source: ImageSource, transform: Transform | None, evaluate: Transform
    ) -> None:
        self.source, self.transform, self.evaluate = source, transform, evaluate

    def __getitem__(self, key: tuple[int, int | None]) -> tuple[Tensor, int]:
        index, seed = key
        try:
            image, label = self.source[index]
        except Exception as error:  # damaged bytes make Pillow raise errors of any type
            raise DataError(f"{self.source.name(index)} cannot be read: {error}") from error
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
