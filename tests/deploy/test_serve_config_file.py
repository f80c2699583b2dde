"""Options of the server from a TOML file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ._serving import call, gain_model, requires_serving, save

requires_serving()

from fanin.deploy.serve import ServeSettings, SettingsError  # noqa: E402
from fanin.deploy.serve.config_file import read_config  # noqa: E402


def read(tmp_path, text):
    path = tmp_path / "server.toml"
    path.write_text(text, encoding="utf-8")
    return read_config(path)


def test_options_have_the_names_of_the_command_line(tmp_path):
    values = read(
        tmp_path,
        """
        models = ["a=a.onnx", "b/1.onnx", "/abs/c.onnx"]
        model-repository = "repository"
        custom-op-library = ["libmine.so"]
        grpc-port = 8001
        batch-delay = 1
        access-log = true
        host = "::1"
        """,
    )
    assert values == {
        "models": [f"a={tmp_path}/a.onnx", f"{tmp_path}/b/1.onnx", "/abs/c.onnx"],
        "model_repository": f"{tmp_path}/repository",
        "custom_op_libraries": [f"{tmp_path}/libmine.so"],
        "grpc_port": 8001,
        "batch_delay": 1,
        "access_log": True,
        "host": "::1",
    }


def test_a_byte_order_mark_is_passed_over(tmp_path):
    assert read(tmp_path, "\ufeffport = 1") == {"port": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pot = 1", "unknown option 'pot'. Did you mean 'port'"),
        ("grpc_port = 1", "unknown option 'grpc_port'. Did you mean 'grpc-port'"),
        ('token = "x"', "a token is not read from a file: set FANIN_SERVE_TOKEN"),
        ('port = "8000"', "port is '8000', not a whole number"),
        ("port = 1.5", "port is 1.5, not a whole number"),
        ("port = true", "port is True, not a whole number"),
        ("access-log = 1", "access-log is 1, not true or false"),
        ('models = "m.onnx"', "models is not a list of strings"),
        ("models = [1]", "models is not a list of strings"),
        ("[server]\nport = 1", "unknown option 'server'"),
        ("port = ", "is not TOML"),
        (r'host = "a\u0000"', "host has a NUL character"),
        (r'models = ["a\u0000"]', "models has a NUL character"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, text, said):
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)
    assert "server.toml" in str(caught.value)


def test_a_path_may_have_an_equals_sign(tmp_path):
    text = 'model-repository = "stage=1/models"\ncustom-op-library = ["stage=1/a.so", "b=2.so"]'
    assert read(tmp_path, text) == {
        "model_repository": f"{tmp_path}/stage=1/models",
        "custom_op_libraries": [f"{tmp_path}/stage=1/a.so", f"{tmp_path}/b=2.so"],
    }
    assert read(tmp_path, 'model-repository = "b=2"') == {"model_repository": f"{tmp_path}/b=2"}


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"--config: s3://b/server\.toml is no local path"):
        read_config(Path("s3://b/server.toml"))
    with pytest.raises(SettingsError, match=r"absent\.toml: No such file"):
        read_config(tmp_path / "absent.toml")
    with pytest.raises(SettingsError, match="Is a directory"):
        read_config(tmp_path)
    with pytest.raises(SettingsError, match="is no local path"):
        ServeSettings.from_dict(read(tmp_path, 'models = ["m=s3://b/m.onnx"]'))


def test_ranges_are_those_of_the_options(tmp_path):
    with pytest.raises(SettingsError, match="--port is too large; it may be 0 to 65535"):
        ServeSettings.from_dict(read(tmp_path, f'models = ["m.onnx"]\nport = 1{"0" * 400}'))
    with pytest.raises(SettingsError, match="--queue is -1"):
        ServeSettings.from_dict({"models": ["m.onnx"], **read(tmp_path, "queue = -1")})


def test_the_command_line_wins(tmp_path, start):
    save(gain_model(3), tmp_path / "m.onnx")
    (tmp_path / "server.toml").write_text(
        'models = ["m=m.onnx"]\nport = 1\ntrial-timeout = 30\naccess-log = true\nmax-batch = 4\n'
        "threads = 1\npoll = 0\n"
    )
    with start("--config", tmp_path / "server.toml", "--max-batch", 1, "--no-access-log") as server:
        status, body = call(server, "GET", "/v2/models/m/config")
        assert status == 200
        assert json.loads(body)["max_batch_size"] == 0  # 1 of the command line, its default
        assert json.loads(body)["parameters"]["intra_op_thread_count"]["string_value"] == "1"
        assert server.events("request") == []


def test_a_command_without_a_model_says_what_to_give():
    done = subprocess.run([sys.executable, "-m", "fanin", "serve"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "there is no model to serve: name one, or a folder of them" in done.stderr
