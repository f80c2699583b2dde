"""Images in the tar files of WebDataset ("shards"), read through an index of their members.

A sample are the consecutive members whose names agree up to the first dot of the file name: an
image and its class. Since the index knows where each image is, samples are dealt to processes and
workers by number: none is repeated or lost, however many shards there are, and a run resumes within
an epoch.
"""

import io
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from ..seeds import derived_generator
from .augmentation import Augmentation
from .base import DataConfig, DataError, Dataset
from .image_folder import describe_imagenet
from .images import ImageSplit, read_image, training_transform

if TYPE_CHECKING:
    from PIL.Image import Image

_IMAGES = frozenset({"jpg", "jpeg", "png", "webp", "bmp", "ppm"})
_BLOCK = 512  # bytes of a tar file's header
_MEMBER = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")


def describe_webdataset(config: DataConfig) -> tuple[tuple[int, ...], int]:
    """Return shape and number of classes.

    Raises:
        ValueError: a size is out of range, or shards are not named.

    """
    for option in ("train_shards", "test_shards"):
        if not getattr(config, option):
            raise ValueError(
                f"the data set 'webdataset' needs {option}, such as "
                f'{option} = "{option.partition("_")[0]}-{{0000..0099}}.tar"'
            )
    if config.shuffle_buffer is not None and config.shuffle_buffer < 1:
        raise ValueError(f"shuffle_buffer must be at least 1, got {config.shuffle_buffer}")
    return describe_imagenet(config)


def load_webdataset(config: DataConfig, folder: Path | None, augmentation: Augmentation) -> Dataset:
    """Read the index of all shards; images are read when their batch is.

    Raises:
        DataError: no folder is given, a shard is missing or damaged, or a sample lacks its image or
            class.

    """
    if folder is None:
        raise DataError("WebDataset shards are files; give the folder that holds them (--data-dir)")
    (_, size, _), classes = describe_webdataset(config)
    workers = config.workers or 0
    assert config.train_shards is not None  # by describe_webdataset
    assert config.test_shards is not None
    train = Shards(shard_paths(folder, config.train_shards), classes, config.shuffle_buffer)
    test = Shards(shard_paths(folder, config.test_shards), classes)
    return Dataset(
        ImageSplit(train, training_transform(augmentation, size), size, workers),
        ImageSplit(test, None, size, workers),
        source=f"shards of {folder}",
    )


def shard_paths(folder: Path, pattern: str) -> list[Path]:
    """Return the shards that a pattern names.

    Args:
        folder: that the pattern starts from.
        pattern: file name with braces, such as "train-{000..099}.tar" or "{a,b}.tar".

    Raises:
        DataError: the braces do not match, or a shard is missing or named twice.

    """
    try:
        from braceexpand import braceexpand
    except ImportError as error:
        raise DataError("WebDataset shards need fanin[webdataset]; install it") from error
    try:
        paths = [folder / name for name in braceexpand(pattern)]
    except ValueError as error:
        raise DataError(f"the shards {pattern!r} have an unmatched brace") from error
    if missing := [path for path in paths if not path.is_file()]:
        raise DataError(
            f"{missing[0]} does not exist; {len(missing)} of the {len(paths)} shards that "
            f"{pattern!r} names are missing"
        )
    if len(set(paths)) < len(paths):
        raise DataError(f"the shards {pattern!r} name a file twice; its samples would be repeated")
    return paths


