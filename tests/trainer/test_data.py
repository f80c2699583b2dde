import gzip
import sys

import numpy as np
import pytest
import torch

from fanin.trainer import DataError
from fanin.trainer.data import epoch_order, fashion_mnist_folder, load_dataset, mnist


def idx_bytes(array):
    header = bytes((0, 0, 8, array.ndim)) + b"".join(s.to_bytes(4, "big") for s in array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path):
    """A tiny Fashion-MNIST: 20 training and 10 test images, gzip except one file."""
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 20), ("t10k", 10)):
        images = idx_bytes(rng.integers(0, 256, (count, 28, 28)))
        labels = idx_bytes(np.arange(count) % 10)
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)
    return tmp_path


def test_digits_always_load_with_the_same_split():
    first, second = load_dataset("digits"), load_dataset("digits")
    assert first.train.inputs.shape == (1437, 1, 8, 8)
    assert first.test.inputs.shape == (360, 1, 8, 8)
    assert first.train.inputs.dtype == torch.float32
    assert first.train.labels.dtype == torch.int64
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert first.fingerprint() == second.fingerprint()
    counts = torch.bincount(first.test.labels)
    assert int(counts.min()) >= 34  # stratified: 360 / 10, classes are nearly even
    everything = torch.cat([first.train.inputs, first.test.inputs])
    assert everything.mean().item() == pytest.approx(0, abs=1e-3)
    assert everything.std().item() == pytest.approx(1, abs=1e-3)


def test_fashion_mnist_from_a_folder(folder):
    dataset = load_dataset("fashion-mnist", folder)
    assert dataset.train.inputs.shape == (20, 1, 28, 28)
    assert dataset.test.labels.tolist() == list(range(10))
    raw = (dataset.train.inputs * 0.3530 + 0.2860) * 255
    assert torch.allclose(raw, raw.round(), atol=1e-3)
    assert 0 <= raw.min().round() < 5
    assert 250 < raw.max().round() <= 255
    assert str(folder) in dataset.source


def test_torchvisions_folder_layout_is_found(folder, tmp_path):
    nested = tmp_path / "root" / "FashionMNIST" / "raw"
    nested.mkdir(parents=True)
    for file in folder.glob("*ubyte*"):
        (nested / file.name).write_bytes(file.read_bytes())
    assert fashion_mnist_folder(tmp_path / "root") == nested


def test_missing_data_names_the_three_ways(tmp_path):
    with pytest.raises(DataError) as caught:
        load_dataset("fashion-mnist", tmp_path)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "give a folder that holds train-images-idx3-ubyte.gz" in message
    assert "apt-get install dataset-fashion-mnist" in message
    assert "download" in message


def test_a_failed_download_is_the_same_clear_error(tmp_path, monkeypatch):
    import torchvision

    def fail(*_, **__):
        raise RuntimeError("no network")

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", fail)
    monkeypatch.setattr(mnist, "DEBIAN_FASHION_MNIST", tmp_path / "nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"download failed \(no network\).*apt-get install"):
        load_dataset("fashion-mnist")


def test_the_debian_folder_is_used_when_present(folder, monkeypatch):
    monkeypatch.setattr(mnist, "DEBIAN_FASHION_MNIST", folder)
    assert len(load_dataset("fashion-mnist").train) == 20


def test_a_given_folder_is_never_replaced_by_another_source(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "DEBIAN_FASHION_MNIST", folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"not found in .*empty"):
        load_dataset("fashion-mnist", tmp_path / "empty")


def damage(folder, name, change):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("train-images-idx3-ubyte.gz", lambda b: b[: len(b) // 2], "cannot be read"),
        ("train-images-idx3-ubyte.gz", lambda _: b"not gzip", "cannot be read"),
        ("train-images-idx3-ubyte.gz", lambda b: b[:40] + b"\xff\xff" + b[42:], "cannot be read"),
        ("t10k-labels-idx1-ubyte", lambda b: b[:-1], r"should hold 10 values \[10\] but holds 9"),
        ("t10k-labels-idx1-ubyte", lambda b: b + b"\0", "but holds 11"),
        ("t10k-labels-idx1-ubyte", lambda _: b"", "not an idx file .* starts with nothing"),
        ("t10k-labels-idx1-ubyte", lambda b: b"\0\0\x0d\1" + b[4:], "starts with 00000d01"),
        ("t10k-labels-idx1-ubyte", lambda b: b[:-1] + b"\x0a", "holds label 10"),
        ("t10k-labels-idx1-ubyte", lambda _: idx_bytes(np.zeros(9)), "10 images.*9 labels"),
        (
            "train-images-idx3-ubyte.gz",
            lambda _: gzip.compress(idx_bytes(np.zeros((20, 27, 28)))),
            "expected N×28×28",
        ),
    ],
)
def test_damaged_files_are_named(folder, name, change, reason):
    damage(folder, name, change)
    with pytest.raises(DataError, match=reason) as caught:
        load_dataset("fashion-mnist", folder)
    assert name in str(caught.value)


def test_unknown_data_sets_are_refused_with_near_matches():
    with pytest.raises(DataError, match=r"unknown data set 'fashion_mnist'.*'fashion-mnist'"):
        load_dataset("fashion_mnist")


def test_digits_takes_no_folder_and_needs_scikit_learn(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="takes no folder"):
        load_dataset("digits", tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"needs scikit-learn; install fanin\[train\]"):
        load_dataset("digits")


def test_epoch_order_depends_on_seed_and_epoch_only():
    orders = {(s, e): tuple(epoch_order(50, s, e).tolist()) for s in (0, 1) for e in (0, 1, 2)}
    assert len(set(orders.values())) == 6
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    torch.manual_seed(99)
    assert tuple(epoch_order(50, 1, 2).tolist()) == orders[1, 2]
