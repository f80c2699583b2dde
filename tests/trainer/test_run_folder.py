import os
import shutil
import stat
import zipfile

import pytest
import torch
from safetensors.torch import load, load_file, save_file

from fanin.trainer import ConfigError, RunFolderError, load_run, train
from fanin.trainer.initial_weights import load_initial_weights
from fanin.trainer.recipe import override
from fanin.trainer.run_folder import open_run

METADATA = {"format": "fanin.run", "format_version": "1"}


@pytest.fixture(scope="module")
def finished(small_config, tmp_path_factory):
    config = override(small_config, {"training.epochs": 1})
    return train(config, tmp_path_factory.mktemp("runs") / "run", progress=False).out


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run, to be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def rewrite(run, change, metadata=METADATA):
    tensors = load_file(run / "weights.safetensors")
    change(tensors)
    save_file(tensors, run / "weights.safetensors", metadata)


def test_missing_folders_and_folders_of_other_things_are_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"no run folder .*nowhere"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match=r"is not a run folder: it has no config\.toml"):
        load_run(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunFolderError, match="no run folder"):
        load_run(tmp_path / "file")


def test_run_folders_that_cannot_be_looked_up_are_not_called_absent():
    name = "n" * 300
    with pytest.raises(RunFolderError, match=rf"{name} cannot be read: File name too long"):
        load_run(name)
    with pytest.raises(ConfigError, match=rf"initial_weights: {name} cannot be read: File name"):
        load_initial_weights(torch.nn.Linear(2, 2), name)


def test_half_written_runs_say_how_to_finish_them(run):
    (run / "weights.safetensors").unlink()
    with pytest.raises(RunFolderError, match=r"unfinished.*fanin train --resume --out .*run"):
        load_run(run)


def test_damaged_weights_say_how_to_write_them_again(run):
    path = run / "weights.safetensors"
    content = path.read_bytes()
    tensors = load(content)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(RunFolderError, match=r"damaged.*Delete it.*--resume"):
        load_run(run)
    path.unlink()
    train(None, run, resume=True, progress=False)
    again = load_file(path)
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("fc1.weight"), "have different tensors: .*fc1.weight"),
        (lambda t: t.update(extra=torch.ones(1)), "have different tensors: .*extra"),
        (lambda t: t.update({"head.bias": torch.ones(9)}), r"head.bias has shape \[9\]"),
        (
            lambda t: t.update({"fc1.weight.mask": torch.ones(2, 2, dtype=torch.uint8)}),
            "mask of fc1.weight fits no parameter",
        ),
        (
            lambda t: t.update({"fc1.weight": t["fc1.weight"].double()}),
            "fc1.weight is torch.float64, the model .* torch.float32",
        ),
        (lambda t: t["fc1.weight.mask"].mul_(2), "fc1.weight.mask must hold uint8 zeros and ones"),
        (
            lambda t: t.update({"fc1.weight.mask": t["fc1.weight.mask"].float()}),
            "fc1.weight.mask must hold uint8 zeros and ones, found torch.float32",
        ),
        (lambda t: t.pop("fc1.weight.mask"), r"missing \['fc1.weight'\], unexpected none"),
        (lambda t: t["fc1.weight"].fill_(1.0), "fc1.weight is not 0 off its mask"),
    ],
)
def test_weights_that_do_not_fit_are_refused(run, change, reason):
    rewrite(run, change)
    with pytest.raises(RunFolderError, match=reason):
        load_run(run)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (None, "was not written by fanin train"),
        ({"format": "fanin.condensed"}, "was not written by fanin train"),
        ({"format": "fanin.run", "format_version": "2"}, "format version 2.*newer one"),
    ],
)
def test_other_formats_and_newer_versions_are_refused(run, metadata, reason):
    rewrite(run, lambda _: None, metadata)
    with pytest.raises(RunFolderError, match=reason):
        load_run(run)


def test_damaged_configuration_and_metrics_are_named(run):
    (run / "metrics.jsonl").write_text('{"event": "epoch"}\n{"event": "ep')
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: line 2 of"):
        load_run(run)
    (run / "config.toml").write_text("[data]\nname = 3")
    with pytest.raises(RunFolderError, match=r"config\.toml of run .* is not usable.*data\.name"):
        load_run(run)


def test_existing_folders_are_not_overwritten(run, small_config):
    before = {p.name: p.read_bytes() for p in run.iterdir()}
    with pytest.raises(RunFolderError, match=r"exists and is not empty\. Continue.*--resume"):
        train(small_config, run, progress=False)
    assert {p.name: p.read_bytes() for p in run.iterdir()} == before


