"""Model repositories: folders of models, their config.pbtxt, and changes while serving."""

import os
import re
import shutil

import numpy as np
import pytest

from ._serving import gain_model, get, json_body, post, requires_serving, save

requires_serving()

from fanin.deploy import SessionError  # noqa: E402
from fanin.deploy.serve import ModelSource, ServeSettings, SettingsError  # noqa: E402
from fanin.deploy.serve.app import create_app  # noqa: E402
from fanin.deploy.serve.text_format import TextFormatError, parse  # noqa: E402
from fanin.deploy.serve.triton import TritonSettings, write_triton_model  # noqa: E402

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def repository(tmp_path):
    """A repository with m (versions 1 and 2: 1 · x and 2 · x) and n (5 · x)."""
    folder = tmp_path / "repository"
    for name, version, gain in (("m", 1, 1), ("m", 2, 2), ("n", 1, 5)):
        save(gain_model(gain), folder / name / str(version) / "model.onnx")
    return folder


@pytest.fixture
def serve(repository):
    """Make an opened app that serves the repository."""
    opened = []

    def make(*models, **settings):
        values = {"poll": 0, "threads": 1, "trial_timeout": 0, **settings}
        app = create_app(ServeSettings(models, model_repository=str(repository), **values))
        opened.append(app.state.fanin)
        app.state.fanin.open()
        return app

    yield make
    for state in opened:
        state.close()


def gain(app, model, version=None, x=X):
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
    answer = post(app, f"{path}/infer", json_body(x))
    return answer.array()[0, 1] if answer.status == 200 else answer.status


def configure(repository, text, model="m"):
    (repository / model / "config.pbtxt").write_text(text, encoding="utf-8")


def rows(app):
    return {
        (row["name"], row["version"]): (row["state"], row["reason"])
        for row in post(app, "/v2/repository/index").json
    }


def test_a_byte_order_mark_before_a_configuration_is_passed_over(serve, repository):
    configure(repository, "\ufeffmax_batch_size: 1")
    app = serve()
    assert get(app, "/v2/models/m/config").json["max_batch_size"] == 1


def test_every_model_in_the_folder_is_served(serve):
    app = serve()
    assert (gain(app, "m"), gain(app, "n")) == (2, 5)
    assert gain(app, "m", "1") == 404  # one version by default
    assert get(app, "/v2/health/ready").status == 200
    assert set(rows(app)) == {("m", "2"), ("n", "1")}


def test_models_come_and_go_with_their_folders(serve, repository):
    app = serve()
    state = app.state.fanin.repository
    failed = count_failures(app)
    save(gain_model(7), repository / "new" / "1" / "model.onnx")
    (repository / ".incoming").mkdir()
    (repository / "not a name").mkdir()
    (repository / "README").write_text("no model")
    state.refresh()
    state.refresh()  # a file must stay unchanged for a look
    assert gain(app, "new") == 7
    assert set(state.names()) == {"m", "n", "new"}
    shutil.rmtree(repository / "n")
    state.refresh()
    assert gain(app, "n") == 5  # it may be on its way back
    state.refresh()
    assert gain(app, "n") == 404
    assert count_failures(app) == failed  # a model that is taken away has not failed
    assert get(app, "/v2/health/ready").status == 200
    save(gain_model(6), repository / "n" / "1" / "model.onnx")
    assert post(app, "/v2/repository/models/n/load").status == 200
    assert gain(app, "n") == 6


def count_failures(app):
    text = get(app, "/metrics").body.decode()
    found = re.findall(r'^fanin_model_loads_total\{.*result="failed".*\} (.*)$', text, re.MULTILINE)
    return sum(map(float, found))


def test_a_folder_that_is_deleted_file_by_file_has_not_failed(serve, repository):
    app = serve()
    state = app.state.fanin.repository
    failed = count_failures(app)
    (repository / "n" / "1" / "model.onnx").unlink()
    (repository / "n" / "1").rmdir()
    state.refresh()
    (repository / "n").rmdir()
    state.refresh()
    assert gain(app, "n") == 5
    state.refresh()
    assert gain(app, "n") == 404
    assert count_failures(app) == failed


def test_a_model_whose_files_stay_away_is_served_and_has_failed_once(serve, repository):
    app = serve()
    failed = count_failures(app)
    shutil.rmtree(repository / "n" / "1")
    for _ in range(3):
        app.state.fanin.repository.refresh()
    assert gain(app, "n") == 5
    assert rows(app)["n", "1"] == ("READY", "its files are missing or inaccessible")
    assert count_failures(app) == failed + 1


