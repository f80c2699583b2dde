"""fanin bench layer and fanin bench kernels as commands."""

import json

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.export.onnx_op import condensed_layer_model

SMALL = ["--in-features", "24", "--out-features", "10", "--sparsity", "0.8", "--rounds", "2"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def file(tmp_path):
    weight = random_sparse_layer("random", np.random.default_rng(0), 24, 10, 7, 5)
    onnx.save(condensed_layer_model(weight, None), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_layer_takes_engines_and_masks(tmp_path):
    absent = tmp_path / "python"
    done = invoke(
        *("layer", *SMALL, "--mask", "random,clustered", "--out", tmp_path),
        *("--engines", "dense,condensed,scipy-csr,deepsparse", "--deepsparse-python", absent),
    )
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "results.json").read_text())
    assert [case["facts"]["mask"] for case in data["cases"]] == ["random", "clustered"]
    (rival,) = data["cases"][0]["rivals"]
    assert (rival["family"], rival["comparison"]["baseline"]) == ("CSR", "scipy-csr")
    # The same in both cases, so said once.
    assert done.output.count("make deepsparse-env") == 1
    assert str(absent) not in (tmp_path / "results.json").read_text()


def test_layer_of_a_file_has_its_own_sizes(file, tmp_path):
    done = invoke("layer", "--mask", f"random,{file}", "--rounds", 2, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (data["spec"]["in_features"], data["spec"]["trained"]) == (24, "layer of net.onnx")
    own = ("--in-features", 24, "--sparsity", 0.5)
    refused = invoke("layer", "--mask", file, *own, "--out", tmp_path)
    assert refused.exit_code == 2
    text = " ".join(refused.output.replace("│", "").split())
    assert "leave out --in-features, --sparsity" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layer", "--engines", "dense,magic"], "there are dense, condensed"),
        (["layer", "--layer", "fc1"], "--layer requires a file"),
        (["layer", "--mask", "a.onnx,b.onnx"], "several files"),
        (["layer", "--mask", "absent.onnx"], "absent.onnx does not exist"),
        (["layer", "--in-features", "3000000000"], "in_features is 3000000000"),
        (["layer", "--in-features", "1000000", "--out-features", "1000"], "of 4.0 GB"),
        (["layer", "--batch", "1,1"], "batches are (1, 1); give each once"),
        (["layer", "--seed", "-1"], "seed is -1; it must be at least 0"),
        (["kernels", "--seed", "-1"], "seed is -1"),
        (["kernels", "--shapes", "3000000000x8"], "inputs is 3000000000"),
        (["kernels", "--shapes", "64x8,64x8"], "give one or more, each once"),
        (["kernels", "--shapes", "12"], "is not of the form 3072x768"),
        (
            ["scaling", "--of", "threads,width"],
            "there are threads, networks, batch, outputs, crossover",
        ),
        (["kernels", "--batch", "0"], "each at least 1"),
    ],
)
def test_mistakes_are_answered_before_anything_is_measured(arguments, message, tmp_path):
    done = invoke(*arguments, "--out", tmp_path / "out")
    assert done.exit_code in (1, 2)
    assert message in done.output
    assert not (tmp_path / "out").exists()


def test_kernels_takes_shapes(tmp_path):
    done = invoke(
        *("kernels", "--shapes", "64x40", "--sparsity", "0.9", "--batch", "1,3"),
        *("--rounds", 2, "--dispatched", "--out", tmp_path),
    )
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "results.json").read_text())
    assert [case["batch"] for case in data["cases"]] == [1, 3]
