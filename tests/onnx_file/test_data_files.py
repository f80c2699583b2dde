"""Weights are read only from regular files in the model's folder."""

import os
from pathlib import Path

import pytest

from fanin.onnx_file import DataFileError, ModelFileError, external_files, read_checked

from ._encoding import adding_model, external_tensor


@pytest.fixture
def folder(tmp_path):
    """The model's folder, with a data file and a subfolder, next to a secret file."""
    (tmp_path / "secret").write_bytes(bytes(16))
    folder = tmp_path / "models"
    (folder / "inner").mkdir(parents=True)
    (folder / "data").write_bytes(bytes(16))
    (folder / "inner" / "data").write_bytes(bytes(16))
    return folder


def check(folder, *locations, **more):
    path = folder / "m.onnx"
    tensors = [external_tensor(location, **more) for location in locations]
    path.write_bytes(adding_model(*tensors).SerializeToString())
    return external_files(path, read_checked(path))


@pytest.mark.parametrize("location", ["data", "./data", "inner/data", "inner//data", "not there"])
def test_a_file_in_the_folder_may_hold_the_weights(folder, location):
    assert check(folder, location) == [folder / location]


def test_a_link_may_stay_in_the_folder(folder):
    (folder / "link").symlink_to("inner/data")
    (folder / "in").symlink_to("inner")
    assert check(folder, "link", "in/data") == [folder / "in" / "data", folder / "link"]


def test_the_models_folder_may_be_reached_by_a_link(folder):
    (folder.parent / "current").symlink_to("models")
    (name,) = check(folder.parent / "current", "data")
    assert name == folder.parent / "current" / "data"


def hugging_face_cache(folder):
    """Move a model and its data into blobs, and leave links; returns the model's."""
    blobs, snapshot = folder.parent / "blobs", folder.parent / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for name in ("m.onnx", "data"):
        (folder / name).rename(blobs / f"hash-of-{name}")
        (snapshot / name).symlink_to(f"../../blobs/hash-of-{name}")
    return snapshot / "m.onnx"


def test_a_model_and_its_data_may_be_links_into_one_folder(folder):
    check(folder, "data")
    model = hugging_face_cache(folder)
    assert external_files(model, read_checked(model)) == [model.parent / "data"]


def test_a_linked_model_gives_no_way_to_other_folders(folder):
    check(folder, "data")
    model = hugging_face_cache(folder)
    for target in ("../../secret", "../../blobs/inner/file"):
        (folder.parent / "blobs" / "inner").mkdir(exist_ok=True)
        (folder.parent / "blobs" / "inner" / "file").write_bytes(bytes(16))
        (model.parent / "data").unlink()
        (model.parent / "data").symlink_to(target)
        with pytest.raises(DataFileError, match="outside"):
            read_checked(model)


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "//etc/passwd",
        "../secret",
        "inner/../../secret",
        "inner/../data",
        "..",
        "..\\secret",
        "C:secret",
        "C:\\secret",
        "\\\\host\\share\\secret",
        "link",
        "chain",
        "out/secret",
    ],
)
def test_a_location_outside_is_refused(folder, location):
    (folder / "link").symlink_to("../secret")
    (folder / "chain").symlink_to("link")
    (folder / "out").symlink_to("..")
    with pytest.raises(DataFileError) as caught:
        check(folder, location)
    assert str(caught.value) == (
        f"the weights of 'W' lie outside of the model's folder: {location!r}"
    )


def test_every_location_is_checked(folder):
    with pytest.raises(DataFileError, match=r"outside.*secret"):
        check(folder, "data", "../secret", "data")


@pytest.mark.parametrize(
    "location", ["", "data\0", "*/_ORT_MEM_ADDR_/*", "*/_ORT_NATIVE_ENDIAN_MEM_ADDR_/*"]
)
def test_a_location_that_is_no_path_is_refused(folder, location):
    """After its own prefix, ONNX Runtime takes the offset for an address and reads there."""
    with pytest.raises(DataFileError, match="no file's name as their location"):
        check(folder, location, offset="4096", length="16")


def test_what_is_not_a_regular_file_is_refused(folder):
    os.mkfifo(folder / "pipe")
    for location in ("pipe", "inner", "."):
        with pytest.raises(DataFileError, match="not a regular file"):
            check(folder, location)


def test_an_inaccessible_data_file_is_refused(folder):
    (folder / "loop").symlink_to("loop")
    with pytest.raises(DataFileError, match=r"loop of links|Too many levels"):
        check(folder, "loop")
    with pytest.raises(DataFileError, match="File name too long"):
        check(folder, "a" * 5000)


def test_the_name_of_a_data_file_is_utf8(folder):
    """Decoded with replacement characters, the link would look like a missing file."""
    os.symlink(b"../secret", os.fsencode(folder) + b"/\xff")
    content = adding_model(external_tensor("LOCATION")).SerializeToString()
    path = folder / "m.onnx"
    path.write_bytes(content.replace(b"LOCATION", b"\xff" + b"/" * 7))
    with pytest.raises(ModelFileError, match="data file of 'W' is not UTF-8"):
        read_checked(path)


def test_names_in_other_scripts_are_taken(folder):
    (folder / "poids-été-重み").write_bytes(bytes(16))
    assert check(folder, "poids-été-重み") == [folder / "poids-été-重み"]


def test_a_model_in_the_current_folder_is_checked(folder, monkeypatch):
    check(folder, "data")
    monkeypatch.chdir(folder)
    read_checked(Path("m.onnx"))
    (folder / "data").unlink()
    (folder / "data").symlink_to("../secret")
    with pytest.raises(DataFileError):
        read_checked(Path("m.onnx"))
