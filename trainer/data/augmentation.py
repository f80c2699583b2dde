"""Augmentation of training images from seeds alone, so that a resumed run sees the same images.

Images in memory are padded, cropped, flipped and erased per batch; images from folders go through
torchvision's transforms one by one. Mixing (mixup, cutmix) applies to a whole batch.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """[augmentation]: changes of training images.

    Attributes:
        crop_padding: pixels of reflection padding before a random crop of the original size (images
            in memory).
        flip: mirror half of the images horizontally.
        crop: crop of images from folders: "random-resized" (random area and aspect ratio), or
            "random" after resizing the shorter side to one of ``resize``.
        resize: sizes in pixels, for ``crop="random"``.
        policy: "autoaugment" (ImageNet) or "randaugment".
        magnitude: magnitude of "randaugment".
        erasing: probability of erasing a rectangle.
        mixup: parameter of mixup's Beta distribution; 0: no mixup.
        cutmix: parameter of cutmix's Beta distribution; 0: no cutmix. With both, each batch uses
            one at random.

    Raises:
        ValueError: a value is out of range, or an option lacks the one that it belongs to.

    """

    crop_padding: int = 0
    flip: bool = False
    crop: Literal["none", "random-resized", "random"] = "none"
    resize: tuple[int, ...] = ()
    policy: Literal["none", "autoaugment", "randaugment"] = "none"
    magnitude: int = 9
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        for name in ("crop_padding", "mixup", "cutmix", "erasing"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.erasing > 1:
            raise ValueError(f"erasing must be a probability in [0, 1], got {self.erasing}")
        if bool(self.resize) != (self.crop == "random"):
            raise ValueError("resize must list sizes for crop = 'random', and be empty otherwise")
        if self.magnitude != 9 and self.policy != "randaugment":
            raise ValueError("magnitude needs policy = 'randaugment'")

    def check(self, in_memory: bool) -> None:
        """Raise ValueError for options that this kind of data set does not support."""
        unused = ("crop", "policy") if in_memory else ("crop_padding",)
        defaults = Augmentation()
        for name in unused:
            if getattr(self, name) != getattr(defaults, name):
                kind = "in memory" if in_memory else "in folders"
                raise ValueError(f"{name} does not apply to images {kind}; remove it")


def augment_batch(images: Tensor, options: Augmentation, generator: torch.Generator) -> Tensor:
    """Crop, flip and erase each image at random.

    Args:
        images: float [batch, channels, height, width].
        options: what to do.
        generator: CPU generator.

    Returns:
        Images of the same shape.

    """
    count, _, height, width = images.shape
    device = images.device
    if options.crop_padding:
        pad = options.crop_padding
        padded = torch.nn.functional.pad(images, (pad, pad, pad, pad), mode="reflect")
        top, left = torch.randint(2 * pad + 1, (2, count, 1, 1), generator=generator).to(device)
        rows = top + torch.arange(height, device=device).view(1, -1, 1)
        columns = left + torch.arange(width, device=device).view(1, 1, -1)
        samples = torch.arange(count, device=device).view(-1, 1, 1)
        images = padded.permute(0, 2, 3, 1)[samples, rows, columns].permute(0, 3, 1, 2)
    if options.flip:
        flipped = torch.rand(count, generator=generator).to(device) < 0.5
        images = torch.where(flipped.view(-1, 1, 1, 1), images.flip(3), images)
    if options.erasing:
        images = _erase(images, options.erasing, generator)
    return images.contiguous()


def mix_batch(
    images: Tensor, labels: Tensor, classes: int, options: Augmentation, seed: int
) -> tuple[Tensor, Tensor]:
    """Apply mixup (arXiv 1710.09412) or cutmix (arXiv 1905.04899) to a batch.

    Args:
        images: float [batch, channels, height, width].
        labels: int64 [batch].
        classes: number of classes.
        options: whether and how to mix.
        seed: seed of the mixing.

    Returns:
        Images of the same shape, and labels: as probabilities [batch, classes] if mixed.

    """
    from torchvision.transforms import v2

    kinds = [
        kind(alpha=alpha, num_classes=classes)
        for kind, alpha in ((v2.MixUp, options.mixup), (v2.CutMix, options.cutmix))
        if alpha
    ]
    if not kinds:
        return images, labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mixed: tuple[Tensor, Tensor] = v2.RandomChoice(kinds)(images, labels)
        return mixed


def _erase(images: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Zero a rectangle of 2 to 33 % of the area, of aspect ratio 0.3 to 3.3 (arXiv 1708.04896)."""
    count, _, height, width = images.shape
    chosen, share, ratio, y, x = torch.rand(5, count, generator=generator)
    area = (0.02 + 0.31 * share) * height * width
    ratio = torch.exp(
        torch.log(torch.tensor(0.3)) * (1 - ratio) + ratio * torch.log(torch.tensor(3.3))
    )
    tall = (area * ratio).sqrt().round().clamp(1, height)
    wide = (area / ratio).sqrt().round().clamp(1, width)
    top, left = ((height - tall + 1) * y).floor(), ((width - wide + 1) * x).floor()
    rows, columns = torch.arange(height).view(1, -1, 1), torch.arange(width).view(1, 1, -1)
    top, left, tall, wide = (t.view(-1, 1, 1) for t in (top, left, tall, wide))
    inside = (rows >= top) & (rows < top + tall) & (columns >= left) & (columns < left + wide)
    inside &= (chosen < probability).view(-1, 1, 1)
    return images.masked_fill(inside[:, None].to(images.device), 0)
