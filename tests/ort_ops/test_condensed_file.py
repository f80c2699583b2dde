from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fanin.export import CondensedWeight, load_condensed, save_condensed

PARTS = ("values", "indices", "rows", "bias")


def layers() -> dict[str, CondensedWeight]:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 300)).astype(np.float32)
    mask = rng.random((6, 300)) < 0.1
    mask[2] = False
    return {
        "body.0": CondensedWeight.from_dense(weight, np.arange(6, dtype=np.float32), mask),
        "head": CondensedWeight.from_dense(np.zeros((2, 70_000), np.float32)),
    }


def test_layers_come_back_bit_for_bit(tmp_path: Path):
    path = tmp_path / "layers.safetensors"
    save_condensed(path, layers())
    loaded = load_condensed(path)
    assert loaded.keys() == layers().keys()
    for name, expected in layers().items():
        got = loaded[name]
        for part in PARTS:
            np.testing.assert_array_equal(getattr(got, part), getattr(expected, part), strict=True)
        assert got.in_features == expected.in_features
    assert list(tmp_path.iterdir()) == [path]


def rewrite(path: Path, tensors: dict | None = None, metadata: dict | None = None) -> None:
    base = {"format": "fanin.condensed", "format_version": "1"}
    base |= {"body.0.in_features": "300", "head.in_features": "70000"}
    save_file(load_file(path) | (tensors or {}), path, metadata=base | (metadata or {}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"metadata": {"format": "other"}}, "has the format 'other' in its metadata"),
        ({"metadata": {"format_version": "2"}}, "format version '2', this fanin reads 1"),
        ({"metadata": {"body.0.in_features": "3"}}, "layer 'body.0': indices[0, "),
        ({"metadata": {"body.0.in_features": "many"}}, "layer 'body.0': invalid literal"),
        ({"metadata": {"tail.in_features": "3"}}, "layer 'tail' lacks the tensor 'tail.values'"),
        ({"tensors": {"body.0.rows": np.zeros(5, np.int32)}}, "layer 'body.0': rows[1] is 0"),
        ({"tensors": {"stray": np.zeros(1, np.float32)}}, "stray belongs to no layer"),
    ],
)
def test_changed_file_is_refused_with_file_layer_and_place(
    tmp_path: Path, change: dict, sentence: str
):
    path = tmp_path / "layers.safetensors"
    save_condensed(path, layers())
    rewrite(path, **change)
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the sentence is compared
        load_condensed(path)
    assert str(path) in str(caught.value)
    assert sentence in str(caught.value)


def test_truncated_file_is_refused(tmp_path: Path):
    path = tmp_path / "layers.safetensors"
    save_condensed(path, layers())
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match="damaged"):
        load_condensed(path)


def test_missing_file_and_missing_folder_are_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_condensed(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="create it first"):
        save_condensed(tmp_path / "no" / "layers.safetensors", layers())


def test_failed_save_keeps_the_older_file(tmp_path: Path):
    path = tmp_path / "layers.safetensors"
    path.write_bytes(b"older")
    with pytest.raises(ValueError, match="at least one layer"):
        save_condensed(path, {})
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]
