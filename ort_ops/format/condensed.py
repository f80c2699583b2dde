"""The condensed format of a sparse weight matrix (docs/formats.md).

SRigL calls this the condensed representation of a constant fan-in layer (arXiv 2305.02299, §3.1 and
figure 4). Imports NumPy only, so that every part of the product can use it without torch or onnx.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import numpy as np

from ..contract import UINT16_COLUMNS

VALUE_TYPES = ("float32", "float16", "bfloat16")
"""Types that values can have; bfloat16 is the NumPy type of ml_dtypes."""

_INT32_MAX = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class CondensedWeight:
    """A sparse weight ``[out_features, in_features]``, stored as its active rows.

    Row ``i`` of the stored rows is output row ``rows[i]``::

        y[rows[i]] = bias[rows[i]] + sum_j values[i, j] * x[indices[i, j]]

    An output that ``rows`` does not list is an ablated neuron: its value is its bias. The arrays
    are read-only, and an instance is always valid: construction calls :meth:`validate`.

    Attributes:
        values: float32, float16 or ml_dtypes' bfloat16 ``[active, fan_in]``.
        indices: uint16 or int32 ``[active, fan_in]``, strictly increasing over a row's true
            entries. Entries at the end of a row that repeat its last column are padding and
            hold +0.
        rows: int32 ``[active]``, strictly increasing.
        bias: float32 ``[out_features]``.
        in_features: columns of the dense weight.
        out_features: rows of the dense weight.

    """

    values: np.ndarray
    indices: np.ndarray
    rows: np.ndarray
    bias: np.ndarray
    in_features: int
    out_features: int

    def __post_init__(self) -> None:
        for name in ("values", "indices", "rows", "bias"):
            object.__setattr__(self, name, _frozen(getattr(self, name)))
        for name in ("in_features", "out_features"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        self.validate()

    @classmethod
    def from_dense(
        cls,
        weight: np.ndarray,
        bias: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> CondensedWeight:
        """Condense a dense weight.

        With a mask, the entries inside the mask are stored, even if they are 0; without one, the
        non-zero entries. Rows are padded to the longest one; rows without an entry are omitted.

        Args:
            weight: float32 ``[out_features, in_features]``, or a convolution's
                ``[out, C/group, kh, kw]`` (any rank from 2 on), which is flattened to
                ``[out, C/group * kh * kw]``. float16 is accepted and widened exactly.
            bias: float32 or float16 ``[out_features]``; None means zeros.
            mask: bool, or integers that are 0 or 1, with the shape of ``weight``.

        Raises:
            ValueError: an argument has the wrong dtype or shape, or the mask has values
                other than 0 and 1.

        """
        weight = _as_float32(weight, "weight")
        if weight.ndim < 2 or weight.size == 0:
            raise ValueError(
                f"weight has the shape {list(weight.shape)}; a weight of at least two dimensions, "
                "none of them empty, can be condensed"
            )
        out_features = weight.shape[0]
        chosen = weight != 0 if mask is None else _as_bool(mask, weight.shape)
        weight = weight.reshape(out_features, -1)
        chosen = chosen.reshape(weight.shape)
        if bias is None:
            bias = np.zeros(out_features, np.float32)
        bias = _as_float32(bias, "bias")

        counts = np.count_nonzero(chosen, axis=1)
        rows = np.flatnonzero(counts)
        counts = counts[rows]
        places = np.flatnonzero(chosen)
        if bias.shape != (out_features,):
            raise ValueError(f"bias has the shape {list(bias.shape)}, it must be [{out_features}]")
        in_features = weight.shape[1]
        values = weight.reshape(-1)[places]
        return cls._from_sorted(rows, counts, places % in_features, values, bias, in_features)

    @classmethod
    def from_entries(
        cls,
        rows: np.ndarray,
        columns: np.ndarray,
        values: np.ndarray,
        *,
        bias: np.ndarray,
        in_features: int,
    ) -> CondensedWeight:
        """Build the condensed weight of a list of entries, ordered by row, then column.

        Args:
            rows: integers ``[n]``.
            columns: integers ``[n]``.
            values: ``[n]``, of a type in ``VALUE_TYPES``.
            bias: float32 ``[out_features]``.
            in_features: columns of the dense weight.

        Raises:
            ValueError: what :meth:`validate` raises.

        """
        stored, counts = np.unique(rows, return_counts=True)
        return cls._from_sorted(stored, counts, columns, values, bias, in_features)

    @classmethod
    def _from_sorted(
        cls,
        rows: np.ndarray,
        counts: np.ndarray,
        columns: np.ndarray,
        values: np.ndarray,
        bias: np.ndarray,
        in_features: int,
    ) -> CondensedWeight:
        """Pad rows whose entries are consecutive in ``columns`` and ``values``."""
        slot = np.arange(int(counts.max(initial=0)))
        # Position of every stored entry. Past the end of a row it stays at the last entry, whose
        # column padding has to repeat.
        starts = np.cumsum(counts) - counts
        place = starts[:, None] + np.minimum(slot, counts[:, None] - 1)
        padded = np.where(slot < counts[:, None], values[place], values.dtype.type(0))
        return cls(
            values=_handed_over(padded),
            indices=_handed_over(columns[place].astype(index_dtype(in_features))),
            rows=_handed_over(rows.astype(np.int32)),
            bias=bias,
            in_features=in_features,
            out_features=len(bias),
        )

    def to_dense(self) -> np.ndarray:
        """Return float32 ``[out_features, in_features]``, 0 wherever no entry is stored."""
        dense = np.zeros((self.out_features, self.in_features), np.float32)
        stored, slot = np.nonzero(self.is_entry())
        dense[self.rows[stored], self.indices[stored, slot]] = self.values[stored, slot].astype(
            np.float32
        )
        return dense

    def astype(self, values_dtype: str) -> CondensedWeight:
        """Return the layer with its values rounded (to nearest even) to a different type.

        Args:
            values_dtype: "float32", "float16" or "bfloat16".

        Raises:
            ValueError: the type is unknown, or cannot hold one of the finite values.

        """
        values = _cast_values(self.values, values_dtype)
        overflow = _first(~_is_finite(values) & _is_finite(self.values))
        if overflow:
            raise ValueError(
                f"values[{overflow[0]}, {overflow[1]}] is {self.values[overflow]}, "
                f"too large for {values_dtype}"
            )
        return replace(self, values=_handed_over(values))

    def is_entry(self) -> np.ndarray:
        """Return bool ``[active, fan_in]``: true for active weights, false for padding."""
        entry = np.ones(self.indices.shape, bool)
        entry[:, 1:] = self.indices[:, 1:] != self.indices[:, :-1]
        return entry

    @property
    def active(self) -> int:
        """Number of stored rows, that is of active neurons."""
        return len(self.values)

    @property
    def fan_in(self) -> int:
        """Stored entries per row, padding included."""
        fan_in: int = self.values.shape[1]
        return fan_in

    @property
    def padding(self) -> int:
        """Number of stored entries that are padding; 0 if the fan-in is constant."""
        return self.values.size - int(np.count_nonzero(self.is_entry()))

    @property
    def density(self) -> float:
        """Share of the dense weight's entries that are stored, padding not counted."""
        return (self.values.size - self.padding) / (self.out_features * self.in_features)

    @property
    def nbytes(self) -> int:
        """Bytes of values, indices, rows and bias together."""
        return self.values.nbytes + self.indices.nbytes + self.rows.nbytes + self.bias.nbytes

    def validate(self) -> None:
        """Check every rule of the format.

        Raises:
            ValueError: a rule is broken; the message states the first such place and its value.

        """
        for name, value in (("in_features", self.in_features), ("out_features", self.out_features)):
            if not 1 <= value <= _INT32_MAX:
                raise ValueError(f"{name} is {value}, it must be 1 to {_INT32_MAX}")
        self._validate_layout()
        if self.active == 0:
            return
        if self.fan_in < 1:
            raise ValueError(
                f"fan-in is 0 although {self.active} rows are stored; leave ablated neurons out of "
                "values, indices and rows"
            )
        self._validate_rows()
        self._validate_indices()

    def _validate_layout(self) -> None:
        if self.values.dtype.name not in VALUE_TYPES:
            raise ValueError(
                f"values is {self.values.dtype}, it must be {' or '.join(VALUE_TYPES)}"
            )
        _require_dtype("indices", self.indices, np.uint16, np.int32)
        _require_dtype("rows", self.rows, np.int32)
        _require_dtype("bias", self.bias, np.float32)
        if self.values.ndim != 2:
            raise ValueError(
                f"values has the shape {list(self.values.shape)}, it must be [active, fan_in]"
            )
        if self.indices.shape != self.values.shape:
            raise ValueError(
                f"indices has the shape {list(self.indices.shape)}, "
                f"values has {list(self.values.shape)}; they must be equal"
            )
        if self.rows.shape != (self.active,):
            raise ValueError(
                f"rows has the shape {list(self.rows.shape)}, "
                f"it must be [{self.active}], one per row of values"
            )
        if self.bias.shape != (self.out_features,):
            raise ValueError(
                f"bias has the shape {list(self.bias.shape)}, it must be [{self.out_features}]"
            )

    def _validate_rows(self) -> None:
        rows = self.rows
        outside = (rows < 0) | (rows >= self.out_features)
        if outside.any():
            i = int(outside.argmax())
            raise ValueError(f"rows[{i}] is {rows[i]}, out_features is {self.out_features}")
        falling = rows[1:] <= rows[:-1]
        if falling.any():
            i = int(falling.argmax()) + 1
            raise ValueError(
                f"rows[{i}] is {rows[i]} after {rows[i - 1]}, rows must increase strictly"
            )

    def _validate_indices(self) -> None:
        # Compares instead of subtracting: a difference of uint16 would wrap around.
        indices, values = self.indices, self.values
        before, after = indices[:, :-1], indices[:, 1:]
        place = _first((indices < 0) | (indices >= self.in_features))
        if place:
            raise ValueError(
                f"indices[{place[0]}, {place[1]}] is {indices[place]}, "
                f"in_features is {self.in_features}"
            )
        repeats = after == before
        past_padding = np.logical_or.accumulate(repeats, axis=1) & ~repeats
        place = _first((after < before) | past_padding)
        if place:
            rule = (
                "padding must stand at the end of the row"
                if past_padding[place]
                else "indices must increase strictly over a row"
            )
            i, j = place[0], place[1] + 1
            raise ValueError(
                f"indices[{i}, {j}] is {indices[i, j]} after {indices[i, j - 1]}, {rule}"
            )
        place = _first(repeats & ((values[:, 1:] != 0) | np.signbit(values[:, 1:])))
        if place:
            i, j = place[0], place[1] + 1
            raise ValueError(
                f"indices[{i}, {j}] repeats column {indices[i, j]} with the value {values[i, j]}; "
                "only padding at the end of a row, which holds +0, may repeat"
            )


