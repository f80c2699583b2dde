"""KServe's Python client: recorded requests, and with the marker ``matrix`` the client itself.

It is no dependency of ours: it brings 450 MB (kubernetes, pandas, gRPC) and keeps psutil below 6
and pandas below 3.
"""

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from .._waiting import PATIENCE
from ._serving import HEADER, REPOSITORY, Server, gain_model, post, requires_serving, save

requires_serving()

CACHE = REPOSITORY / ".cache"
PROGRAM = Path(__file__).with_name("_kserve_client.py")
X = np.arange(8, dtype=np.float32).reshape(2, 4)
INFER = "/v2/models/m/infer"

# What kserve 0.21.0 sends for the requests of _kserve_client.py: JSON, binary data.
INPUT = b'{"id":"7","model_name":"m","inputs":[{"name":"x","shape":[%d,4],"datatype":"FP32",'
VALUES = b'"data":[0.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0]}]}'
SENT = {
    "json": (INPUT % 2 + VALUES, b""),
    "array": (INPUT % 2 + VALUES, b""),
    "binary": (INPUT % 2 + b'"parameters":{"binary_data_size":32}}]}', X.tobytes()),
    "parameters": (
        INPUT % 2
        + b'"parameters":{"content_type":"np","weight":0.5,"binary_data_size":32}}],'
        + b'"outputs":[{"name":"y","parameters":{"binary_data":true,"label":"a"}}],'
        + b'"parameters":{"tenant":"a","retries":3,"binary_data_output":false}}',
        X.tobytes(),
    ),
    "empty json": (INPUT % 0 + b'"data":[]}]}', b""),
    "empty binary": (INPUT % 0 + b'"parameters":{"binary_data_size":0},"data":null}]}', b""),
    "nan": (INPUT % 1 + b'"data":[null,null,null,null]}]}', b""),
}


def headers(name):
    head, binary = SENT[name]
    if not binary:
        return {"content-type": "application/json"}
    return {"content-type": "application/octet-stream", HEADER: str(len(head))}


@pytest.mark.parametrize("name", [name for name in SENT if name != "nan"])
def test_recorded_requests_of_the_client_are_answered(serving, name):
    answer = post(serving(min_dimension=0), INFER, b"".join(SENT[name]), headers(name))
    assert answer.status == 200, answer.body
    expected = X[:0] if name.startswith("empty") else 3 * X
    assert answer.array().shape == expected.shape
    assert (answer.array() == expected).all()
    end = int(answer.headers.get(HEADER.lower(), len(answer.body)))
    assert json.loads(answer.body[:end])["id"] == "7"
    assert (HEADER.lower() in answer.headers) == (name == "parameters")


def test_null_for_nan_is_refused_with_a_remedy(serving):
    answer = post(serving(), INFER, b"".join(SENT["nan"]), headers("nan"))
    assert answer.status == 400
    assert "FP32 takes numbers, not null; NaN and infinity go as binary data" in answer.error


def identity_model():
    """Returns one tensor of two elements per type, named after the type."""
    types = {"BOOL": "BOOL", "INT64": "INT64", "FP16": "FLOAT16", "BYTES": "STRING"}

    def infos(mark):
        return [
            helper.make_tensor_value_info(mark + name, getattr(TensorProto, of), [2])
            for name, of in types.items()
        ]

    nodes = [helper.make_node("Identity", [name], [f"of {name}"]) for name in types]
    graph = helper.make_graph(nodes, "test", infos(""), infos("of "))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.fixture(scope="module")
def kserve_python():
    """The interpreter of an environment with kserve, created on demand."""
    folder = CACHE / f"kserve-py{sys.version_info.major}.{sys.version_info.minor}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "kserve"], check=True)
        complete.touch()
    return python


@pytest.mark.matrix
def test_the_client_itself(tmp_path, kserve_python):
    """The client's view of health and inference; it still sends what is recorded above."""
    models = [f"m={save(gain_model(3), tmp_path / 'm.onnx')}"]
    models += [f"types={save(identity_model(), tmp_path / 'types.onnx')}"]
    options = ("--threads", 1, "--min-dimension", 0)
    with Server(*models, *options, log=tmp_path / "server.log") as server:
        command = [kserve_python, PROGRAM, f"http://{server.address}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["health"] == {"live": True, "ready": True, "m ready": True, "n ready": False}
    for name, (head, binary) in SENT.items():
        sent = told["infer"][name]["sent"]
        assert sent.pop("body").encode("latin-1") == head + binary, name
        assert sent == {key.lower(): value for key, value in headers(name).items()}, name
    got = {name: request["got"] for name, request in told["infer"].items()}
    right = {"id": "7", "outputs": [["y", [2, 4], (3 * X).ravel().tolist()]]}
    assert got["json"] == got["array"] == got["binary"] == got["parameters"] == right
    assert got["dict"] == {**right, "id": None}
    assert got["empty json"] == got["empty binary"] == {"id": "7", "outputs": [["y", [0, 4], []]]}
    assert "NaN and infinity go as binary data" in got["nan"]["error"]
    assert got["types"]["outputs"] == [
        ["of BOOL", [2], [True, False]],
        ["of INT64", [2], [2**62 + 1, -1]],
        ["of FP16", [2], [0.5, 65504.0]],
        ["of BYTES", [2], ["é", ""]],
    ]


@pytest.mark.matrix
def test_the_manifests_have_fields_that_kserve_knows(kserve_python, tmp_path):
    program = PROGRAM.with_name("_kserve_manifests.py")
    manifests = (REPOSITORY / "examples" / "serving" / "kserve.yaml").read_text()

    def read(text):
        (tmp_path / "kserve.yaml").write_text(text)
        command = [kserve_python, program, tmp_path / "kserve.yaml"]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)

    done = read(manifests)
    assert done.stdout.split() == ["ServingRuntime", "InferenceService"], done.stderr
    for right, wrong in (("storageUri:", "storageURL:"), ("minReplicas: 1", "minReplicas: one")):
        assert "InferenceService" in read(manifests.replace(right, wrong)).stderr
