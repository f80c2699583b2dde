"""Small models for the deploy tests, made with onnx alone so that unsound ones can be made too."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ._crashing import compile_library
from ._held import HeldProcess, HeldSession
from ._serving import Server, gain_model, save

WEIGHTS = {
    "values": np.array([[1, 2], [3, 4], [5, 6]], np.float32),
    "indices": np.array([[0, 1], [1, 2], [0, 3]], np.uint16),
    "bias": np.array([0.5, 0, -1, 0], np.float32),
    "rows": np.array([0, 1, 3], np.int32),
    "residual": np.zeros(1, np.float32),
}


def _condensed_model(
    *, domain="ai.fanin", op_type="CondensedGemm", opset_import=True, node="fc1", **weights
):
    arrays = {**WEIGHTS, **weights}
    nodes = [
        helper.make_node(
            op_type, ["X", *arrays], ["Y"], name=node, domain=domain, in_features=4, out_features=4
        )
    ]
    opsets = [helper.make_opsetid("", 20)]
    if opset_import and domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return _model(nodes, arrays, opsets)


def _dense_model(*, noise=0.0, out="Y"):
    weight = np.zeros((4, 4), np.float32)
    for row, columns, values in zip(
        WEIGHTS["rows"], WEIGHTS["indices"], WEIGHTS["values"], strict=True
    ):
        weight[row, columns] = values
    arrays = {"W": weight + np.float32(noise), "bias": WEIGHTS["bias"]}
    nodes = [helper.make_node("Gemm", ["X", "W", "bias"], [out], name="fc1", transB=1)]
    return _model(nodes, arrays, [helper.make_opsetid("", 20)], out)


def _model(nodes, arrays, opsets, out="Y"):
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.fixture
def save_condensed(tmp_path):
    """Save a model of one CondensedGemm (4 → 4, neuron 2 ablated) with changes; gives its path."""

    def save(name="model.onnx", **changes) -> Path:
        onnx.save(_condensed_model(**changes), tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def save_dense(tmp_path):
    """Save the same layer as a dense Gemm; ``noise`` is added to every weight."""

    def save(name="model.dense.onnx", **changes) -> Path:
        onnx.save(_dense_model(**changes), tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def model(tmp_path):
    """A model file that multiplies by 3, where a server looks for version 1 of "m"."""
    return save(gain_model(3), tmp_path / "m" / "1" / "model.onnx")


@pytest.fixture
def start(tmp_path):
    """Make a server process, to be entered; its log is server.log."""

    def make(*arguments, **more):
        return Server(*arguments, log=tmp_path / "server.log", **more)

    return make


@pytest.fixture
def held_runs(tmp_path):
    """A server process of this environment runs its models only once released."""
    runs = HeldProcess(tmp_path, "_run")
    yield runs
    runs.release()


@pytest.fixture
def serving(tmp_path):
    """Make an opened app; it serves m, 3 · x, unless told otherwise."""
    from fanin.deploy.serve import ModelSource, ServeSettings
    from fanin.deploy.serve.app import create_app

    opened = []

    def make(model=None, **settings):
        path = save(model or gain_model(3), tmp_path / "m.onnx")
        sources = (ModelSource("m", path),)
        app = create_app(
            ServeSettings(sources, **{"poll": 0, "threads": 1, "trial_timeout": 0, **settings})
        )
        app.state.fanin.open()
        opened.append(app.state.fanin)
        return app

    yield make
    for state in opened:
        state.close()


@pytest.fixture
def serving_grpc(tmp_path):
    """Make a gRPC server; it serves m, 3 · x, unless told otherwise."""
    from fanin.deploy.serve import ModelSource, ServeSettings

    from ._grpc import GrpcServing

    opened = []

    def make(model=None, **settings):
        sources = ()
        if "model_repository" not in settings:
            sources = (ModelSource("m", save(model or gain_model(3), tmp_path / "m.onnx")),)
        values = {"poll": 0, "threads": 1, "trial_timeout": 0, **settings}
        opened.append(GrpcServing(ServeSettings(sources, **values)))
        return opened[-1]

    yield make
    for server in opened:
        server.close()


@pytest.fixture
def held_grpc(serving_grpc):
    """Make a gRPC server and the session of its model, which runs until released."""
    sessions = []

    def make(**settings):
        server = serving_grpc(**settings)
        sessions.append(HeldSession(server.state))
        return server, sessions[-1]

    yield make
    for session in sessions:
        session.released.set()


@pytest.fixture(scope="session")
def crashing_library(tmp_path_factory):
    """Compile the library of _crashing.py."""
    return compile_library(tmp_path_factory.mktemp("crashing"))


@pytest.fixture
def preloaded(crashing_library, monkeypatch):
    """Let the processes that the test starts have that library."""
    before = os.environ.get("LD_PRELOAD")
    both = f"{before}:{crashing_library}" if before else str(crashing_library)
    monkeypatch.setenv("LD_PRELOAD", both)
