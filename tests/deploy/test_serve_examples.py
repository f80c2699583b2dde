"""The example of a configuration file, and a client of the server that it starts."""

import shutil
import subprocess
import sys

import pytest

from ._serving import REPOSITORY, gain_model, requires_serving, save

requires_serving()
pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[grpc]'")

EXAMPLES = REPOSITORY / "examples" / "serving"


def test_the_configuration_and_the_client(tmp_path, start):
    save(gain_model(3), tmp_path / "models" / "m" / "1" / "model.onnx")
    shutil.copy(EXAMPLES / "server.toml", tmp_path)
    with start("--config", tmp_path / "server.toml", "--grpc-port", 0) as server:
        address = server.events("serving")[0]["grpc"]
        client = [sys.executable, EXAMPLES / "grpc_client.py", address, "m"]
        done = subprocess.run(client, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["y", "[[1.5", "1.5", "1.5", "1.5]]"]
        assert server.wait_for("request")[0]["path"].endswith("/ModelMetadata")
