"""Recipes, sweeps, runs and data that are damaged, or made to hurt: each ends in a sentence."""

import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import pytest
import torch

from fanin.trainer import ConfigError, DataError, RunFolderError, TrainingError, load_run, train
from fanin.trainer.analysis import analyze_run, analyze_sweep
from fanin.trainer.data import DataConfig, load_dataset
from fanin.trainer.data.idx_files import read_idx
from fanin.trainer.memory import require_memory
from fanin.trainer.recipe import config_to_toml, load_customized, load_recipe, override
from fanin.trainer.run_folder import build_model
from fanin.trainer.sweep import SweepRecord, read_records, write_records
from fanin.trainer.sweep_config import load_sweep


@pytest.fixture(scope="module")
def finished(small_config, tmp_path_factory):
    config = override(small_config, {"training.epochs": 1})
    return train(config, tmp_path_factory.mktemp("runs") / "run", progress=False).out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"[a" + b".a" * 5_000 + b"]\nb = 1", "unknown (table|key) 'a'|nested too deeply"),
        (b"\xff\xfe", "utf-8"),
        (b"a = " + b"9" * 5000, "digits"),
        (b"#" * (17 << 20), "more than 16 MiB"),
        (b"", "missing|must name"),
    ],
)
@pytest.mark.parametrize("load", [load_recipe, load_sweep])
def test_texts_that_are_no_recipe_or_sweep(tmp_path, content, reason, load):
    path = tmp_path / "file.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"file\.toml.*({reason})") as caught:
        load(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("model.hidden", [2**62], r"in \[model\]: "),
        ("model.hidden", [2**31, 2**31], r"in \[model\]: "),
        ("model.hidden", [10**9, 10**9], "its weights would take 3,725,290,"),
        ("model.hidden", [2**63], "does not fit into 64 bits"),
        ("training.seed", 2**64, "does not fit into 64 bits"),
        ("training.epochs", 10**30, "does not fit into 64 bits"),
        ("optimizer.lr", 10**400, "which is too large"),
        ("method.name", "x" * 10_000, "unknown method 'xxx"),
    ],
)
def test_absurd_values_are_refused_before_anything_is_allocated(
    small_config, tmp_path, key, value, reason
):
    with pytest.raises(ConfigError, match=reason) as caught:
        train(override(small_config, {key: value}), tmp_path / "run", progress=False)
    assert len(str(caught.value)) < 500
    assert not any((tmp_path / "run").glob("*"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"shape": (2**40, 2, 2)}, "the samples would take"),
        ({"samples": 2**50}, "the samples would take"),
        ({"classes": 2**40}, "the samples would take"),
        ({"shape": (3,) * 100}, "the samples would take"),
        ({"shape": ()}, "must be at least 1"),
    ],
)
def test_absurd_data_sets_are_refused(data, reason):
    with pytest.raises(DataError, match=reason):
        load_dataset(DataConfig("synthetic", **data))
    with pytest.raises(DataError, match="an image would take"):
        load_dataset(DataConfig("imagenet", image_size=2**30))
    with pytest.raises(DataError, match="the samples would take"):
        load_dataset(DataConfig("mnist", shape=(1, 2**20, 2**20)))


def test_what_fits_into_this_machine_passes():
    require_memory(1 << 20, "it")
    with pytest.raises(ValueError, match=r"it would take 1,073,741,824 GiB, but this machine has"):
        require_memory(1 << 60, "it")


def test_the_size_of_a_model_is_checked_without_a_draw(small_config):
    """Else a seed would give other weights than before."""
    torch.manual_seed(3)
    built = build_model(small_config).state_dict()
    torch.manual_seed(3)
    plain = small_config.model.build((1, 8, 8), 10).state_dict()
    assert all(torch.equal(built[name], plain[name]) for name in plain)


def test_memory_that_runs_out_while_training_says_what_to_lower(
    small_config, tmp_path, monkeypatch
):
    def full(*_):
        torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr("fanin.trainer.training_run.TrainingRun._step", full)
    with pytest.raises(TrainingError, match=r"out of memory near step 1: .*Lower training\.batch"):
        train(small_config, tmp_path / "run", progress=False)


@pytest.mark.parametrize("change", ["a=" + "[" * 50_000, "training.epochs=" + "9" * 5000, "=", "a"])
def test_options_that_are_no_value(change):
    with pytest.raises(ConfigError):
        load_customized("mlp-digits-srigl90", [change])


@pytest.mark.parametrize("factor", [0, -1, 1e308, float("nan"), float("inf"), 0.333])
def test_factors_that_give_no_number_of_epochs(factor):
    with pytest.raises(ConfigError, match="not a whole number of epochs"):
        load_customized("mlp-digits-srigl90", [], factor)


@pytest.mark.parametrize(
    "line",
    [
        "set = 1",
        'grid = "x"',
        "grid = [1]",
        "variants = 1",
        "variants = [1]",
        "variants = {a = 1}",
        'variants = [{label = "a", grid = 1}]',
        'variants = [{label = "a", model = 1}]',
    ],
)
def test_tables_of_a_sweep_that_are_none(tmp_path, line):
    path = tmp_path / "sweep.toml"
    path.write_text(f'recipe = "mlp-digits-srigl90"\n{line}\n')
    with pytest.raises(ConfigError, match=r"sweep .*sweep\.toml: .*must be a (table|list)"):
        load_sweep(path)


