"""Which versions are served, and what happens when files change, break or vanish."""

import os
import threading

import numpy as np
import onnx
import pytest

from fanin.deploy import SessionError
from fanin.deploy.serve import ModelSource, ServeSettings, SettingsError
from fanin.deploy.serve import versions as version_files
from fanin.deploy.serve.errors import RequestError
from fanin.deploy.serve.repository import Repository

from .._waiting import PATIENCE, wait_until
from ._serving import gain_model, save


def repository(*sources, observer=lambda *_: None, **settings):
    models = tuple(ModelSource.parse(str(source)) for source in sources)
    found = Repository(ServeSettings(models, **settings), observer)
    found.open()
    return found


def gain(repository, name="m", version=None):
    """The gain of the served model, which tells the file it was loaded from."""
    model = repository.find(name, version)
    job = model.scheduler.submit({"x": np.ones((1, 4), np.float32)}, ["y"])
    return job.future.result(PATIENCE)[0][0, 0]


def look_twice(repository):
    """Refresh twice: a change is loaded once two polls have seen the same files."""
    repository.refresh()
    repository.refresh()


def states(repository):
    return {(row["version"], row["state"]): row["reason"] for row in repository.index()}


@pytest.fixture
def versions(tmp_path):
    """A folder m with version 1 (gain 1)."""
    save(gain_model(1), tmp_path / "m" / "1" / "model.onnx")
    return tmp_path / "m"


def test_a_file_is_version_1_and_its_name_is_the_files(tmp_path):
    found = repository(save(gain_model(3), tmp_path / "net.onnx"))
    assert found.versions("net") == ["1"]
    assert gain(found, "net") == 3
    found.close()


def test_the_newest_number_serves_and_other_folders_do_not(versions):
    save(gain_model(9), versions / "9" / "model.onnx")
    save(gain_model(10), versions / "10" / "model.onnx")
    for name in (".incoming", "011", "latest", "0", "-3"):
        save(gain_model(99), versions / name / "model.onnx")
    found = repository(versions)
    assert found.versions("m") == ["10"]
    assert gain(found) == 10
    with pytest.raises(RequestError, match="serves version 10, not '1'") as caught:
        found.find("m", "1")
    assert caught.value.status == 404
    found.close()


def test_several_versions_serve_side_by_side(versions):
    for number in (2, 3):
        save(gain_model(number), versions / str(number) / "model.onnx")
    found = repository(versions, versions=2)
    assert found.versions("m") == ["3", "2"]
    assert (gain(found), gain(found, version="2")) == (3, 2)
    found.close()


def test_a_new_version_is_loaded_and_the_old_one_freed(versions):
    found = repository(versions)
    save(gain_model(2), versions / "2" / "model.onnx")
    found.refresh()
    assert gain(found) == 1  # it may still be incomplete
    found.refresh()
    assert gain(found) == 2
    assert found.versions("m") == ["2"]
    found.close()


def test_a_changed_file_is_reloaded_and_an_unchanged_one_is_not(versions):
    found = repository(versions)
    first = found.find("m")
    look_twice(found)
    assert found.find("m") is first
    save(gain_model(7), versions / "1" / "model.onnx")
    look_twice(found)
    assert gain(found) == 7
    found.close()


def test_changed_external_data_are_reloaded(versions):
    def write(value):
        model = gain_model(value, width=1024)
        onnx.save(
            model,
            versions / "1" / "model.onnx",
            save_as_external_data=True,
            location=f"data{value}",
            size_threshold=0,
        )

    write(2)
    found = repository(versions)
    model = found.find("m")

    def answer():
        job = found.find("m").scheduler.submit({"x": np.ones((1, 1024), np.float32)}, ["y"])
        return job.future.result(PATIENCE)[0][0, 0]

    assert answer() == 2
    replacement = versions / "1" / ".data"
    replacement.write_bytes(np.full(1024, 5, np.float32).tobytes())
    replacement.rename(versions / "1" / "data2")
    look_twice(found)
    assert found.find("m") is not model
    assert answer() == 5
    found.close()


