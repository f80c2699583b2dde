"""training_state.pt: the state that makes a resumed run equal an uninterrupted one."""

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
    """Model, optimizer, learning-rate scheduler or sparsifier."""

    def state_dict(self) -> Mapping[str, object]:
        """Return the state as tensors and plain values."""

    def load_state_dict(self, state: Any, /) -> object:
        """Restore what ``state_dict`` returned."""


@dataclass
class Progress:
    """Position of a training run, and the running figures of its epoch.

    Attributes:
        epoch: finished epochs.
        batch: finished batches of the current epoch.
        step: optimizer steps.
        loss_sum: sum of the loss over the samples of the epoch.
        correct: correctly classified samples of the epoch.
        seen: samples of the epoch.
        seconds: training time so far.
        best: highest validation accuracy so far; -1 before the first.

    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    seen: int = 0
    seconds: float = 0.0
    best: float = -1.0


@dataclass(frozen=True)
class Environment:
    """What a resumed run must share with its first part (``data``), or should share.

    Attributes:
        data: checksum of the training data.
        threads: torch's number of threads.
        torch_version: version of torch.
        device: type of the device.
        processes: number of data-parallel processes.

    """

    data: int
    threads: int
    torch_version: str
    device: str
    processes: int = 1


def save_checkpoint(
    path: Path,
    parts: Mapping[str, Stateful],
    progress: Progress,
    environment: Environment,
    metrics_bytes: int,
) -> None:
    """Write a checkpoint atomically; ``torch.load(weights_only=True)`` can read it.

    Args:
        path: file to write.
        parts: parts whose state to save, by name.
        progress: position of the run.
        environment: what a resumed run should share.
        metrics_bytes: present length of metrics.jsonl.

    Raises:
        OSError: the file cannot be written.

    """
    state = {
        "format_version": FORMAT_VERSION,
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "progress": asdict(progress),
        "circumstances": asdict(environment),
        "metrics_bytes": metrics_bytes,
    }
    with atomic_file(path) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch's writer raises it on a full disk
            raise OSError(f"{path} cannot be written; is the disk full? ({error})") from error


def load_checkpoint(path: Path, parts: Mapping[str, Stateful]) -> tuple[Progress, Environment, int]:
    """Restore ``parts`` from a checkpoint.

    Returns:
        Progress, environment, and the length of metrics.jsonl in bytes at that time.

    Raises:
        ValueError: the file is damaged or does not fit the parts.

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
            Environment(**state["circumstances"]),
            state["metrics_bytes"],
        )
    except Exception as error:  # each part raises its own errors for a foreign state
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} does not fit this run ({reason})") from error


def read_state(path: Path) -> Any:
    """Read a file that ``torch.save`` wrote, verifying its checksums, onto the CPU.

    Raises:
        ValueError: the file is damaged.

    """
    # torch does not verify the checksums that it writes, and if the archive's directory is damaged
    # it may read bytes from outside the file. So it reads a rebuilt archive.
    verified = io.BytesIO()
    try:
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(verified, "w") as rebuilt:
            size = path.stat().st_size
            for entry in archive.infolist():
                # torch does not compress; an entry that inflates could exhaust the memory.
                size -= entry.file_size
                if entry.compress_type != zipfile.ZIP_STORED or size < 0:
                    raise zipfile.BadZipFile("it is compressed, which torch's files never are")
                plain = zipfile.ZipInfo(entry.filename)
                plain.file_size = entry.file_size
                with archive.open(entry) as record, rebuilt.open(plain, "w") as copy:
                    shutil.copyfileobj(record, copy, 1 << 20)
        verified.seek(0)
        return torch.load(verified, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes make both readers raise errors of any type
        raise ValueError(f"{path} is damaged: {error}") from error