def test_a_model_that_does_not_load_again_leaves_the_server_ready(serve, repository):
    app = serve()
    assert post(app, "/v2/repository/models/m/unload").status == 200
    for version in ("1", "2"):
        (repository / "m" / version / "model.onnx").write_bytes(b"broken")
    assert post(app, "/v2/repository/models/m/load").status == 400
    assert get(app, "/v2/models/m/ready").status == 503
    assert get(app, "/v2/health/ready").status == 200
    assert gain(app, "n") == 5
    save(gain_model(8), repository / "m" / "2" / "model.onnx")
    app.state.fanin.repository.refresh()
    app.state.fanin.repository.refresh()
    assert get(app, "/v2/models/m/ready").status == 200
    assert gain(app, "m") == 8


def test_a_model_named_as_the_route_of_all_statistics_is_passed_over(serve, repository, caplog):
    save(gain_model(7), repository / "stats" / "1" / "model.onnx")
    app = serve()
    (said,) = [record.fields for record in caplog.records if record.message == "model ignored"]
    assert said["model"] == "stats"
    assert said["reason"].endswith("/v2/models/stats is the path of all models' statistics")
    names = [entry["name"] for entry in get(app, "/v2/models/stats").json["model_stats"]]
    assert names == ["m", "n"]
    with pytest.raises(SettingsError, match="'stats' is not a valid model name: /v2/models/stats"):
        ModelSource.parse(str(repository / "stats"))


def test_a_new_model_that_does_not_load_leaves_the_server_ready(serve, repository):
    app = serve()
    (repository / "bad" / "1").mkdir(parents=True)
    (repository / "bad" / "1" / "model.onnx").write_bytes(b"\0\1")
    for _ in range(2):
        app.state.fanin.repository.refresh()
        assert get(app, "/v2/health/ready").status == 200
    assert rows(app)["bad", "1"][0] == "UNAVAILABLE"
    assert "bad" in rows(app)["bad", "1"][1]
    assert get(app, "/v2/models/bad/ready").status == 503
    assert (gain(app, "m"), gain(app, "n")) == (2, 5)


def test_a_folder_that_cannot_be_read_takes_no_model_away(serve, repository, caplog):
    app = serve()
    repository.rename(repository.with_name("elsewhere"))
    for _ in range(3):
        app.state.fanin.repository.refresh()
    assert [record.message for record in caplog.records].count("model repository unreadable") == 1
    assert (gain(app, "m"), gain(app, "n")) == (2, 5)


def test_load_and_unload_by_request(serve, repository):
    app = serve()
    assert post(app, "/v2/repository/models/m/unload").status == 200
    assert gain(app, "m") == 404
    assert rows(app)["m", ""] == ("UNAVAILABLE", "unloaded")
    app.state.fanin.repository.refresh()
    assert gain(app, "m") == 404  # it stays unloaded
    save(gain_model(9), repository / "late" / "1" / "model.onnx")
    assert post(app, "/v2/repository/models/late/load").status == 200
    assert gain(app, "late") == 9
    assert post(app, "/v2/repository/models/absent/load").status == 404
    for path in ("..", "%2e%2e", "m/1"):
        assert post(app, f"/v2/repository/models/{path}/load").status == 404


def test_an_empty_repository_waits_for_models(repository):
    shutil.rmtree(repository)
    repository.mkdir()
    app = create_app(ServeSettings((), model_repository=str(repository), poll=0, trial_timeout=0))
    state = app.state.fanin
    state.open()
    assert rows(app) == {}
    save(gain_model(4), repository / "m" / "1" / "model.onnx")
    assert post(app, "/v2/repository/models/m/load").status == 200
    assert gain(app, "m") == 4
    state.close()


def test_what_is_no_model_hides_none_and_is_named(serve, repository, caplog):
    (repository / "loop").symlink_to("loop")
    (repository / "dead").symlink_to("absent")
    save(gain_model(3), repository / "stray.onnx")
    app = serve()
    assert (gain(app, "m"), gain(app, "n")) == (2, 5)
    ignored = [vars(record) for record in caplog.records if record.message == "model ignored"]
    reasons = {fields["fields"]["model"]: fields["fields"]["reason"] for fields in ignored}
    assert "it cannot be read: " in reasons["loop"]
    assert "leads nowhere" in reasons["dead"]
    assert "move the file to NAME/1/model.onnx" in reasons["stray.onnx"]