@pytest.mark.parametrize("how", ["garbage", "empty", "cut off", "unreadable type", "gone"])
def test_a_bad_replacement_leaves_the_old_version_serving_and_shows_why(versions, how):
    seen = []
    found = repository(versions, observer=lambda *told: seen.append(told))
    path = versions / "1" / "model.onnx"
    sound = path.read_bytes()
    contents = {"garbage": b"garbage" * 99, "empty": b"", "cut off": sound[: len(sound) // 2]}
    if how in contents:
        path.write_bytes(contents[how])
    elif how == "gone":
        path.unlink()
    else:
        model = gain_model(3)
        for tensor in (*model.graph.input, *model.graph.output, *model.graph.initializer):
            if hasattr(tensor, "data_type"):
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones(4, np.float32), tensor.name))
                tensor.data_type = onnx.TensorProto.BFLOAT16
                tensor.raw_data = tensor.raw_data[:8]
            else:
                tensor.type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
        save(model, path)
    look_twice(found)
    assert gain(found) == 1
    reason = states(found)[("1", "READY")]
    assert str(path) in reason
    failures = [told for told in seen if told[2] is not None]
    assert len(failures) == 1
    look_twice(found)
    assert len([told for told in seen if told[2] is not None]) == 1  # no retry of the same file
    with pytest.raises(RequestError, match="version 1 is still served"):
        found.load("m")
    save(gain_model(4), path)
    look_twice(found)
    assert gain(found) == 4
    assert states(found) == {("1", "READY"): ""}
    found.close()


def test_a_bad_new_version_leaves_the_older_one_serving(versions):
    found = repository(versions)
    (versions / "2").mkdir()
    (versions / "2" / "model.onnx").write_bytes(b"garbage")
    look_twice(found)
    assert gain(found) == 1
    assert "not an ONNX" in states(found)[("2", "UNAVAILABLE")]
    found.close()


def test_a_folder_that_vanishes_leaves_the_model_serving(versions):
    seen = []
    found = repository(versions, observer=lambda *told: seen.append(told))
    versions.rename(versions.with_name("away"))
    look_twice(found)
    assert gain(found) == 1
    reason = "its files are missing or inaccessible"
    assert states(found) == {("1", "READY"): reason}
    assert [(*told, str(failure)) for *told, failure in seen] == [
        ("m", "1", "None"),
        ("m", "1", reason),
    ]
    versions.with_name("away").rename(versions)
    look_twice(found)
    assert states(found) == {("1", "READY"): ""}
    found.close()


@pytest.mark.parametrize("kind", ["folder", "dangling link", "loop", "device", "pipe"])
def test_something_else_in_the_place_of_a_file_leaves_the_model_serving(tmp_path, kind):
    path = save(gain_model(1), tmp_path / "m.onnx")
    found = repository(path)
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # reading it would block
    else:
        target = {"dangling link": "nowhere", "loop": path.name, "device": "/dev/zero"}[kind]
        path.symlink_to(target)
    look_twice(found)
    assert gain(found) == 1
    assert states(found)[("1", "READY")]
    path.rmdir() if kind == "folder" else path.unlink()
    save(gain_model(2), path)
    look_twice(found)
    assert gain(found) == 2
    assert states(found) == {("1", "READY"): ""}
    found.close()


