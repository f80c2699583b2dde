"""Changes of training images, drawn from seeds alone so that a resumed run sees the same.

Images in memory are padded, cropped, flipped and erased by the batch; images from folders go
one by one through torchvision's transforms. Mixing (mixup, cutmix) is of a whole batch.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """[augmentation]: of training images.

    ``crop_padding``: pixels of reflection around the image, which is then cut back at random
    (images in memory). ``flip``: left and right. ``crop``: of images from folders, "random-resized"
    (area and aspect ratio at random), or "random" after the shorter side was made one of
    ``resize``. ``policy``: "autoaugment" (ImageNet), "randaugment" with ``magnitude``. ``erasing``:
    probability of erasing a rectangle. ``mixup``, ``cutmix``: parameters of their Beta
    distributions, 0 for neither; with both, each batch takes one at random.
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
            raise ValueError(f"erasing is a probability, got {self.erasing}")
        if bool(self.resize) != (self.crop == "random"):
            raise ValueError("resize lists sizes for crop = 'random', and only for that")
        if self.magnitude != 9 and self.policy != "randaugment":
            raise ValueError("magnitude goes with policy = 'randaugment'")

    def check(self, in_memory: bool) -> None:
        """Raise ValueError for options that the kind of data set has no use for."""
        unused = ("crop", "policy") if in_memory else ("crop_padding",)
        defaults = Augmentation()
        for name in unused:
            if getattr(self, name) != getattr(defaults, name):
                kind = "in memory" if in_memory else "in folders"
                raise ValueError(f"{name} has no use for images {kind}; remove it")


def augment_batch(images: Tensor, options: Augmentation, generator: torch.Generator) -> Tensor:
    """Crop, flip and erase images [batch, channels, height, width], each on its own."""
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
    """Mixup (arXiv 1710.09412) or cutmix (1905.04899); labels become shares [batch, classes].

    Leaves the batch as it is when neither is asked for.
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
    """Zero a rectangle of 2 to 33 % of the area, sides 0.3 to 3.3 to 1 (arXiv 1708.04896)."""
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