def test_a_configuration_that_is_no_file_is_refused_at_once(serve, repository):
    path = repository / "m" / "config.pbtxt"
    os.mkfifo(path)
    with pytest.raises(SessionError, match=r"config\.pbtxt is not a regular file"):
        serve()
    path.unlink()
    path.symlink_to("absent")
    with pytest.raises(SessionError, match=r"config\.pbtxt cannot be read: No such file"):
        serve()


def test_a_repository_that_is_missing_or_a_file_is_refused(serve, repository):
    shutil.rmtree(repository)
    with pytest.raises(SessionError, match="cannot be read: No such file"):
        serve()
    repository.write_text("")
    with pytest.raises(SessionError, match="cannot be read: Not a directory"):
        serve()


def test_models_given_one_by_one_keep_their_names(serve, tmp_path):
    other = save(gain_model(8), tmp_path / "other.onnx")
    app = serve(ModelSource("m", other))
    assert (gain(app, "m"), gain(app, "n")) == (8, 5)


def test_a_broken_model_stops_the_start_and_names_itself(serve, repository):
    (repository / "n" / "1" / "model.onnx").write_bytes(b"\0\1")
    with pytest.raises(SessionError, match="version 1 of model 'n' does not load"):
        serve()


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("latest { num_versions: 1 }", {"2"}),
        ("latest: { num_versions: 2 }", {"1", "2"}),
        ("all { }", {"1", "2"}),
        ("specific { versions: [1] }", {"1"}),
        ("specific { versions: 1 versions: 7 }", {"1"}),
    ],
)
def test_the_version_policy_chooses(serve, repository, policy, versions):
    configure(repository, f"version_policy: {{ {policy} }}")
    app = serve()
    shown = get(app, "/v2/models/m/config").json["version_policy"]
    assert list(shown) == [policy.split()[0].rstrip(":")]
    assert {version for name, version in rows(app) if name == "m"} == versions


def test_a_version_policy_that_selects_nothing_says_so(serve, repository):
    app = serve()
    configure(repository, "version_policy { specific { versions: 7 } }")
    said = "the version_policy of its config.pbtxt selects none of its versions (2, 1)"
    answer = post(app, "/v2/repository/models/m/load")
    assert answer.status == 400
    assert said in answer.error
    assert gain(app, "m") == 2  # what was served before is kept
    assert said in rows(app)["m", "2"][1]
    with pytest.raises(SessionError, match="model 'm' does not load: the version_policy") as caught:
        serve()
    assert said in str(caught.value)


def test_a_load_that_loads_nothing_fails(serve, repository):
    app = serve()
    (repository / "new").mkdir()
    answer = post(app, "/v2/repository/models/new/load")
    assert answer.status == 400
    assert "model 'new' has no version" in answer.error
    configure(repository, "oops: 1", model="new")
    answer = post(app, "/v2/repository/models/new/load")
    assert answer.status == 400
    assert answer.error.startswith("'new' does not load: ")


def test_a_configuration_sets_batches_instances_and_threads(serve, repository):
    configure(
        repository,
        """
        name: "m"  # comments are allowed
        platform: 'onnxruntime_onnx'
        max_batch_size: 4
        dynamic_batching { max_queue_delay_microseconds: 1000 preferred_batch_size: [2, 4] }
        instance_group [ { count: 2 kind: KIND_CPU }, { count: 1 } ]
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
        output { name: "y" data_type: TYPE_FP32 dims: 4 }
        parameters { key: "intra_op_thread_count" value { string_value: "1" } }
        parameters { key: "arena" value { string_value: "1" } }
        optimization { graph { level: 1 } }
        """,
    )
    app = serve()
    config = get(app, "/v2/models/m/config").json
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, [4])
    assert config["instance_group"][0]["count"] == 3
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 1000}
    assert config["parameters"]["intra_op_thread_count"]["string_value"] == "1"
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert gain(app, "m", x=np.ones((4, 4), np.float32)) == 2
    answer = post(app, "/v2/models/m/infer", json_body(np.ones((5, 4), np.float32)))
    assert answer.status == 400
    assert "has 5 rows, but max_batch_size of the model's config.pbtxt is 4" in answer.error
    # The other model has no configuration.
    config = get(app, "/v2/models/n/config").json
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (0, [-1, 4])


