"""Samples that fanin.export.quantize is given: what it takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fanin.export import ExportError, quantize
from fanin.export.quantizing.float_model import load_float_model
from fanin.export.quantizing.samples import BATCH, Samples, read_samples

from .onnx_models import node, sparse, write_model

X = np.random.default_rng(0).standard_normal((70, 48)).astype(np.float32)


def model(path: Path, x: tuple[int | str, ...] = ("batch", 48), **fields) -> Path:
    return write_model(path, [node("MatMul", ["x", "w"])], {"w": sparse((48, 32))}, x=x, **fields)


def two_inputs(path: Path, second: tuple[int | str, ...] = ("batch", 48)) -> Path:
    nodes = [node("Add", ["x", "z"], "s"), node("MatMul", ["s", "w"])]
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, list(second))
    return write_model(path, nodes, {"w": sparse((48, 32))}, inputs=[z])


def read(source: Path, given) -> Samples:
    return read_samples(given, load_float_model(source).model)


def test_samples_come_in_batches_and_in_order(tmp_path: Path):
    samples = read(model(tmp_path / "in.onnx"), {"x": X})
    assert [len(feeds["x"]) for feeds in samples.feeds] == [BATCH, BATCH, 6]
    np.testing.assert_array_equal(np.concatenate([feeds["x"] for feeds in samples.feeds]), X)
    assert samples.count == 70


def test_a_fixed_batch_is_the_size_of_every_run(tmp_path: Path):
    samples = read(model(tmp_path / "in.onnx", x=(7, 48), y=(7, 32)), {"x": X})
    assert [len(feeds["x"]) for feeds in samples.feeds] == [7] * 10


def test_the_first_runs_hold_as_many_samples_as_asked_for(tmp_path: Path):
    samples = read(model(tmp_path / "in.onnx", x=(7, 48), y=(7, 32)), {"x": X})
    assert [samples.first(n).count for n in (1, 7, 8, 69, 700)] == [7, 7, 14, 70, 70]
    assert len(samples.first(8).feeds) == 2


def test_an_input_without_dimensions_is_the_same_in_all_runs(tmp_path: Path):
    samples = read(two_inputs(tmp_path / "in.onnx", ()), {"x": X, "z": np.array(2, np.float32)})
    assert len(samples.feeds) == 3
    assert all(feeds["z"] == 2 for feeds in samples.feeds)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_files_give_what_they_hold(tmp_path: Path, suffix: str):
    file = tmp_path / f"calib.{suffix}"
    if suffix == "npy":
        np.save(file, X)
    else:
        np.savez(file, x=X)
    source, out = model(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    report = quantize(source, out, calibration=file)
    assert report.compared_on == f"70 samples of {file}"


def with_value(value: float) -> np.ndarray:
    changed = X.copy()
    changed[3, 5] = value
    return changed


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": X}, r"holds arrays of the names y; the model takes x$"),
        ({}, r"holds arrays of the names none; the model takes x$"),
        ({"x": X, "labels": X}, r"holds arrays of the names x, labels; the model takes x$"),
        (
            {"x": X.astype(np.float64)},
            r"x is float64, the model takes float32; convert it with .astype\(numpy.float32\)$",
        ),
        ({"x": X.astype(np.int64)}, r"x is int64, the model takes float32; convert"),
        ({"x": X[:, :47]}, r"x has the shape \[70, 47\], the model takes \[samples, 48\]$"),
        ({"x": X[0]}, r"x has the shape \[48\], the model takes \[samples, 48\]$"),
        ({"x": X[None]}, r"x has the shape \[1, 70, 48\], the model takes \[samples, 48\]$"),
        ({"x": X[:0]}, r"x holds no samples; its shape is \[0, 48\]$"),
        ({"x": with_value(np.nan)}, r"x holds nan at \[3, 5\]; remove that sample$"),
        ({"x": with_value(np.inf)}, r"x holds inf at \[3, 5\]; remove that sample$"),
        ({"x": with_value(-np.inf)}, r"x holds -inf at \[3, 5\]; remove that sample$"),
        ({"x": np.array([["a"]])}, r"x is <U1, the model takes float32; give numbers$"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], message: str):
    source, out, file = model(tmp_path / "in.onnx"), tmp_path / "out.onnx", tmp_path / "c.npz"
    np.savez(file, **arrays)
    for given in (arrays, file):
        with pytest.raises(ExportError, match=message):
            quantize(source, out, calibration=given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.npz", "in.onnx"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no .npz or .npy file of numbers"),
        (b"not an array", "is no .npz or .npy file of numbers"),
        (b"PK\x03\x04 and no more", "is no .npz or .npy file of numbers"),
        (b"\x93NUMPY\x01\x00", "is no .npz or .npy file of numbers"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, message: str):
    file = tmp_path / "calib.npz"
    file.write_bytes(content)
    with pytest.raises(ExportError, match=message) as caught:
        quantize(model(tmp_path / "in.onnx"), tmp_path / "out.onnx", calibration=file)
    assert "\n" not in str(caught.value)
    assert "pickle" not in str(caught.value)


def test_pickles_are_not_loaded(tmp_path: Path):
    file = tmp_path / "calib.npy"
    np.save(file, np.array([{"x": 1}], object), allow_pickle=True)
    with pytest.raises(ExportError, match=r"is no .npz or .npy file of numbers: .* holds objects"):
        quantize(model(tmp_path / "in.onnx"), tmp_path / "out.onnx", calibration=file)


def test_missing_file_and_folder_are_named(tmp_path: Path):
    for name in ("none.npz", "."):
        with pytest.raises(FileNotFoundError, match="does not exist or is not a file"):
            quantize(
                model(tmp_path / "in.onnx"), tmp_path / "out.onnx", calibration=tmp_path / name
            )


def test_one_array_is_too_few_for_two_inputs(tmp_path: Path):
    file = tmp_path / "calib.npy"
    np.save(file, X)
    with pytest.raises(ExportError, match=r"holds one array, the model takes x, z; give a .npz"):
        read(two_inputs(tmp_path / "in.onnx"), file)


def test_inputs_of_different_numbers_of_samples(tmp_path: Path):
    source = two_inputs(tmp_path / "in.onnx")
    with pytest.raises(ExportError, match=r"different numbers of samples: x 70, z 69$"):
        read(source, {"x": X, "z": X[:69]})


def test_samples_that_do_not_fill_a_fixed_batch(tmp_path: Path):
    source = model(tmp_path / "in.onnx", x=(32, 48), y=(32, 32))
    with pytest.raises(ExportError, match=r"x holds 70 samples; the model takes 32 in every run$"):
        read(source, {"x": X})
    with pytest.raises(ExportError, match=r"x holds 31 samples; the model takes 32 in every run$"):
        read(source, {"x": X[:31]})


@pytest.mark.parametrize("count", [1, 15, 16])
def test_few_samples_are_a_warning(tmp_path: Path, count: int):
    source, out = model(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    report = quantize(source, out, calibration={"x": X[:count]})
    warned = [note for note in report.notes if "values beyond their ranges are cut off" in note]
    assert len(warned) == (count < 16)
    if count == 1:
        assert warned[0].startswith("1 sample of what is given is few: ")
    assert onnx.load(out).graph.node


def test_samples_of_nothing_but_zeros_are_a_warning(tmp_path: Path):
    source, out = two_inputs(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    report = quantize(source, out, calibration={"x": X, "z": 0 * X})
    (warned,) = [note for note in report.notes if "ranges of activations" in note]
    assert warned.startswith("z is 0 in 70 samples of what is given: ")


def test_model_that_needs_samples_to_be_compared_on_says_so(tmp_path: Path):
    nodes = [node("MatMul", ["x", "w"], "h"), node("Mul", ["h", "nan"])]
    arrays = {"w": sparse((48, 32)), "nan": np.float32(np.nan)}
    source = write_model(tmp_path / "in.onnx", nodes, arrays)
    with pytest.raises(ExportError, match="give samples to compare on") as caught:
        quantize(source, tmp_path / "out.onnx", dynamic=True, verify=False)
    assert "verification" not in str(caught.value)


def test_integer_inputs_are_taken(tmp_path: Path):
    nodes = [node("Gather", ["table", "x"], "e"), node("MatMul", ["e", "w"])]
    table = np.random.default_rng(0).standard_normal((100, 48)).astype(np.float32)
    source = write_model(
        tmp_path / "in.onnx",
        nodes,
        {"table": table, "w": sparse((48, 32))},
        x=("batch", "length"),
        y=("batch", "length", 32),
        elem_type=TensorProto.INT64,
    )
    model_proto = onnx.load(source)
    model_proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(model_proto, source)
    tokens = np.random.default_rng(1).integers(0, 100, (40, 9))
    for dynamic in (False, True):
        out = tmp_path / f"{dynamic}.onnx"
        report = quantize(source, out, calibration={"x": tokens}, dynamic=dynamic)
        assert 0 < report.error.relative < 0.02


def test_samples_that_the_model_does_not_run_on(tmp_path: Path):
    nodes = [node("Reshape", ["x", "shape"], "r"), node("MatMul", ["r", "w"])]
    arrays = {"shape": np.array([5, 48]), "w": sparse((48, 32))}
    source = write_model(tmp_path / "in.onnx", nodes, arrays)
    with pytest.raises(ExportError, match=r"in.onnx does not run on 70 samples of what is given: "):
        quantize(source, tmp_path / "out.onnx", calibration={"x": X})