def test_resuming_with_another_configuration_names_the_difference(run, small_config):
    config = override(small_config, {"training.epochs": 1, "optimizer.lr": 0.07})
    with pytest.raises(RunFolderError, match=r"another configuration.*: lr = 0\.07"):
        train(config, run, resume=True, progress=False)


def test_resuming_what_is_not_there_is_an_error(small_config, tmp_path):
    with pytest.raises(RunFolderError, match="no run folder"):
        train(small_config, tmp_path / "nowhere", resume=True)
    with pytest.raises(TypeError, match="can only be None with resume"):
        train(None, tmp_path / "nowhere")


@pytest.mark.parametrize("below", ["file/run", "file"])
def test_an_output_that_cannot_be_a_folder_is_refused_before_training(
    small_config, tmp_path, below
):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(RunFolderError, match=r"cannot write to .*choose another output folder"):
        train(small_config, tmp_path / below, progress=False)
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_parent_is_refused_before_training(small_config, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunFolderError, match="cannot write to"):
        train(small_config, tmp_path / "run", progress=False)


def test_a_run_in_use_by_another_process_is_refused(run, small_config):
    config = override(small_config, {"training.epochs": 1})
    with (
        open_run(run, config, resume=True),
        pytest.raises(RunFolderError, match="another process"),
        open_run(run, config, resume=True),
    ):
        pass


def test_damaged_checkpoints_are_named(run):
    (run / "weights.safetensors").unlink()
    state = run / "training_state.pt"
    state.write_bytes(state.read_bytes()[:5000])
    with pytest.raises(RunFolderError, match=r"cannot be resumed: .*training_state\.pt is damaged"):
        train(None, run, resume=True, progress=False)


def test_a_flipped_bit_in_the_checkpoint_is_noticed(run):
    (run / "weights.safetensors").unlink()
    state = run / "training_state.pt"
    content = bytearray(state.read_bytes())
    with zipfile.ZipFile(state) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    content[largest.header_offset + largest.file_size] ^= 1
    state.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"training_state\.pt is damaged: Bad CRC-32 for"):
        train(None, run, resume=True, progress=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["parts"].pop("optimizer"),
        lambda state: state["parts"]["model"].pop("fc1.weight"),
        lambda state: state["parts"]["sparsifier"].pop("settings"),
        lambda state: state["progress"].update(unknown=1),
        lambda state: state["parts"]["optimizer"].update(param_groups=[]),
        lambda state: state.pop("metrics_bytes"),
    ],
)
def test_checkpoints_of_something_else_are_refused_by_name(run, change):
    (run / "weights.safetensors").unlink()
    state = torch.load(run / "training_state.pt", weights_only=True)
    change(state)
    torch.save(state, run / "training_state.pt")
    with pytest.raises(RunFolderError, match=r"training_state\.pt does not fit this run"):
        train(None, run, resume=True, progress=False)


@pytest.mark.parametrize("value", [[], None, {"format_version": 9}])
def test_checkpoints_of_another_format_are_refused(run, value):
    (run / "weights.safetensors").unlink()
    torch.save(value, run / "training_state.pt")
    with pytest.raises(RunFolderError, match=r"training_state\.pt has format"):
        train(None, run, resume=True, progress=False)


@pytest.mark.parametrize("content", [None, "", "garbage\n", '{"event": "epoch"}\n', '{"a": 1}\n'])
def test_a_finished_run_without_sound_metrics_says_that_its_weights_are_complete(run, content):
    metrics = run / "metrics.jsonl"
    metrics.unlink()
    if content is not None:
        metrics.write_text(content)
    with pytest.raises(RunFolderError, match=r"weights are complete.*metrics\.jsonl is damaged"):
        train(None, run, resume=True, progress=False)


def test_resuming_on_other_data_is_refused(run, monkeypatch):
    (run / "weights.safetensors").unlink()
    monkeypatch.setattr("fanin.trainer.data.base.Dataset.fingerprint", lambda _: 1)
    with pytest.raises(RunFolderError, match="started on different data"):
        train(None, run, resume=True, progress=False)


def test_resuming_with_another_number_of_threads_warns(run):
    (run / "weights.safetensors").unlink()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.warns(UserWarning, match="different environment"):
            train(None, run, resume=True, progress=False)
    finally:
        torch.set_num_threads(threads)


def test_checkpoints_load_without_running_code(finished):
    state = torch.load(finished / "training_state.pt", weights_only=True)
    assert set(state["parts"]) == {"model", "optimizer", "scheduler", "sparsifier"}


def test_files_have_ordinary_permissions(finished):
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in finished.iterdir()}
    assert set(modes.values()) == {0o666 & ~_umask()}


def _umask():
    current = os.umask(0)
    os.umask(current)
    return current