def test_a_folder_that_may_not_be_entered_is_looked_at_again(tmp_path, monkeypatch):
    path = save(gain_model(1), tmp_path / "m.onnx")
    found = repository(path)
    stat = os.stat

    def denied(item, **more):
        if str(item) == str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(item, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", denied)
        look_twice(found)
    assert gain(found) == 1
    assert "permission denied" in states(found)[("1", "READY")]
    save(gain_model(2), path)
    look_twice(found)
    assert gain(found) == 2
    found.close()


def test_a_failing_refresh_of_one_model_does_not_affect_others(tmp_path, monkeypatch, caplog):
    paths = [save(gain_model(1), tmp_path / f"{name}.onnx") for name in "am"]
    found = repository(*paths)
    save(gain_model(2), paths[1])
    monkeypatch.setattr(found._entries["a"]._finder, "find", lambda: 1 / 0)
    look_twice(found)
    assert gain(found, "m") == 2
    assert "checking 'a' for changes failed" in caplog.text
    found.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_model_is_named(versions):
    (versions / "1" / "model.onnx").chmod(0)
    with pytest.raises(SessionError, match="permission denied"):
        repository(versions)


@pytest.mark.parametrize(
    ("location", "shown"),
    [("../outside", "../outside"), ("/etc/hostname", "/etc/hostname"), ("link", "link")],
)
def test_external_data_outside_of_the_models_folder_are_refused(versions, location, shown):
    outside = versions / "outside"
    outside.write_bytes(np.ones(4, np.float32).tobytes())
    (versions / "1" / "link").symlink_to(outside)
    (versions / "1" / "model.onnx").write_bytes(wanting(location))
    with pytest.raises(SessionError, match="outside of the model's folder") as caught:
        repository(versions)
    assert shown in str(caught.value)


def stored(content):
    return lambda folder: folder.mkdir() or (folder / "model.onnx").write_bytes(content)


def wanting(location):
    """Save a model with its weights in a data file of this name."""
    model = gain_model(1)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return model.SerializeToString()


SPOILT = {
    "opset import of a different type": stored(
        gain_model(2).SerializeToString() + b"\x42\x03\x12\x01x"
    ),
    "group": stored(gain_model(2).SerializeToString() + b"\x83\x7d\x84\x7d"),
    "zero byte in a location": stored(wanting("a\0b")),
    "location that is too long": stored(wanting("a" * 5000)),
    "empty file": stored(b""),
    "pipe": lambda folder: folder.mkdir() or os.mkfifo(folder / "model.onnx"),
    "folder as the model": lambda folder: (folder / "model.onnx").mkdir(parents=True),
    "loop of links": lambda folder: (
        folder.mkdir() or (folder / "model.onnx").symlink_to("model.onnx")
    ),
    "link to nowhere": lambda folder: folder.symlink_to("a" * 4000),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_one_spoilt_version_stops_neither_reloads_nor_a_restart(versions, spoil):
    found = repository(versions)
    spoil(versions / "2")
    look_twice(found)
    assert found.versions("m") == ["1"]
    found.close()
    found = repository(versions)
    assert found.versions("m") == ["1"]
    save(gain_model(3), versions / "3" / "model.onnx")
    look_twice(found)
    assert (found.versions("m"), gain(found)) == (["3"], 3)
    found.close()


def test_no_error_from_reading_one_version_stops_the_others(versions, monkeypatch):
    """Whatever the error: a version that cannot be scanned must not affect the others."""
    read = version_files.read_model_file

    def fails(path):
        if path.parent.name == "2":
            raise RecursionError("deep")
        return read(path)

    monkeypatch.setattr(version_files, "read_model_file", fails)
    save(gain_model(2), versions / "2" / "model.onnx")
    save(gain_model(3), versions / "3" / "model.onnx")
    found = repository(versions, versions=3)
    assert found.versions("m") == ["3", "2", "1"]
    found.close()


def test_unloading_frees_and_loading_brings_back(versions):
    found = repository(versions)
    found.unload("m")
    assert states(found) == {("", "UNAVAILABLE"): "unloaded"}
    with pytest.raises(RequestError, match="POST /v2/repository/models/m/load") as caught:
        found.find("m")
    assert caught.value.status == 404
    look_twice(found)
    with pytest.raises(RequestError):
        found.find("m")
    save(gain_model(5), versions / "1" / "model.onnx")
    found.load("m")
    assert gain(found) == 5
    found.close()


def test_a_load_that_another_request_undoes_says_so(versions, monkeypatch):
    found = repository(versions)
    entry = found._entries["m"]
    refresh = entry.refresh

    def unloaded_first(**options):
        entry.wanted = False
        refresh(**options)

    monkeypatch.setattr(entry, "refresh", unloaded_first)
    with pytest.raises(RequestError, match="'m' was unloaded by another request") as caught:
        found.load("m")
    assert caught.value.status == 409
    found.close()


def test_names_of_requests_are_never_paths(versions):
    found = repository(versions)
    for name in ("../m", "m/1", str(versions), "", "x" * 500):
        with pytest.raises(RequestError, match="this server has no model") as caught:
            found.find(name)
        assert len(str(caught.value)) < 200
        with pytest.raises(RequestError, match="this server has no model"):
            found.load(name)
    found.close()


def test_no_request_is_lost_while_models_are_replaced(versions):
    """Four clients look up the model and submit, as the app does, during many reloads."""
    from fanin.deploy.serve.errors import SchedulerClosedError

    before_it = set(threading.enumerate())
    found = repository(versions, queue=1000)
    stop, answers, errors = threading.Event(), [], []

    def client():
        while not stop.is_set():
            try:
                answers.append(gain(found))
            except SchedulerClosedError:
                continue
            except Exception as error:
                errors.append(error)
                return

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    for value in range(2, 12):
        save(gain_model(value), versions / "1" / "model.onnx")
        found.load("m")
        before = len(answers)
        wait_until(lambda: errors or len(answers) > before, "a client has an answer")  # noqa: B023
    assert gain(found) == 11
    stop.set()
    for thread in clients:
        thread.join(PATIENCE)
    assert errors == []
    assert set(answers) <= set(range(1, 12))
    found.close()
    assert set(threading.enumerate()) <= before_it


def test_a_model_that_cannot_be_batched_is_refused(tmp_path):
    model = gain_model(1)
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "other"
    path = save(model, tmp_path / "m.onnx")
    with pytest.raises(SessionError, match="serve it without --max-batch"):
        repository(path, max_batch=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ()}, "no model to serve"),
        ({"models": ("a/m.onnx", "b/m.onnx")}, "two models are named 'm'"),
        ({"models": ("a b.onnx",)}, "is not a valid model name"),
        ({"models": ("..=m.onnx",)}, "is not a valid model name"),
        (
            {"max_batch": 2, "batch_delay": 2, "timeout": 2},
            "--batch-delay is 2; it must be below --timeout",
        ),
        ({"port": 70000}, "--port is 70000; it may be 0 to 65535"),
        ({"threads": 0}, "--threads is 0"),
        ({"queue": -1}, "--queue is -1"),
        ({"timeout": float("nan")}, "--timeout is nan, not a number"),
        ({"max_batch": 5000}, "--max-batch is 5000"),
        ({"token": "short"}, "16 or more"),
        ({"log_format": "xml"}, "may be json or text"),
        ({"color": 1}, "unknown setting: color"),
    ],
)
def test_invalid_settings(changes, message):
    with pytest.raises(SettingsError, match=message):
        ServeSettings.from_dict({"models": ["m.onnx"], **changes})


def test_settings_survive_the_way_to_a_worker_and_hide_their_token():
    settings = ServeSettings.from_dict({"models": ["n=m.onnx", "b"], "token": "s" * 20, "queue": 3})
    assert ServeSettings.from_json(settings.to_json()) == settings
    assert "ssss" not in repr(settings)


@pytest.mark.parametrize(
    ("asked", "threads", "runs"),
    [
        ({}, 8, 1),
        ({"workers": 2}, 4, 1),
        ({"threads": 2}, 2, 4),
        ({"concurrency": 4}, 2, 4),
        ({"workers": 3, "threads": 1}, 1, 2),
        ({"threads": 16}, 16, 1),
    ],
)
def test_the_cpus_are_shared_out(monkeypatch, asked, threads, runs):
    from fanin.deploy.serve import settings as module

    monkeypatch.setattr(module, "default_threads", lambda: 8)
    made = ServeSettings.from_dict({"models": ["m.onnx"], **asked})
    assert (made.session_threads, made.runs) == (threads, runs)