def index_dtype(in_features: int) -> type[np.uint16] | type[np.int32]:
    """Return the dtype in which fanin writes the indices of ``in_features`` columns."""
    return np.uint16 if in_features <= UINT16_COLUMNS else np.int32


def _cast_values(values: np.ndarray, name: str) -> np.ndarray:
    if name not in VALUE_TYPES:
        raise ValueError(f"values cannot be {name!r}, they can be {' or '.join(VALUE_TYPES)}")
    if name == "bfloat16":
        # A dependency of onnx; NumPy alone has no such type.
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16)
    # The caller reports an overflow, with its place.
    with np.errstate(over="ignore"):
        return values.astype(name)


def _is_finite(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values.astype(np.float32))


def _first(wrong: np.ndarray) -> tuple[int, int] | None:
    """Return row and column of the first True; None if there is none."""
    if not wrong.any():
        return None
    row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
    return int(row), int(column)


def _frozen(array: np.ndarray) -> np.ndarray:
    """Make an array contiguous and read-only, in a copy if its owner may still change it."""
    array = np.asarray(array)
    if array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
    return _handed_over(array)


def _handed_over(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _as_float32(array: np.ndarray, name: str) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype not in (np.float32, np.float16):
        raise ValueError(
            f"{name} is {array.dtype}; pass float32 (or float16), "
            f"for instance {name}.astype(np.float32)"
        )
    return array.astype(np.float32, copy=False)


def _as_bool(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    mask = np.asarray(mask)
    if mask.shape != shape:
        raise ValueError(f"mask has the shape {list(mask.shape)}, weight has {list(shape)}")
    if mask.dtype == bool:
        return mask
    if mask.dtype.kind not in "iu" or ((mask != 0) & (mask != 1)).any():
        raise ValueError(f"mask is {mask.dtype}; pass bool, or integers that are 0 or 1")
    return mask.astype(bool)


def _require_dtype(name: str, array: np.ndarray, *allowed: type[np.generic]) -> None:
    if array.dtype not in allowed:
        wanted = " or ".join(np.dtype(dtype).name for dtype in allowed)
        raise ValueError(f"{name} is {array.dtype}, it must be {wanted}")
