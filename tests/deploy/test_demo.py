"""fanin demo: the model that ships in the package, and what the command says to do next."""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy import demo, open_session
from fanin.deploy.demo import write_demo

from .._waiting import PATIENCE
from ._serving import REPOSITORY, port_of, requires_serving

SHIPPED = Path(demo.__file__).parent
SCRIPTS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def model():
    return onnx.load(SHIPPED / "digits.onnx")


def facts(model):
    return {item.key: item.value for item in model.metadata_props}


def test_the_accuracy_that_the_file_and_the_command_state_is_true(model, tmp_path):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    _, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels
    )
    session = open_session(SHIPPED / "digits.onnx", threads=1)
    pixels = images[test].astype(np.float32).reshape(-1, 1, 8, 8)
    scores, digits = session.run(["scores", "digit"], {"pixels": pixels})
    assert (scores.argmax(1) == digits).all()
    correct = int((digits == labels[test]).sum())
    assert correct / len(test) > 0.97
    assert facts(model)["test_correct"] == str(correct)
    assert facts(model)["test_images"] == str(len(test))
    written = write_demo(tmp_path)
    assert (written.test_correct, written.test_images) == (correct, len(test))
    assert (np.load(tmp_path / "pixels.npy") == pixels[: len(written.labels)]).all()
    assert np.load(tmp_path / "labels.npy").tolist() == labels[test][: len(written.labels)].tolist()


def test_it_is_small_and_its_hidden_layers_are_95_percent_sparse(model):
    assert (SHIPPED / "digits.onnx").stat().st_size < 100_000
    shapes = dict(sizes(model))
    sparse = [node for node in model.graph.node if node.op_type == "CondensedGemm"]
    given = [
        {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        for node in sparse
    ]
    assert [attributes["out_features"] for attributes in given] == [495, 256]  # 17 are ablated
    stored = [np.prod(shapes[node.input[1]]) for node in sparse]
    assert stored[0] / (64 * 512) < 0.055
    assert stored[1] / (512 * 256) < 0.055


@pytest.fixture(scope="module", params=["fanin-demo", 'a "folder"\'s name'])
def told(request, tmp_path_factory):
    """A working directory and what the command printed there."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "fanin", "demo", "--out", request.param]
    if request.param == "fanin-demo":
        command = command[:4]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_printed_python_recognizes_the_images(told):
    folder, text = told
    code = re.search(r"In Python:\n\n(.*?)\n\n\S", text, re.DOTALL)[1]
    lines = "\n".join(line[4:] for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    predicted, labels = re.findall(r"\[([^]]*)\]", done.stdout)
    assert predicted == labels
    assert len(labels.split()) == 8


def test_the_printed_commands_serve_and_answer(told):
    requires_serving()
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    folder, text = told
    serve, curl = re.findall(r"^    (fanin serve .*|curl .*)$", text, re.MULTILINE)
    environment = {"PATH": f"{SCRIPTS}:/usr/local/bin:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    command = [*shlex.split(serve), "--port", "0"]
    server = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    try:
        curl = curl.replace("localhost:8000", f"localhost:{port_of(server.pid)}")
        done = subprocess.run(
            ["sh", "-c", curl], cwd=folder, env=environment, capture_output=True, text=True
        )
    finally:
        server.terminate()
        server.wait(PATIENCE)
    (output,) = json.loads(done.stdout)["outputs"]
    assert output["name"] == "digit"
    promised = re.search(r"answered (\[.*\]):", text)[1]
    assert output["data"] == json.loads(promised)


@pytest.mark.parametrize("folder", ["-x", "a=b"])
def test_the_printed_command_names_the_file_in_a_folder_of_any_name(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    text = demo.next_steps(write_demo(Path(folder)))
    (argument,) = re.findall(r"^    fanin serve (.*)$", text, re.MULTILINE)
    assert argument == f"./{folder}/digits.onnx"


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file")])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert str(tmp_path / "file") in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_opens_from_the_cache_of_hugging_face(tmp_path):
    """Files named by their hash in blobs; a folder of links to them for each revision."""
    plain = tmp_path / "model.onnx"
    data = {"save_as_external_data": True, "location": "model.onnx.data", "size_threshold": 1000}
    onnx.save(onnx.load(SHIPPED / "digits.onnx"), plain, **data)
    cache = tmp_path / "models--organization--digits"
    snapshot = cache / "snapshots" / ("0123456789" * 4)
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for file in (plain, tmp_path / "model.onnx.data"):
        blob = cache / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        file.rename(blob)
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", blob.name))
    written = write_demo(tmp_path / "demo")
    session = open_session(snapshot / "model.onnx", threads=1)
    pixels = np.load(tmp_path / "demo" / "pixels.npy")
    (digits,) = session.run(["digit"], {"pixels": pixels})
    assert digits.tolist() == list(written.labels)


@pytest.mark.slow
def test_the_script_trains_it_again(model, tmp_path):
    """As good a model on any machine; with the PyTorch that made it, one of the same sizes."""
    import torch

    script = REPOSITORY / "tools" / "train_demo_model.py"
    done = subprocess.run([sys.executable, script, "-o", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    again = onnx.load(tmp_path / "digits.onnx")
    assert abs(int(facts(again)["test_correct"]) - int(facts(model)["test_correct"])) <= 7
    assert (tmp_path / "digits.onnx").stat().st_size < 100_000
    if facts(model)["made_with"].endswith(f"torch {torch.__version__}"):
        assert sizes(again) == sizes(model)


def sizes(model):
    return [(item.name, list(item.dims)) for item in model.graph.initializer]
