"""Inputs and outputs of a model, and what the shapes of a request must fulfil."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SessionError
from .datatypes import TYPES
from .errors import RequestError


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a model takes or gives.

    ``shape`` holds a number where the model fixes the size, a name where it is symbolic, and None
    where it is unknown.
    """

    name: str
    datatype: str
    shape: tuple[int | str | None, ...]

    def metadata(self) -> dict[str, Any]:
        """Describe it in the protocol's terms, -1 for sizes that may vary."""
        sizes = [size if isinstance(size, int) else -1 for size in self.shape]
        return {"name": self.name, "datatype": self.datatype, "shape": sizes}


@dataclass(frozen=True)
class Signature:
    """All inputs and outputs of a model, in its order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def check_shapes(self, shapes: Mapping[str, tuple[int, ...]], max_dimension: int) -> None:
        """Raise RequestError unless the shapes fit the model, and its symbols agree.

        ``max_dimension`` bounds the sizes that the model leaves open: a small request could ask for
        an output of any size otherwise.
        """
        symbols: dict[str, tuple[int, str]] = {}
        for spec in self.inputs:
            shape = shapes[spec.name]
            if len(shape) != len(spec.shape):
                raise RequestError(
                    f"input '{spec.name}' has {len(shape)} dimensions {list(shape)}, but the model "
                    f"takes {len(spec.shape)}: {_text(spec.shape)}"
                )
            for axis, (size, wanted) in enumerate(zip(shape, spec.shape, strict=True)):
                place = f"input '{spec.name}' has size {size} in dimension {axis}"
                if isinstance(wanted, int):
                    if size != wanted:
                        raise RequestError(f"{place}, but the model takes {wanted}")
                    continue
                if not 1 <= size <= max_dimension:
                    raise RequestError(f"{place}; this server takes 1 to {max_dimension}")
                if wanted is None:
                    continue
                known, owner = symbols.setdefault(wanted, (size, spec.name))
                if known != size:
                    raise RequestError(
                        f"{place}, but '{wanted}' is {known} in input '{owner}': they must agree"
                    )


def read_signature(session: Any, model: Path) -> Signature:
    """Take the signature from an open session; SessionError for types that HTTP cannot carry."""
    return Signature(
        tuple(_spec(item, "input", model) for item in session.get_inputs()),
        tuple(_spec(item, "output", model) for item in session.get_outputs()),
    )


def _spec(item: Any, kind: str, model: Path) -> TensorSpec:
    if item.type not in TYPES:
        raise SessionError(
            f"its {kind} '{item.name}' is a {item.type}, which the server cannot carry",
            f"Put a Cast at the model's {kind}; the server takes {', '.join(TYPES)}.",
            model=model,
        )
    # ONNX Runtime gives -1 for a stated but negative size; only 0 and up is a size.
    shape = tuple(None if isinstance(size, int) and size < 0 else size for size in item.shape)
    return TensorSpec(item.name, TYPES[item.type][0], shape)


def _text(shape: tuple[int | str | None, ...]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
