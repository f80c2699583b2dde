"""Any flipped bit in a file with checksums is refused, and the file is named."""

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from fanin._base.checksums import find_damage, tensor_checksum, with_checksums
from fanin.deploy.bench.suites.trained_layer import TrainedLayerError, load_trained_layer
from fanin.export import CondensedWeight, load_condensed, save_condensed
from fanin.trainer import RunFolderError
from fanin.trainer.checkpoint import read_state
from fanin.trainer.run_folder import read_weights
from fanin.trainer.weights_file import save_weights


def condensed_file(path: Path) -> Path:
    weight = np.zeros((3, 5), np.float32)
    weight[0, 1], weight[2, 3] = 1.5, -2
    save_condensed(path, {"body.fc": CondensedWeight.from_dense(weight)})
    return path


def run_weights(path: Path) -> Path:
    model, mask = nn.Linear(3, 2), torch.tensor([[True, False, True], [False, True, True]])
    with torch.no_grad():
        model.weight.mul_(mask)
    save_weights(path, model, {"weight": mask})
    return path


def state_file(path: Path) -> Path:
    torch.save({"a": torch.arange(40.0), "b": [1, "x"]}, path)
    return path


def flips(path: Path, step: int) -> Iterator[int]:
    """Flip every ``step``-th bit of the file, one at a time."""
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), step):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        yield bit


def reason(read: Callable[[Path], object], path: Path, error: type[Exception]) -> str | None:
    """Return the reason why the file is refused, which must name it."""
    try:
        read(path)
    except error as caught:
        return str(caught) if str(path) in str(caught) else None
    return None


@pytest.mark.parametrize(
    ("write", "read", "error"),
    [
        (condensed_file, load_condensed, ValueError),
        (run_weights, read_weights, RunFolderError),
    ],
    ids=["condensed", "run"],
)
def test_any_flipped_bit_of_weights_is_refused(tmp_path, write, read, error):
    """In names, types, shapes, checksums, masks and values."""
    path = write(tmp_path / "file")
    assert read(path)
    for bit in flips(path, step=13):
        assert reason(read, path, error) is not None, bit


def test_a_flipped_bit_of_a_training_state_is_refused_or_changes_nothing(tmp_path):
    """Archives have bytes without meaning, such as padding."""
    path = state_file(tmp_path / "state.pt")
    refused = 0
    for bit in flips(path, step=23):
        if reason(read_state, path, ValueError) is None:
            state = read_state(path)
            assert torch.equal(state["a"], torch.arange(40.0)), bit
            assert state["b"] == [1, "x"]
        else:
            refused += 1
    assert refused >= 40 * 4 * 8 // 23


def test_the_tensor_that_is_damaged_is_named(tmp_path):
    path = run_weights(tmp_path / "file")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"file is damaged .the checksum of \S+ is wrong"):
        read_weights(path)
    (tmp_path / "run").mkdir()
    path.rename(tmp_path / "run" / "weights.safetensors")
    with pytest.raises(TrainedLayerError, match=r"weights.safetensors .*the checksum of \S+ is wr"):
        load_trained_layer(tmp_path / "run")


def test_files_of_before_there_were_checksums_load(tmp_path):
    path = condensed_file(tmp_path / "file")
    metadata = {"format": "fanin.condensed", "format_version": "1", "body.fc.in_features": "5"}
    save_file(load_file(path), path, metadata)
    assert load_condensed(path)["body.fc"].to_dense()[2, 3] == -2
    path = run_weights(tmp_path / "run")
    save_file(load_file(path), path, {"format": "fanin.run", "format_version": "1"})
    assert read_weights(path).keys() == {"weight", "weight.mask", "bias"}


def test_a_checksum_covers_type_shape_and_bytes():
    data = memoryview(bytes(range(8)))
    sums = [
        tensor_checksum("float32", (2, 1), data),
        tensor_checksum("float32", (1, 2), data),
        tensor_checksum("int32", (2, 1), data),
        tensor_checksum("float32", (2, 1), memoryview(bytes(8))),
    ]
    assert len(set(sums)) == 4
    # What another program has to compute: printf 'float32 [2, 1]\n\0\1\2\3\4\5\6\7' | sha256sum
    assert sums[0] == "1284ba1309033c96cd54df7613d9e73f42b55aa94a30e0961a721ae1750ea527"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.pop("checksum"), "metadata has been changed"),
        (lambda m: m.pop("checksums"), "metadata has been changed"),
        (lambda m: m.update(note="x"), "metadata has been changed"),
    ],
)
def test_metadata_that_lost_or_gained_an_entry_are_refused(change, reason):
    metadata = with_checksums({"format": "x"}, {"a": "1"})
    assert find_damage(metadata, ["a"], lambda _: "1") is None
    assert "tensors are not those" in find_damage(metadata, ["a", "b"], lambda _: "1")
    change(metadata)
    assert reason in find_damage(metadata, ["a"], lambda _: "1")


@pytest.mark.parametrize("tensors", ["[" * 100_000, "[]", '"a"', "{"])
def test_checksums_that_are_no_table_are_refused(tensors):
    """Even if the file's author computed a correct checksum of its metadata."""
    text = json.dumps({"checksums": tensors})
    crafted = {"checksums": tensors, "checksum": hashlib.sha256(text.encode()).hexdigest()}
    damage = find_damage(crafted, ["a"], lambda _: "1")
    assert "no checksums" in damage or "tensors are not those" in damage


def test_a_training_state_that_would_unpack_to_more_than_it_is_is_refused(tmp_path):
    path = tmp_path / "state.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    with pytest.raises(ValueError, match=r"state\.pt is damaged: it is compressed"):
        read_state(path)
