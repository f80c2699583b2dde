"""Addresses of object stores are refused by name wherever a path is taken."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fanin._base.atomic import output_folder, output_path
from fanin._base.local_paths import RemotePathError, is_file, refuse_address
from fanin.deploy import SessionError, open_session
from fanin.deploy.serve import ModelSource, ServeSettings, SettingsError
from fanin.ort_ops.custom_libraries import library_paths


@pytest.mark.parametrize(
    "path",
    ["s3://b/m.onnx", "gs://b/m", "https://host/m.onnx", "hf://a/b", Path("s3://b/m.onnx")],
)
def test_an_address_is_refused(path):
    with pytest.raises(RemotePathError, match=r"^[a-z0-9]+://.* is no local path.*init container"):
        refuse_address(path)


@pytest.mark.parametrize(
    "path", ["m.onnx", "/a/b:c/m", "C:/m.onnx", "a b://c", ":/x", "x:y/z", b"s3://b"]
)
def test_local_paths_are_accepted(path):
    refuse_address(path)


def test_the_address_of_a_local_file_needs_no_download():
    with pytest.raises(RemotePathError, match=r"^file:///m\.onnx .* without file://$"):
        refuse_address("file:///m.onnx")


def test_a_folder_of_that_name_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "b").mkdir(parents=True)
    refuse_address("s3:/b")
    assert output_path("s3://b/m.onnx") == Path("s3:/b/m.onnx")


def test_sessions_servers_and_exports_refuse_it(tmp_path, monkeypatch):
    from fanin.export import convert
    from fanin.trainer.recipe import load_recipe

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SessionError, match=r"s3://b/m\.onnx is no local path"):
        open_session("s3://b/m.onnx")
    with pytest.raises(SettingsError, match=r"gs://b/m\.onnx is no local path"):
        ModelSource.parse("m=gs://b/m.onnx")
    with pytest.raises(SettingsError, match=r"--model-repository: gs://b is no local path"):
        ServeSettings((), model_repository="gs://b")
    with pytest.raises(FileNotFoundError, match=r"s3://b/in\.onnx is no local path"):
        convert("s3://b/in.onnx", tmp_path / "out.onnx")
    (tmp_path / "in.onnx").write_bytes(np.zeros(8).tobytes())
    with pytest.raises(FileNotFoundError, match=r"s3://b/out\.onnx is no local path"):
        convert(tmp_path / "in.onnx", "s3://b/out.onnx")
    with pytest.raises(FileNotFoundError, match=r"s3://b/run is no local path"):
        output_folder("s3://b/run")
    with pytest.raises(FileNotFoundError, match=r"s3://b/recipe\.toml is no local path"):
        load_recipe("s3://b/recipe.toml")
    with pytest.raises(ValueError, match=r"library s3://b/lib\.so is no local path"):
        library_paths(["s3://b/lib.so"])
    assert not (tmp_path / "s3:").exists()


@pytest.mark.parametrize(
    ("command", "address"),
    [
        (("export", "s3://b/run", "-o", "m.onnx"), "s3://b/run"),
        (("serve", "m=https://b/m.onnx"), "https://b/m.onnx"),
        (("calibrate", "-o", "s3://b/x.json"), "s3://b/x.json"),
        (("calibrate", "--device", "cuda", "-o", "s3://b/x.json"), "s3://b/x.json"),
        (("triton-repo", "m.onnx", "-o", "s3://b/models"), "s3://b/models"),
        (("bench", "page", "s3://b/results", "-o", "x.html"), "s3://b/results"),
    ],
)
def test_commands_name_the_address(command, address, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fanin", *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"{address} is no local path" in done.stderr + done.stdout
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_looked_up_is_not_called_absent(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "dead").symlink_to(tmp_path / "absent")
    found = {name: is_file(tmp_path / name) for name in ("file", "link", "dead", "file/x", ".")}
    assert found == {"file": True, "link": True, "dead": False, "file/x": False, ".": False}
    with pytest.raises(OSError, match="File name too long"):
        is_file(tmp_path / ("n" * 300))

    def closed(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", closed)
    with pytest.raises(PermissionError):
        is_file("file")
