"""An exported model and the dense baseline that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import SessionError
from ...model_check import checked_content
from ..results.plain import to_plain


@dataclass(frozen=True)
class ModelPairSpec:
    """An exported model and its dense baseline.

    ``dense`` is the baseline's file; None is NAME.dense.onnx beside ``model``, which
    ``fanin export --dense-baseline`` writes.
    """

    model: Path
    dense: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", Path(self.model))
        if self.dense is not None:
            object.__setattr__(self, "dense", Path(self.dense))

    @property
    def dense_path(self) -> Path:
        """The baseline's file, given or by its usual name."""
        return self._beside("dense") if self.dense is None else self.dense

    def path_of(self, engine: str) -> Path:
        """Return the file that an engine of ``bench model`` runs."""
        if engine == "structured":
            return self._beside("structured")
        return self.model if engine == "condensed" else self.dense_path

    @property
    def no_structured(self) -> str | None:
        """Why there is no engine ``structured``; None where its file exists."""
        path = self.path_of("structured")
        if path.is_file():
            return None
        return (
            f"there is no {path.name} beside the model, which fanin export --policy structured "
            "writes; without ablated neurons it is the dense one"
        )

    def require_baseline(self) -> None:
        """Raise SessionError, which names the option that writes it, when the file is missing."""
        if self.dense is None and self.model.is_file() and not self.dense_path.exists():
            raise SessionError(
                f"there is no dense baseline {self.dense_path.name} beside it",
                "Export again with fanin export --dense-baseline, or name the dense model with "
                "--dense FILE (of a converted file that is its source).",
                model=self.model,
            )

    def to_dict(self) -> dict[str, Any]:
        """Return it for the result file, with file names only: folders are private."""
        data = to_plain(self)
        data.pop("deepsparse_python", None)
        return {**data, "model": self.model.name, "dense": self.dense_path.name}

    def _beside(self, form: str) -> Path:
        return self.model.with_name(f"{self.model.stem}.{form}{self.model.suffix}")


def file_bytes(path: Path) -> int:
    """Return the bytes on disk, external data included."""
    beside = {path.parent / tensor.location for tensor in checked_content(path).external}
    return sum(file.stat().st_size for file in (path, *beside))


def input_shapes(
    model: Path, dense_path: Path, batches: Sequence[int], condensed: Any, dense: Any
) -> dict[str, list[int | None]]:
    """Return the shape of each input, with None for the batch, from the sessions of both models.

    Raises:
        SessionError: the two models do not fit together, or an input cannot be made.

    """
    ours, theirs = _signature(condensed), _signature(dense)
    if ours != theirs:
        raise SessionError(
            f"its inputs and outputs are {ours}, those of {dense_path.name} are {theirs}",
            "Pass the dense baseline of the same model.",
            model=model,
        )
    shapes = {}
    for meta in condensed.get_inputs():
        if meta.type != "tensor(float)":
            raise SessionError(
                f"input '{meta.name}' is a {meta.type}; the benchmark makes float32 inputs only",
                "Time this model in your own code, through open_session.",
                model=model,
            )
        batch, *rest = meta.shape or [None]
        if any(not isinstance(size, int) for size in rest):
            raise SessionError(
                f"input '{meta.name}' has the shape {meta.shape}; only its first dimension, the "
                "batch, may be free",
                "Export the model with fixed sizes for the others.",
                model=model,
            )
        if isinstance(batch, int) and set(batches) != {batch}:
            raise SessionError(
                f"input '{meta.name}' has a fixed batch of {batch}; batches are {batches}",
                f"Ask for batch {batch}, or export the model with a dynamic batch.",
                model=model,
            )
        shapes[meta.name] = [batch if isinstance(batch, int) else None, *rest]
    return shapes


def with_batch(shapes: Mapping[str, Sequence[int | None]], batch: int) -> dict[str, list[int]]:
    """Replace the batch dimension in input_shapes by the batch size."""
    return {
        name: [batch if size is None else size for size in shape] for name, shape in shapes.items()
    }


def _signature(session: Any) -> str:
    def text(metas: Any) -> str:
        return ", ".join(f"{meta.name} {meta.type} {list(meta.shape)}" for meta in metas)

    return f"({text(session.get_inputs())}) → ({text(session.get_outputs())})"
