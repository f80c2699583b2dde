"""Inputs and outputs of a model, and what the shapes of a request must fulfil."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SessionError
from .datatypes import TYPES
from .errors import RequestError

_MAX_DIMENSIONS = 32  # of an array in NumPy 1
# What NumPy and ONNX Runtime multiply to, also beside a size of 0, stays below 2 to the 63rd.
_MAX_ELEMENTS = 1 << 59


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a model takes or gives.

    ``shape`` holds a number where the model fixes the size, a name where it is symbolic, and None
    where it is unknown. It is empty for a scalar and for an unknown number of dimensions alike:
    ONNX Runtime does not tell one from the other, and takes any shape for both.
    """

    name: str
    datatype: str
    shape: tuple[int | str | None, ...]

    def check(self, shape: tuple[int, ...], max_dimension: int, min_dimension: int = 1) -> None:
        """Raise RequestError unless the model takes this shape."""
        if len(shape) > _MAX_DIMENSIONS:
            raise RequestError(
                f"input '{self.name}' has {len(shape)} dimensions; this server takes up to "
                f"{_MAX_DIMENSIONS}"
            )
        if self.shape and len(shape) != len(self.shape):
            raise RequestError(
                f"input '{self.name}' has {len(shape)} dimensions {list(shape)}, but the model "
                f"takes {len(self.shape)}: {text_of(self.shape)}"
            )
        sizes = self.shape or (None,) * len(shape)
        for axis, (size, wanted) in enumerate(zip(shape, sizes, strict=True)):
            place = f"input '{self.name}' has size {size} in dimension {axis}"
            if isinstance(wanted, int):
                if size != wanted:
                    raise RequestError(f"{place}, but the model takes {wanted}")
            elif not min_dimension <= size <= max_dimension:
                raise RequestError(f"{place}; this server takes {min_dimension} to {max_dimension}")
        if math.prod(size or 1 for size in shape) > _MAX_ELEMENTS:
            raise RequestError(
                f"input '{self.name}' has the shape {list(shape)}: that is too large"
            )

    def metadata(self) -> dict[str, Any]:
        """Describe it in the protocol's terms, -1 for sizes that may vary."""
        sizes = [size if isinstance(size, int) else -1 for size in self.shape]
        return {"name": self.name, "datatype": self.datatype, "shape": sizes}


@dataclass(frozen=True)
class Signature:
    """All inputs and outputs of a model, in its order.

    ``batched`` where requests are joined along the first dimension, which is open then.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool = False

    def check_shapes(
        self, shapes: Mapping[str, tuple[int, ...]], max_dimension: int, min_dimension: int = 1
    ) -> None:
        """Raise RequestError unless the shapes fit the model.

        ``max_dimension`` bounds the sizes that the model leaves open: a small request could ask for
        an output of any size otherwise. Sizes with the same symbol may differ, as they may for
        ONNX Runtime, which refuses what it cannot run.
        """
        for spec in self.inputs:
            spec.check(shapes[spec.name], max_dimension, min_dimension)
        if self.batched:
            rows = {spec.name: shapes[spec.name][0] for spec in self.inputs}
            if len(set(rows.values())) > 1:
                told = ", ".join(f"'{name}' has {count}" for name, count in rows.items())
                raise RequestError(
                    f"the inputs differ in their number of rows ({told}), but this server joins "
                    "requests along the first dimension"
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


def text_of(shape: tuple[int | str | None, ...]) -> str:
    """Write a model's shape for people."""
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