class Shards:
    """The labeled images of some shards, in their order.

    Args:
        paths: the shards.
        classes: number of classes.
        buffer: samples that ``order`` shuffles together; None: all.

    Raises:
        DataError: a shard is damaged or has no samples, or a sample lacks its image or class.

    """

    def __init__(self, paths: Sequence[Path], classes: int, buffer: int | None = None) -> None:
        self._paths, self._buffer = list(paths), buffer
        parts = []
        for number, path in enumerate(self._paths):
            rows = [(number, *row) for row in _samples(path, classes)]
            if not rows:
                raise DataError(f"{path} holds no samples, such as 000.jpg with 000.cls")
            parts.append(torch.tensor(rows))
        self._rows, self._counts = torch.cat(parts), [len(part) for part in parts]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> "tuple[Image, int]":
        shard, offset, size, label = self._rows[index].tolist()
        with self._paths[shard].open("rb") as file:
            file.seek(offset)
            return read_image(io.BytesIO(file.read(size))), label

    def name(self, index: int) -> str:
        """Return shard and position of an image."""
        shard, offset, *_ = self._rows[index].tolist()
        return f"{self._paths[shard]}: the image at byte {offset}"

    def order(self, seed: int, epoch: int) -> Tensor:
        """Return shards in random order, their samples shuffled within each buffer in turn."""
        generator = derived_generator(seed, "epoch order", epoch)
        if self._buffer is None:
            return torch.randperm(len(self), generator=generator)
        shards = torch.split(torch.arange(len(self)), self._counts)
        mixed = torch.randperm(len(shards), generator=generator).tolist()
        buffers = torch.split(torch.cat([shards[shard] for shard in mixed]), self._buffer)
        return torch.cat([part[torch.randperm(len(part), generator=generator)] for part in buffers])

    def fingerprint(self) -> int:
        """Return a checksum of names, places, sizes and classes of the images."""
        names = zlib.crc32("\n".join(path.name for path in self._paths).encode())
        return zlib.crc32(self._rows.numpy().data, names)


@dataclass
class _Sample:
    """What the members of a sample say."""

    key: str
    image: tuple[int, int] | None = None
    label: object = None


def _samples(path: Path, classes: int) -> Iterator[tuple[int, int, int]]:
    """Yield offset, size and class of the images of a shard."""
    sample: _Sample | None = None
    for name, member, content in _members(path):
        match = _MEMBER.fullmatch(name)
        if match is None or name.startswith("__"):  # WebDataset passes over these, too
            continue
        key, kind = match[1], match[2].lower()
        if sample is None or key != sample.key:
            if sample is not None:
                yield _complete(path, sample, classes)
            sample = _Sample(key)
        if kind in _IMAGES:
            if sample.image is not None:
                _refuse(path, key, "has two images")
            sample.image = member.offset_data, member.size
        elif kind == "cls" or (kind == "json" and sample.label is None):
            sample.label = _label(path, key, kind, content.read(member.offset_data, member.size))
    if sample is not None:
        yield _complete(path, sample, classes)


class _Content:
    """The bytes of an open file."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def read(self, offset: int, size: int) -> bytes:
        before = self._file.tell()
        self._file.seek(offset)
        content = self._file.read(size)
        self._file.seek(before)
        return content


def _members(path: Path) -> Iterator[tuple[str, tarfile.TarInfo, _Content]]:
    """Yield the regular files of a tar file, and make sure that none follow the last one."""
    end = 0
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            content = _Content(file)
            for member in tar:
                end = tar.offset  # of the next header
                if member.isreg() and not member.issparse():
                    yield member.name, member, content
            # tarfile takes a damaged header, and a file that was cut off between two members, for
            # the end; that is a block of zeros.
            after = content.read(end, _BLOCK)
            if len(after) < _BLOCK:
                raise tarfile.ReadError(f"it ends at byte {end}, without the mark of the end")
            if after.strip(b"\0"):
                raise tarfile.ReadError(f"no header at byte {end}")
    except (tarfile.TarError, OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged, or no uncompressed tar file: {error}. Copy it again"
        ) from error


def _label(path: Path, key: str, kind: str, content: bytes) -> object:
    try:
        if kind == "cls":
            return int(content)
        return json.loads(content).get("label")
    except (ValueError, AttributeError, RecursionError) as error:
        _refuse(path, key, f"has a .{kind} that cannot be read ({error})")


def _complete(path: Path, sample: _Sample, classes: int) -> tuple[int, int, int]:
    if sample.image is None:
        _refuse(path, sample.key, f"has no image ({', '.join(sorted(_IMAGES))})")
    label = sample.label
    if label is None:
        _refuse(path, sample.key, 'has no class: neither .cls nor a .json with "label"')
    if type(label) is not int or not 0 <= label < classes:  # true is no class
        _refuse(path, sample.key, f"has class {label!r}, expected 0 to {classes - 1}")
    return *sample.image, label


def _refuse(path: Path, key: str, reason: str) -> NoReturn:
    raise DataError(f"{path}: sample {key!r} {reason}")
