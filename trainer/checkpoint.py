"""training_state.pt: everything that makes a resumed run equal an undisturbed one."""

import io
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from .._base.atomic import atomic_file

FORMAT_VERSION = 1


class Stateful(Protocol):
    """Model, optimizer, learning-rate scheduler and sparsifier."""

    def state_dict(self) -> Mapping[str, object]:
        """State as tensors and plain values."""

    def load_state_dict(self, state: Any, /) -> object:
        """Restore what ``state_dict`` returned, each part in a form of its own."""


@dataclass
class Progress:
    """Where training stands: ``batch`` batches of ``epoch`` (from 0) are done.

    ``loss_sum``, ``correct`` and ``seen`` are the running training figures of the epoch,
    ``seconds`` the training time so far.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    seen: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Circumstances:
    """What a resumed run must share (``data``) or should share with its first part."""

    data: int
    threads: int
    torch_version: str
    device: str
    processes: int = 1


def save_checkpoint(
    path: Path,
    parts: Mapping[str, Stateful],
    progress: Progress,
    circumstances: Circumstances,
    metrics_bytes: int,
) -> None:
    """Write a checkpoint that ``torch.load(weights_only=True)`` can read, atomically."""
    state = {
        "format_version": FORMAT_VERSION,
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "progress": asdict(progress),
        "circumstances": asdict(circumstances),
        "metrics_bytes": metrics_bytes,
    }
    with atomic_file(path) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # what torch's own writer makes of a full disk
            raise OSError(f"{path} cannot be written; is the disk full? ({error})") from error


def load_checkpoint(
    path: Path, parts: Mapping[str, Stateful]
) -> tuple[Progress, Circumstances, int]:
    """Restore ``parts``; returns progress, circumstances, metrics length.

    Raises ValueError when the file is damaged or does not fit.
    """
    state = read_state(path)
    version = state.get("format_version") if isinstance(state, dict) else None
    if version != FORMAT_VERSION:
        raise ValueError(f"{path} has format {version}, not {FORMAT_VERSION}")
    try:
        for name, part in parts.items():
            part.load_state_dict(state["parts"][name])
        return (
            Progress(**state["progress"]),
            Circumstances(**state["circumstances"]),
            state["metrics_bytes"],
        )
    except Exception as error:  # each part has its own errors for a state of something else
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} does not fit this run ({reason})") from error


def read_state(path: Path) -> Any:
    """Read what ``torch.save`` wrote, its checksums verified, onto the CPU.

    Raises ValueError when the file is damaged.
    """
    # torch writes checksums and does not look at them, and where the archive's own directory is
    # damaged it may read what is no part of the file. So it gets an archive made anew.
    sound = io.BytesIO()
    try:
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(sound, "w") as rebuilt:
            size = path.stat().st_size
            for entry in archive.infolist():
                # torch packs nothing: what unpacks to more than the file could fill the memory.
                size -= entry.file_size
                if entry.compress_type != zipfile.ZIP_STORED or size < 0:
                    raise zipfile.BadZipFile("it is packed, which torch's files never are")
                plain = zipfile.ZipInfo(entry.filename)
                plain.file_size = entry.file_size
                with archive.open(entry) as record, rebuilt.open(plain, "w") as copy:
                    shutil.copyfileobj(record, copy, 1 << 20)
        sound.seek(0)
        return torch.load(sound, map_location="cpu", weights_only=True)
    except Exception as error:  # both readers raise whatever the bytes lead them to
        raise ValueError(f"{path} is damaged: {error}") from error
