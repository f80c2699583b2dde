"""Inputs and outputs of a model, and checks of a request's shapes against them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SessionError
from .datatypes import TYPES
from .errors import RequestError

_MAX_DIMENSIONS = 32  # limit of NumPy 1
# Keeps the byte counts that NumPy and ONNX Runtime compute below 2**63, even next to a size of 0.
_MAX_ELEMENTS = 1 << 59


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model.

    Attributes:
        name: Its name.
        datatype: Its type in the protocol.
        shape: For each dimension the fixed size, the symbol, or None if unknown. Empty for a scalar
            and for an unknown rank: ONNX Runtime does not distinguish them and takes any shape.

    """

    name: str
    datatype: str
    shape: tuple[int | str | None, ...]

    def check(self, shape: tuple[int, ...], max_dimension: int, min_dimension: int = 1) -> None:
        """Raise RequestError unless the model takes this shape."""
        if len(shape) > _MAX_DIMENSIONS:
            raise RequestError(
                f"input '{self.name}' has {len(shape)} dimensions; the server takes up to "
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
                raise RequestError(f"{place}; the server takes {min_dimension} to {max_dimension}")
        if math.prod(size or 1 for size in shape) > _MAX_ELEMENTS:
            raise RequestError(
                f"input '{self.name}' has the shape {list(shape)}, which is too large"
            )

    def metadata(self) -> dict[str, Any]:
        """Return the protocol's description, with -1 for open sizes."""
        sizes = [size if isinstance(size, int) else -1 for size in self.shape]
        return {"name": self.name, "datatype": self.datatype, "shape": sizes}


@dataclass(frozen=True)
class Signature:
    """All inputs and outputs of a model, in the model's order.

    Attributes:
        inputs: The inputs.
        outputs: The outputs.
        batched: Whether requests are joined along the first dimension, which is open.
        max_rows: Most rows of a request, if the first dimension is a batch with a limit of its own.

    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool = False
    max_rows: int | None = None

    def check_shapes(
        self, shapes: Mapping[str, tuple[int, ...]], max_dimension: int, min_dimension: int = 1
    ) -> None:
        """Check the shapes of a request.

        Sizes of the same symbol may differ, as in ONNX Runtime, which refuses what it cannot run.

        Args:
            shapes: Shape of each input.
            max_dimension: Largest size of a dimension that the model leaves open. Without it, a
                small request could ask for an output of any size.
            min_dimension: Smallest such size.

        Raises:
            RequestError: If a shape does not fit the model.

        """
        for spec in self.inputs:
            spec.check(shapes[spec.name], max_dimension, min_dimension)
        if self.max_rows is not None:
            for spec in self.inputs:
                rows_of = shapes[spec.name][0]
                if rows_of > self.max_rows:
                    raise RequestError(
                        f"input '{spec.name}' has {rows_of} rows, but max_batch_size of the "
                        f"model's config.pbtxt is {self.max_rows}"
                    )
        if self.batched:
            rows = {spec.name: shapes[spec.name][0] for spec in self.inputs}
            if len(set(rows.values())) > 1:
                counts = ", ".join(f"'{name}' has {count}" for name, count in rows.items())
                raise RequestError(
                    f"the inputs differ in their number of rows ({counts}), but the server joins "
                    "requests along the first dimension"
                )


def read_signature(session: Any, model: Path) -> Signature:
    """Read the signature of a session; SessionError for types that the protocol lacks."""
    return Signature(
        tuple(_spec(item, "input", model) for item in session.get_inputs()),
        tuple(_spec(item, "output", model) for item in session.get_outputs()),
    )


def _spec(item: Any, kind: str, model: Path) -> TensorSpec:
    if item.type not in TYPES:
        raise SessionError(
            f"its {kind} '{item.name}' is a {item.type}, which the protocol cannot express",
            f"Put a Cast at the model's {kind}; the server takes {', '.join(TYPES)}.",
            model=model,
        )
    # ONNX Runtime returns -1 for a negative size in the file.
    shape = tuple(None if isinstance(size, int) and size < 0 else size for size in item.shape)
    return TensorSpec(item.name, TYPES[item.type][0], shape)


def text_of(shape: tuple[int | str | None, ...]) -> str:
    """Format a model's shape for messages."""
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
