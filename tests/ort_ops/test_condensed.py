from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fanin.ort_ops.format.condensed import CondensedWeight

FLOATS = st.floats(width=32, allow_nan=False)


@st.composite
def masked_weights(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=4, max_side=7))
    weight = draw(hnp.arrays(np.float32, shape, elements=FLOATS, fill=st.nothing()))
    mask = draw(hnp.arrays(bool, shape, fill=st.nothing()))
    return weight, mask


@given(masked_weights())
def test_round_trip_gives_the_masked_weight_bit_for_bit(case: tuple[np.ndarray, np.ndarray]):
    weight, mask = case
    condensed = CondensedWeight.from_dense(weight, mask=mask)
    expected = np.where(mask, weight, np.float32(0)).reshape(len(weight), -1)
    # As bits, since a stored -0.0 has to stay one.
    np.testing.assert_array_equal(
        condensed.to_dense().view(np.uint32), expected.view(np.uint32), strict=True
    )


@given(masked_weights())
def test_the_mask_alone_determines_what_is_stored(case: tuple[np.ndarray, np.ndarray]):
    weight, mask = case
    condensed = CondensedWeight.from_dense(np.zeros_like(weight), mask=mask)
    flat = mask.reshape(len(mask), -1)
    counts = flat.sum(axis=1)
    stored = np.zeros(flat.shape, bool)
    r, j = np.nonzero(condensed.is_entry())
    stored[condensed.rows[r], condensed.indices[r, j]] = True
    np.testing.assert_array_equal(stored, flat)
    np.testing.assert_array_equal(condensed.rows, np.flatnonzero(counts))
    assert condensed.fan_in == counts.max()
    assert condensed.padding == condensed.active * condensed.fan_in - flat.sum()
    assert condensed.density == pytest.approx(flat.mean())


@given(masked_weights())
def test_sum_over_stored_entries_is_the_dense_product(case: tuple[np.ndarray, np.ndarray]):
    weight, mask = case
    weight = np.clip(weight, -8, 8)
    condensed = CondensedWeight.from_dense(weight, mask=mask)
    x = np.random.default_rng(0).standard_normal(condensed.in_features)
    y = np.zeros(condensed.out_features)
    y[condensed.rows] = (condensed.values.astype(np.float64) * x[condensed.indices]).sum(axis=1)
    dense = (weight * mask).reshape(len(weight), -1).astype(np.float64)
    np.testing.assert_allclose(y, dense @ x, rtol=1e-12, atol=1e-12)