def test_a_changed_configuration_is_noticed(serve, repository):
    app = serve()
    state = app.state.fanin.repository
    configure(repository, "max_batch_size: 1")
    state.refresh()
    assert gain(app, "m") == 2  # perhaps still being written
    state.refresh()
    assert gain(app, "m") == 400  # two rows
    configure(repository, "max_batch_size: oops")
    state.refresh()
    state.refresh()
    assert gain(app, "m", x=X[:1]) == 2  # what was served before is kept
    status, reason = rows(app)["m", "2"]
    assert status == "READY"
    assert "max_batch_size is not a whole number" in reason
    configure(repository, "")
    state.refresh()
    state.refresh()
    assert gain(app, "m") == 2
    assert rows(app)["m", "2"] == ("READY", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_batch_sise: 4", "unknown field, max_batch_sise. Did you mean 'max_batch_size'"),
        ('name: "n"', "name is 'n'; here it is 'm'"),
        ('backend: "tensorrt"', "backend is 'tensorrt'; here it is 'onnxruntime'"),
        ("sequence_batching { }", "sequence_batching is not supported"),
        ("ensemble_scheduling { step { } }", "ensemble_scheduling is not supported"),
        ("instance_group { kind: KIND_GPU }", "KIND_CPU only"),
        ("instance_group { count: 5000 }", "instance_group.count (as --concurrency) is 5000; it"),
        ("dynamic_batching { }", "needs a max_batch_size of 1 or more"),
        ("max_batch_size: 5000", "max_batch_size is 5000, but --max-dimension is 4096"),
        ("max_batch_size: -1", "max_batch_size is not a whole number"),
        (
            f"max_batch_size: 1 dynamic_batching {{ max_queue_delay_microseconds: 1{'0' * 400} }}",
            "max_queue_delay_microseconds is not a whole number below 2**63",
        ),
        ("version_policy { all { } latest { } }", "it may have one of them"),
        ("version_policy { specific { versions: 0 } }", "no list of numbers from 1"),
        ('input { name: "z" }', "the model has no input 'z'. Known: 'x'"),
        ('input { name: "x" data_type: TYPE_INT8 }', "is TYPE_INT8 there, but TYPE_FP32"),
        ('output { name: "y" dims: [-1, 5] }', "dims [-1, 5] there, but the model has"),
        ('name: "m', "line 1: '\"m' is not text format"),
        ("input {", "the end of the text is not the name of a field"),
        ("\n\nname m", "line 3: 'm' is neither : nor {"),
        ("input " + "{ a " * 50, "nested more than 32 deep"),
    ],
)
def test_a_configuration_that_cannot_be_honored_is_refused(serve, repository, text, said):
    configure(repository, text)
    with pytest.raises(SessionError) as caught:
        serve()
    assert said in str(caught.value)
    assert "config.pbtxt" in str(caught.value)


@pytest.mark.parametrize("rows", [0, 1, 8])
def test_a_repository_written_for_triton_is_served(serve, repository, tmp_path, rows):
    source = ModelSource("t", save(gain_model(6), tmp_path / "t.onnx"))
    write_triton_model(TritonSettings(source, repository, max_batch=rows, threads=1))
    app = serve()
    assert gain(app, "t", x=X[:1]) == 6
    assert get(app, "/v2/models/t/config").json["max_batch_size"] == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", {}),
        ("a: 1; b: -2.5e1, c: 0x10", {"a": [1], "b": [-25.0], "c": [16]}),
        ('a: "x" "y\\n\\"" b < c: T >', {"a": ['xy\n"'], "b": [{"c": ["T"]}]}),
        (
            "a: [1, 2] a: 3 b: [] c [{}, {d: 1f}]",
            {"a": [1, 2, 3], "b": [], "c": [{}, {"d": [1.0]}]},
        ),
    ],
)
def test_text_format(text, message):
    assert parse(text) == message


def test_any_text_is_read_or_refused():
    rng = np.random.default_rng(0)
    words = ["a", ":", "{", "}", "[", "]", "<", ">", ",", '"x"', "1", "-", "\\", "#", "\n", "é"]
    read = 0
    for _ in range(3000):
        text = " ".join(rng.choice(words, rng.integers(1, 12)))
        try:
            parse(text)
            read += 1
        except TextFormatError:
            pass
    assert read > 20
