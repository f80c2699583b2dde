"""fanin quantize on run folders, and as a command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.export import quantize
from fanin.trainer import load_recipe, train
from fanin.trainer.models import MLP

from .onnx_models import node, run, sparse, write_model

runner = CliRunner()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = load_recipe("mlp-digits-srigl90")
    small = replace(config, model=MLP(hidden=(256, 96)))
    folder = tmp_path_factory.mktemp("runs") / "digits"
    train(small, folder, progress=False)
    return folder


@pytest.mark.parametrize("dynamic", [False, True])
def test_accuracy_on_digits_stays_within_half_a_point(
    run_folder: Path, tmp_path: Path, dynamic: bool
):
    out = tmp_path / "int8.onnx"
    report = quantize(run_folder, out, dynamic=dynamic, policy="condensed")
    trained = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    before, after = report.accuracy_before, report.accuracy_after
    assert before is not None
    assert after is not None
    assert before == pytest.approx(trained[-1]["test_accuracy"], abs=1e-6)
    assert before > 0.9
    assert abs(after - before) <= 0.005
    assert report.compared_on == "360 samples of the test split of digits of scikit-learn"
    calibrated = "512 samples of the training split of digits of scikit-learn"
    assert report.calibrated_on == (None if dynamic else calibrated)
    # Against the labels and the file once more.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    _, test = train_test_split(np.arange(1797), test_size=0.2, random_state=0, stratify=labels)
    inputs = (images[test].astype(np.float32).reshape(-1, 1, 8, 8) / 16 - 0.3053) / 0.3761
    name = onnx.load(out).graph.input[0].name
    (logits,) = run(out, library=True, **{name: inputs.astype(np.float32)})
    assert np.mean(logits.argmax(1) == labels[test]) == pytest.approx(after, abs=1 / 360)


def test_layers_have_the_names_of_the_modules(run_folder: Path, tmp_path: Path):
    report = quantize(run_folder, tmp_path / "int8.onnx", policy="condensed", min_sparsity=0.2)
    assert {layer.name: layer.form for layer in report.layers} == {
        "fc1": "condensed int8",
        "fc2": "condensed int8",
        "head": "dense int8",
    }
    assert report.file_bytes < 0.5 * report.float_bytes


def test_own_samples_take_the_place_of_training_samples(run_folder: Path, tmp_path: Path):
    narrow = np.zeros((20, 1, 8, 8), np.float32)
    narrow[:, :, :, 0] = 0.01
    from fanin.export import export

    export(run_folder, None, tmp_path / "float.onnx", policy="dense", portable=True)
    name = onnx.load(tmp_path / "float.onnx").graph.input[0].name
    report = quantize(run_folder, tmp_path / "int8.onnx", calibration={name: narrow})
    assert report.calibrated_on == "20 samples of what is given"
    assert report.compared_on == "360 samples of the test split of digits of scikit-learn"
    # Ranges of nothing but zeros and 0.01 cut off all that the digits are.
    assert report.error.relative > 0.2


def test_command_prints_accuracies_error_and_the_layers(run_folder: Path, tmp_path: Path):
    out = tmp_path / "int8.onnx"
    result = runner.invoke(app, ["quantize", str(run_folder), "-o", str(out)])
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    for text in (
        "Quantization to",
        "in float32",
        "in 8 bits",
        "outputs differ by",
        "fc1",
        "head",
        "min-max of 512",
    ):
        assert text in shown
    assert onnx.load(out).graph.node


def test_command_prints_json(run_folder: Path, tmp_path: Path):
    out = tmp_path / "int8.onnx"
    options = ["--dynamic", "--json", "--no-rank"]
    result = runner.invoke(app, ["quantize", str(run_folder), "-o", str(out), *options])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["method"] == "dynamic"
    assert {layer["name"] for layer in report["layers"]} == {"fc1", "fc2", "head"}
    assert report["export"]["path"] == str(out)


def test_command_keeps_the_worst_layers_in_float(run_folder: Path, tmp_path: Path):
    out = tmp_path / "int8.onnx"
    free = quantize(run_folder, out)
    limit = 0.9 * free.error.relative
    options = ["--max-error", str(limit), "--json"]
    result = runner.invoke(app, ["quantize", str(run_folder), "-o", str(out), *options])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["error"]["relative"] <= limit
    kept = [layer["name"] for layer in report["layers"] if layer["form"].endswith("float32")]
    assert kept == [layer.name for layer in free.layers[: len(kept)]] != []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent", "-o", "out.onnx"], "absent does not exist or is not a file"),
        (["{run}", "-o", "{run}/config.toml"], "belongs to the run; give the model another name"),
        (["{empty}", "-o", "out.onnx"], "is not a run folder: it has no config.toml"),
        (["{run}", "-o", "absent/out.onnx"], "the folder absent does not exist"),
        (["{run}", "-o", "out.onnx", "--calibration", "no.npz"], "no.npz does not exist"),
        (["{run}", "-o", "out.onnx", "--data-dir", "."], "is part of scikit-learn and takes no"),
        (["{run}", "-o", "out.onnx", "--method", "best"], "it must be min-max, entropy"),
        (["{run}", "-o", "out.onnx", "--max-error", "1e-7"], "no layer can be quantized within"),
    ],
)
def test_errors_are_one_line(
    run_folder: Path, tmp_path: Path, monkeypatch, arguments: list[str], message: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    places = {"run": str(run_folder), "empty": str(tmp_path / "empty")}
    before = (run_folder / "config.toml").read_text()
    result = runner.invoke(app, ["quantize", *(part.format(**places) for part in arguments)])
    assert result.exit_code == 1
    *_, last = result.stderr.strip().splitlines()
    assert last.startswith("fanin: ")
    assert message in last
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert (run_folder / "config.toml").read_text() == before


def test_missing_package_is_named(tmp_path: Path, monkeypatch):
    import importlib.util

    source = write_model(
        tmp_path / "in.onnx", [node("MatMul", ["x", "w"])], {"w": sparse((48, 32))}
    )
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else found(name)
    )
    result = runner.invoke(app, ["quantize", str(source), "-o", str(tmp_path / "out.onnx")])
    assert result.exit_code == 1
    assert "this command needs onnxruntime; run: pip install 'fanin[bench]'" in result.stderr
