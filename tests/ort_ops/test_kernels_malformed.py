"""Arrays that break the condensed format are refused with the place and the values."""

import numpy as np
import pytest

from fanin.ort_ops import _native


def layer(**changes):
    arrays = {
        "values": np.ones((3, 2), np.float32),
        "indices": np.array([[0, 4], [1, 2], [3, 3]], np.int32),
        "rows": np.array([0, 2, 3], np.int32),
        "bias": np.zeros(4, np.float32),
        "in_features": 5,
        "out_features": 4,
    }
    arrays["values"][2, 1] = 0  # padding
    arrays.update(changes)
    return arrays


def values(*rows):
    return np.array(rows, np.float32)


def indices(*rows):
    return np.array(rows, np.int32)


CASES = {
    "index too large": (
        {"indices": indices([0, 4], [1, 5], [3, 3])},
        r"indices\[1, 1\] is 5, in_features is 5",
    ),
    "index too large, uint16": (
        {"indices": np.array([[0, 4], [1, 65535], [3, 3]], np.uint16)},
        r"indices\[1, 1\] is 65535, in_features is 5",
    ),
    "negative index": (
        {"indices": indices([-1, 4], [1, 2], [3, 3])},
        r"indices\[0, 0\] is -1, in_features is 5",
    ),
    "unordered": (
        {"indices": indices([4, 0], [1, 2], [3, 3])},
        r"indices\[0, 1\] is 0 after 4, indices must increase strictly",
    ),
    "repeat with a value": (
        {"values": values([1, 1], [1, 1], [1, 2])},
        r"indices\[2, 1\] repeats column 3 with the value 2",
    ),
    "repeat with -0": (
        {"values": values([1, 1], [1, 1], [1, -0.0])},
        r"indices\[2, 1\] repeats column 3 with the value -0",
    ),
    "repeat with NaN": (
        {"values": values([1, 1], [1, 1], [1, np.nan])},
        r"repeats column 3 with the value nan",
    ),
    "padding inside a row": (
        {
            "values": values([1, 0, 1], [1, 1, 1], [1, 1, 1]),
            "indices": indices([0, 0, 1], [0, 1, 2], [0, 1, 2]),
        },
        r"indices\[0, 2\] is 1 after 0, padding must stand at the end",
    ),
    "row too large": (
        {"rows": np.array([0, 2, 4], np.int32)},
        r"rows\[2\] is 4, out_features is 4",
    ),
    "negative row": (
        {"rows": np.array([-1, 2, 3], np.int32)},
        r"rows\[0\] is -1, out_features is 4",
    ),
    "repeated row": (
        {"rows": np.array([0, 2, 2], np.int32)},
        r"rows\[2\] is 2 after 2, rows must increase strictly",
    ),
    "unordered rows": (
        {"rows": np.array([2, 0, 3], np.int32)},
        r"rows\[1\] is 0 after 2, rows must increase strictly",
    ),
    "fan-in 0": (
        {"values": np.ones((3, 0), np.float32), "indices": np.ones((3, 0), np.int32)},
        r"fan-in is 0 although 3 rows are stored; leave ablated neurons out",
    ),
    "more rows than outputs": (
        {"out_features": 2, "bias": np.zeros(2, np.float32)},
        r"3 rows are stored, out_features is 2",
    ),
    "in_features 0": ({"in_features": 0}, r"in_features is 0, it must be 1 to 2147483647"),
    "in_features too large": ({"in_features": 2**31}, r"in_features is 2147483648"),
    "out_features 0": (
        {"out_features": 0, "bias": np.zeros(0, np.float32)},
        r"out_features is 0, it must be 1 to 2147483647",
    ),
    "lengths of rows": (
        {"rows": np.array([0, 2], np.int32)},
        r"rows has 2 elements, the number of stored rows is 3",
    ),
    "length of bias": (
        {"bias": np.zeros(5, np.float32)},
        r"bias has 5 elements, out_features is 4",
    ),
    "shape of indices": (
        {"indices": np.zeros((3, 3), np.int32)},
        r"indices has the shape \[3, 3\], values has \[3, 2\]",
    ),
    "rank of values": (
        {"values": np.ones(6, np.float32)},
        r"values has the shape \[6\], it must have 2 dimensions",
    ),
    "int64 indices": (
        {"indices": np.zeros((3, 2), np.int64)},
        r"indices is int64, it must be uint16 or int32",
    ),
    "float64 values": ({"values": np.ones((3, 2))}, r"values is float64, it must be float32"),
    "int64 rows": ({"rows": np.arange(3)}, r"rows is int64, it must be int32"),
    "float16 bias": ({"bias": np.zeros(4, np.float16)}, r"bias is float16, it must be float32"),
    "list of values": ({"values": [[1.0, 2.0]] * 3}, r"values must be a NumPy array"),
}


@pytest.mark.parametrize("name", CASES)
def test_layer_is_refused(name):
    changes, message = CASES[name]
    arrays = layer(**changes)
    with pytest.raises(ValueError, match=message):
        _native.PackedGemm(**arrays)
    x = np.zeros((1, max(1, min(5, arrays["in_features"]))), np.float32)
    with pytest.raises(ValueError, match=message):
        _native.run_plain(**arrays, x=x)


def test_valid_layer_is_accepted():
    y = _native.PackedGemm(**layer()).run(np.arange(5, dtype=np.float32)[None])
    assert np.array_equal(y, [[4, 0, 3, 3]])


def test_layouts_of_arrays_are_copied():
    arrays = layer(
        values=np.asfortranarray(layer()["values"]), indices=layer()["indices"][:, ::-1][:, ::-1]
    )
    x = np.asfortranarray(np.arange(10, dtype=np.float32).reshape(2, 5))
    want = _native.PackedGemm(**layer()).run(np.ascontiguousarray(x))
    assert np.array_equal(_native.PackedGemm(**arrays).run(x), want)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": np.zeros((1, 4), np.float32)}, r"x has the shape \[1, 4\], in_features is 5"),
        ({"x": np.zeros(5, np.float32)}, r"x has the shape \[5\], it must have 2 dimensions"),
        ({"x": np.zeros((1, 5))}, r"x is float64, it must be float32"),
        (
            {"x": np.zeros((2, 5), np.float32), "residual": np.zeros((1, 4), np.float32)},
            r"residual has the shape \[1, 4\], the result has \[2, 4\]",
        ),
        (
            {"x": np.zeros((2, 5), np.float32), "residual": np.zeros((2, 4), np.int32)},
            r"residual is int32, it must be float32",
        ),
        ({"x": np.zeros((2, 5), np.float32), "threads": 0}, r"threads is 0, it must be 1 to 1024"),
    ],
)
def test_input_is_refused(arguments, message):
    gemm = _native.PackedGemm(**layer())
    with pytest.raises(ValueError, match=message):
        gemm.run(**arguments)


def test_empty_batch_gives_an_empty_result():
    y = _native.PackedGemm(**layer()).run(np.zeros((0, 5), np.float32))
    assert y.shape == (0, 4)
    assert y.dtype == np.float32