def test_a_grid_of_lists_reaches_tables_and_figures(tmp_path):
    """Widths of hidden layers are lists."""
    records = [
        SweepRecord(f"{variant}{width}", variant, {"model.hidden": [width]}, test_accuracy=0.5)
        for variant in "ab"
        for width in (8, 16)
    ]
    write_records(tmp_path, records)
    assert read_records(tmp_path) == records
    analyses = analyze_sweep(read_records(tmp_path), against="a")
    assert [row["hidden"] for row in analyses[0].rows] == [[8], [16], [8], [16]]
    assert analyses[0].save(tmp_path / "out")
    assert [row["hidden"] for row in analyses[-1].rows] == [[8], [16]]


@pytest.mark.parametrize(
    "change",
    [{"name": 1}, {"values": []}, {"values": None}, {"test_accuracy": "x"}, {"extra": 1}],
)
def test_records_of_a_sweep_that_are_none(tmp_path, change):
    record = {"name": "a", "variant": "v", "values": {}, "test_accuracy": 0.5} | change
    (tmp_path / "sweep.json").write_text(json.dumps({"schema_version": 1, "runs": [record]}))
    with pytest.raises(ValueError, match="is not the folder of a sweep"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    "hidden", ["[4611686018427387904]", "[1000000000, 1000000000]"], ids=["overflow", "memory"]
)
def test_a_run_of_an_absurd_size_is_refused_when_it_is_read(run, hidden):
    config = run / "config.toml"
    text = config.read_text()
    config.write_text(text.replace("hidden = [\n    96,\n    48,\n]", f"hidden = {hidden}"))
    assert config.read_text() != text
    with pytest.raises(RunFolderError, match=r"config\.toml of run .* is not usable: in \[model\]"):
        load_run(run)


@pytest.mark.parametrize("line", ["{}", '{"event": "epoch"}', '{"event": "update"}'])
def test_metrics_of_another_content_are_named_by_the_analyses(run, line):
    (run / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl has unexpected content|max"):
        analyze_run(load_run(run))


@pytest.mark.parametrize("name", ["metrics.jsonl", "training_state.pt", "weights.safetensors"])
def test_a_pipe_in_the_place_of_a_runs_file_is_refused_before_training(
    small_config, tmp_path, name
):
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.toml").write_text(config_to_toml(small_config))
    os.mkfifo(out / name)
    with pytest.raises(RunFolderError, match=f"{name} is a pipe; choose an output path"):
        train(None, out, resume=True, progress=False)
    assert (out / name).is_fifo()


def test_a_runs_weights_go_where_a_link_leads(small_config, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.toml").write_text(config_to_toml(override(small_config, {"training.epochs": 1})))
    (out / "weights.safetensors").symlink_to(tmp_path / "elsewhere")
    train(None, out, resume=True, progress=False)
    assert (out / "weights.safetensors").is_symlink()
    assert (tmp_path / "elsewhere").stat().st_size > 0
    assert load_run(out).masks


def test_an_idx_file_is_read_no_further_than_it_says(tmp_path):
    """One that unpacks to 256 MiB takes the memory of its ten values."""
    path = tmp_path / "labels.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(struct.pack(">4BI", 0, 0, 8, 1, 10))
        for _ in range(256):
            file.write(bytes(1 << 20))
    script = """
import resource, sys
from pathlib import Path
from fanin.trainer.data.idx_files import DataError, read_idx
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_idx(Path(sys.argv[1]), 1)
except DataError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    command = [sys.executable, "-c", script, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sentence, grown = done.stdout.splitlines()
    assert sentence.endswith(
        "labels.gz should hold 10 values [10] but holds more; download it again"
    )
    assert int(grown) < 100


def test_an_idx_file_that_says_too_much_is_refused_unread(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 1 << 31, 28, 28))
    with pytest.raises(DataError, match="images declares 1683627180032 values"):
        read_idx(path, 3)


def png(width: int, height: int, lines: bytes = b"") -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("image", "workers", "reason"),
    [
        (png(12_000, 12_000), 0, r"too large \(12000 × 12000 pixels\); remove it|exceeds limit"),
        (png(60_000, 60_000), 0, "exceeds limit"),
        (png(16, 16), 0, "truncated"),
        (png(16, 16, bytes(16 * 49))[:50], 1, "truncated|broken"),
    ],
    ids=["large", "bomb", "no lines", "cut, in a worker"],
)
def test_images_that_cannot_be_read_are_named_in_one_line(tmp_path, image, workers, reason):
    for part in ("train", "val"):
        for label in ("a", "b"):
            path = tmp_path / part / label / "1.png"
            path.parent.mkdir(parents=True)
            path.write_bytes(image)
    data = load_dataset(DataConfig("imagenet", classes=2, image_size=8, workers=workers), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own, of large images
        with pytest.raises(DataError, match=rf"1\.png cannot be read: .*({reason})") as caught:
            list(data.train.batches([torch.tensor([0])], [(0,)]))
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_user_without_a_home_is_told_to_name_a_folder(monkeypatch):
    for name in ("mnist", "fashion-mnist"):
        module = "fanin.trainer.data.mnist"
        monkeypatch.setattr(f"{module}.cache_folder", lambda: None)
        monkeypatch.setattr(f"{module}.DEBIAN_FASHION_MNIST", Path("/nowhere"))
        with pytest.raises(
            DataError,
            match=r"cannot be downloaded, since this user has no home folder.*give a folder",
        ):
            load_dataset(name)
    monkeypatch.setattr("fanin.trainer.data.cifar.cache_folder", lambda: None)
    with pytest.raises(
        DataError,
        match="CIFAR-10 cannot be downloaded, since this user has no home folder; give a folder",
    ):
        load_dataset("cifar10")