def test_rows_of_unequal_length_are_padded_with_their_last_column_and_plus_zero():
    weight = np.array([[1, 2, 3, 4], [0, 5, 0, 0], [0, 0, 0, 0], [6, 0, 7, 0]], np.float32)
    condensed = CondensedWeight.from_dense(weight, np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(condensed.rows, [0, 1, 3])
    np.testing.assert_array_equal(condensed.indices, [[0, 1, 2, 3], [1, 1, 1, 1], [0, 2, 2, 2]])
    np.testing.assert_array_equal(condensed.values, [[1, 2, 3, 4], [5, 0, 0, 0], [6, 7, 0, 0]])
    assert not np.signbit(condensed.values).any()
    assert condensed.padding == 5
    assert condensed.nbytes == 12 * 4 + 12 * 2 + 3 * 4 + 4 * 4


def test_without_mask_the_non_zero_entries_are_stored_including_nan():
    weight = np.array([[0, np.nan, 2]], np.float32)
    np.testing.assert_array_equal(CondensedWeight.from_dense(weight).indices, [[1, 2]])


def test_layer_without_any_weight_returns_its_bias():
    condensed = CondensedWeight.from_dense(np.zeros((3, 4), np.float32))
    assert (condensed.active, condensed.fan_in, condensed.density) == (0, 0, 0)
    np.testing.assert_array_equal(condensed.to_dense(), np.zeros((3, 4)))


@pytest.mark.parametrize(("columns", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_indices_are_uint16_if_the_last_column_fits(columns: int, dtype: type):
    weight = np.zeros((1, columns), np.float32)
    weight[0, [0, -1]] = 1
    condensed = CondensedWeight.from_dense(weight)
    assert condensed.indices.dtype == dtype
    np.testing.assert_array_equal(condensed.indices, [[0, columns - 1]])
    np.testing.assert_array_equal(condensed.to_dense(), weight)


def test_arrays_are_read_only():
    values = np.ones((1, 1), np.float32)
    condensed = CondensedWeight(
        values, np.zeros((1, 1), np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32), 1, 1
    )
    values[0, 0] = 5
    assert condensed.values[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        condensed.values[0, 0] = 5


def sound() -> dict:
    return {
        "values": np.array([[1, 2, 3], [4, 5, 0]], np.float32),
        "indices": np.array([[0, 2, 4], [1, 3, 3]], np.int32),
        "rows": np.array([0, 2], np.int32),
        "bias": np.zeros(3, np.float32),
        "in_features": 5,
        "out_features": 3,
    }


def changed(name: str, place: tuple, value: float) -> dict:
    parts = sound()
    parts[name][place] = value
    return parts


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (changed("indices", (0, 2), 5), "indices[0, 2] is 5, in_features is 5"),
        (changed("indices", (0, 0), -1), "indices[0, 0] is -1, in_features is 5"),
        (
            changed("indices", (0, 1), 0),
            "indices[0, 2] is 4 after 0, padding must stand at the end of the row",
        ),
        (
            changed("indices", (1, 0), 4),
            "indices[1, 1] is 3 after 4, indices must increase strictly over a row",
        ),
        (
            changed("values", (1, 2), 7),
            "indices[1, 2] repeats column 3 with the value 7.0; only padding at the end of a row, "
            "which holds +0, may repeat",
        ),
        (
            changed("values", (1, 2), -0.0),
            "indices[1, 2] repeats column 3 with the value -0.0; only padding at the end of a row, "
            "which holds +0, may repeat",
        ),
        (changed("rows", (1,), 3), "rows[1] is 3, out_features is 3"),
        (changed("rows", (0,), 2), "rows[1] is 2 after 2, rows must increase strictly"),
        (sound() | {"in_features": 0}, "in_features is 0, it must be 1 to 2147483647"),
        (sound() | {"out_features": 4}, "bias has the shape [3], it must be [4]"),
        (
            sound() | {"rows": np.array([0], np.int32)},
            "rows has the shape [1], it must be [2], one per row of values",
        ),
        (
            sound() | {"indices": np.zeros((2, 2), np.int32)},
            "indices has the shape [2, 2], values has [2, 3]; they must be equal",
        ),
        (
            sound() | {"indices": np.zeros((2, 3), np.int64)},
            "indices is int64, it must be uint16 or int32",
        ),
        (
            sound() | {"values": np.zeros((2, 3))},
            "values is float64, it must be float32 or float16 or bfloat16",
        ),
        (
            sound() | {"values": np.zeros(3, np.float32)},
            "values has the shape [3], it must be [active, fan_in]",
        ),
        (
            sound()
            | {"values": np.zeros((2, 0), np.float32), "indices": np.zeros((2, 0), np.int32)},
            "fan-in is 0 although 2 rows are stored; leave ablated neurons out of values, indices "
            "and rows",
        ),
    ],
)
def test_a_broken_rule_is_reported_with_its_place(parts: dict, sentence: str):
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the whole sentence is compared
        CondensedWeight(**parts)
    assert str(caught.value) == sentence


def test_falling_uint16_indices_are_refused_although_their_difference_wraps():
    parts = sound() | {"indices": np.array([[4, 2, 1], [1, 3, 3]], np.uint16)}
    with pytest.raises(ValueError, match=r"indices\[0, 1\] is 2 after 4"):
        CondensedWeight(**parts)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"weight": np.ones((2, 3))}, "weight is float64; pass float32"),
        ({"weight": np.ones(3, np.float32)}, "weight has the shape [3]"),
        ({"weight": np.ones((2, 0), np.float32)}, "weight has the shape [2, 0]"),
        (
            {"weight": np.ones((2, 3), np.float32), "bias": np.ones(3, np.float32)},
            "bias has the shape [3], it must be [2]",
        ),
        (
            {"weight": np.ones((2, 3), np.float32), "mask": np.ones((3, 2), bool)},
            "mask has the shape [3, 2], weight has [2, 3]",
        ),
        (
            {"weight": np.ones((2, 3), np.float32), "mask": np.full((2, 3), 2, np.uint8)},
            "mask is uint8; pass bool, or integers that are 0 or 1",
        ),
    ],
)
def test_from_dense_refuses_invalid_arguments(arguments: dict, sentence: str):
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the start of the sentence is compared
        CondensedWeight.from_dense(**arguments)
    assert str(caught.value).startswith(sentence)
