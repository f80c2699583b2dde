"""open_session and the doctor with every supported onnxruntime, without onnx and torch."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from fanin import _base, deploy, onnx_file, ort_ops
from fanin.export.onnx_op import condensed_layer_model

from ..onnx_file._encoding import (
    END_GROUP,
    GROUP,
    adding_model,
    entry,
    external_tensor,
    number_field,
    tag,
    with_tensor,
)
from .test_version_matrix import LAYER, RELEASES, needs_old_python, python_of, weight_of

pytestmark = pytest.mark.matrix

# Prints the failing checks, and the outcome of each model.
PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np, onnxruntime
from fanin.deploy import SessionError, open_session
from fanin.deploy.doctor import run_checks

outcomes = {}
for model in sorted(Path(sys.argv[1]).glob("*.onnx")):
    options = onnxruntime.SessionOptions()
    try:
        for _ in range(2):
            session = open_session(model, threads=1, options=options)
        outcomes[model.stem] = session.run(None, {"x": np.ones((2, 400), np.float32)})[0].shape
    except SessionError as error:
        outcomes[model.stem] = [error.node, str(error)]
failed = [f"{check.name}: {check.detail}" for check in run_checks() if not check.ok]
print(json.dumps([failed, outcomes]))
"""


@pytest.fixture
def package(tmp_path) -> Path:
    """A folder with fanin.deploy and what it imports, as in a minimal installation."""
    root = tmp_path / "site" / "fanin"
    root.mkdir(parents=True)
    (root / "__init__.py").touch()
    for part in (deploy, onnx_file, _base, ort_ops):
        name = part.__name__.rpartition(".")[2]
        for folder in part.__path__:
            ignored = shutil.ignore_patterns("csrc", "__pycache__")
            shutil.copytree(folder, root / name, ignore=ignored, dirs_exist_ok=True)
    return root.parent


@pytest.fixture
def models(tmp_path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    model = condensed_layer_model(weight_of(LAYER), None)
    onnx.save(model, folder / "sound.onnx")
    del model.functions[:]
    for name, domain in (("wrong-domain", "ai.fanim"), ("no-domain", "")):
        model.graph.node[0].domain = domain
        onnx.save(model, folder / f"{name}.onnx")
    model = condensed_layer_model(weight_of(LAYER), None)
    model.graph.node[0].input[4] = "bias"
    onnx.save(model, folder / "wrong-type.onnx")
    model.graph.node[0].input[4] = "rows"
    in_features = next(one for one in model.graph.node[0].attribute if one.name == "in_features")
    in_features.i = 7
    onnx.save(model, folder / "unsound.onnx")
    model.ir_version = 99
    onnx.save(model, folder / "future.onnx")
    onnx.save(model, folder / "data.onnx", save_as_external_data=True, location="gone")
    (folder / "gone").unlink()
    (folder / "garbage.onnx").write_bytes(b"garbage")
    return folder


def run_in(release: str, package: Path, models: Path) -> tuple[list[str], dict]:
    done = subprocess.run(
        [python_of(release), "-c", PROGRAM, models],
        env={"PYTHONPATH": str(package)},
        cwd=models,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("release", RELEASES)
def test_sessions_open_errors_explain_and_the_doctor_reports_no_problem(release, package, models):
    failed, outcomes = run_in(release, package, models)
    assert failed == []
    assert outcomes.pop("sound") == [2, LAYER.out_features]
    for name, (node, words) in {
        "wrong-domain": ("layer", "in domain 'ai.fanim'"),
        "no-domain": ("layer", "in domain ''"),
        "wrong-type": ("layer", "'tensor(float)' of input parameter"),
        "unsound": ("layer", "in_features, which is 7"),
        "future": (None, "IR version is 99"),
        "data": (None, "external data is missing: gone"),
        "garbage": (None, "not an ONNX file"),
    }.items():
        found_node, text = outcomes.pop(name)
        assert found_node == node, text
        assert words in text
    assert not outcomes


@pytest.fixture
def attacks(tmp_path) -> Path:
    """Models that refer to files outside their folder, each in another way."""
    (tmp_path / "secret").write_bytes(bytes(16))
    folder = tmp_path / "attacks"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    os.symlink(b"../secret", os.fsencode(folder) + b"/\xff")

    def save(name: str, content: bytes) -> None:
        (folder / f"{name}.onnx").write_bytes(content)

    plain = adding_model(external_tensor("../secret")).SerializeToString()
    bare = TensorProto(name="W", data_type=1, dims=[4], data_location=1).SerializeToString()
    save("plain", plain)
    save("group", plain + tag(2000, GROUP) + tag(2000, END_GROUP))
    save("number", number_field(7, 5) + plain)
    save("not-utf8", with_tensor(bare + entry("location", b"\xff")))
    save("two", with_tensor(bare + entry("location", "../secret") + entry("location", "pipe")))
    save("pipe", adding_model(external_tensor("pipe")).SerializeToString())
    address = external_tensor("*/_ORT_MEM_ADDR_/*", offset="4096", length="16")
    save("address", adding_model(address).SerializeToString())
    default = helper.make_node("Constant", [], ["c"])
    default.attribute.add(name="value", ref_attr_name="v", type=4)
    function = helper.make_function(
        "f",
        "F",
        ["a"],
        ["b"],
        [default, helper.make_node("Add", ["a", "c"], ["b"])],
        [helper.make_opsetid("", 17)],
        attribute_protos=[helper.make_attribute("v", external_tensor("../secret"))],
    )
    model = adding_model()
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("f", 1))
    model.graph.node[0].CopyFrom(helper.make_node("F", ["x"], ["y"], domain="f"))
    model.ir_version = 9
    save("default", model.SerializeToString())
    return folder


@pytest.mark.parametrize("release", RELEASES)
def test_models_that_refer_outside_their_folder_are_refused_on_every_release(
    release, package, attacks
):
    """Up to 1.23, the runtime alone opens these models, crashes, or hangs."""
    _, outcomes = run_in(release, package, attacks)
    assert {name: node for name, (node, _) in outcomes.items()} == dict.fromkeys(
        ["plain", "group", "number", "not-utf8", "two", "pipe", "address", "default"]
    )
    for name, words in {
        "plain": "outside of the model's folder",
        "group": "protobuf group",
        "number": "a different type than in ONNX",
        "not-utf8": "not UTF-8",
        "two": "outside of the model's folder",
        "pipe": "not a regular file",
        "address": "no file's name",
        "default": "outside of the model's folder",
    }.items():
        assert words in outcomes[name][1]


@needs_old_python
def test_an_older_runtime_is_refused_before_anything_is_loaded(package, models):
    failed, outcomes = run_in("1.16.3", package, models)
    assert any("onnxruntime 1.16.3 is too old" in line for line in failed)
    assert "1.16.3 is too old" in outcomes["sound"][1]
