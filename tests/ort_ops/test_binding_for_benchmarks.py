"""The binding's functions for kernel benchmarks: outputs in place, and limits of the core."""

import numpy as np
import pytest

from fanin.ort_ops import _native


@pytest.fixture
def gemm():
    values, indices = np.array([[2.0, 3.0]], np.float32), np.array([[0, 2]], np.uint16)
    rows, bias = np.array([1], np.int32), np.array([1.0, 0.0], np.float32)
    return _native.PackedGemm(
        values=values, indices=indices, rows=rows, bias=bias, in_features=3, out_features=2
    )


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_the_result_is_written_into_the_given_array(gemm, kind):
    out = np.full((1, 2), np.nan, kind)
    assert gemm.run(np.ones((1, 3), kind), out=out) is out
    np.testing.assert_array_equal(out, [[1, 5]])


def test_arrays_that_cannot_hold_the_result_are_refused(gemm):
    x = np.ones((1, 3), np.float32)
    read_only = np.zeros((1, 2), np.float32)
    read_only.flags.writeable = False
    for out in (
        read_only,
        np.zeros((1, 3), np.float32),
        np.zeros((2, 2), np.float32),
        np.zeros((1, 4), np.float32)[:, ::2],
        np.zeros((1, 2), np.float64),
        [[0.0, 0.0]],
    ):
        with pytest.raises(ValueError, match="out"):
            gemm.run(x, out=out)


def test_reading_reads_every_byte():
    for size in (0, 1, 63, 512, 1000, 4099):
        for at in {0, size // 2, size - 1} - {-1}:
            data = np.zeros(size, np.uint8)
            assert _native.read_once(data) == 0
            if size:
                data[at] = 1
                assert _native.read_once(data) != 0


def test_a_buffer_with_gaps_is_refused():
    with pytest.raises((ValueError, BufferError), match="contiguous"):
        _native.read_once(np.zeros(8, np.uint8)[::2])


def test_the_measured_limits_are_plausible():
    assert 1e8 < _native.clock_hertz() < 1e10
    assert 1 < _native.peak_macs_per_second() / _native.clock_hertz() < 128
