import gzip
import sys

import numpy as np
import pytest
import torch

from fanin.trainer import DataError
from fanin.trainer.data import (
    DataConfig,
    describe,
    epoch_order,
    fashion_mnist_folder,
    load_dataset,
    mnist,
)


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


@pytest.mark.parametrize(
    ("shape", "top", "left"), [((3, 32, 32), 2, 2), ((2, 31, 28), 1, 0), ((1, 28, 33), 0, 2)]
)
def test_images_are_put_in_the_middle_of_black_and_repeated_for_each_channel(
    folder, shape, top, left
):
    config = DataConfig("fashion-mnist", shape=shape)
    plain, padded = load_dataset("fashion-mnist", folder), load_dataset(config, folder)
    assert describe(config) == (shape, 10)
    for split, count in (("train", 20), ("test", 10)):
        images, inputs = getattr(plain, split).inputs, getattr(padded, split).inputs
        assert inputs.shape == (count, *shape)
        expected = torch.full((count, *shape[1:]), (0 - 0.2860) / 0.3530)
        expected[:, top : top + 28, left : left + 28] = images[:, 0]
        for channel in range(shape[0]):
            torch.testing.assert_close(inputs[:, channel], expected, rtol=0, atol=1e-6)
        assert torch.equal(getattr(plain, split).labels, getattr(padded, split).labels)


@pytest.mark.parametrize(("samples", "test"), [(1, 1), (7, 7), (15, 10), (20, 10)])
def test_samples_are_the_first_of_each_split(folder, samples, test):
    everything = load_dataset("fashion-mnist", folder)
    some = load_dataset(DataConfig("fashion-mnist", samples=samples), folder)
    for split, count in (("train", samples), ("test", test)):
        assert len(getattr(some, split)) == count
        for field in ("inputs", "labels"):
            whole = getattr(getattr(everything, split), field)
            assert torch.equal(getattr(getattr(some, split), field), whole[:count])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"samples": -3}, "samples must be at least 1, got -3"),
        ({"samples": 21}, r"samples is 21, but .*train-images-idx3-ubyte.gz has 20"),
        ({"shape": (1, 27, 32)}, r"from \[1, 28, 28\] up, got \[1, 27, 32\]"),
        ({"shape": (1, 32, 27)}, r"from \[1, 28, 28\] up, got \[1, 32, 27\]"),
        ({"shape": (0, 28, 28)}, r"from \[1, 28, 28\] up, got \[0, 28, 28\]"),
        ({"shape": (32, 32)}, r"shape must be \[channels, height, width\]"),
        ({"shape": ()}, r"shape must be \[channels, height, width\]"),
    ],
)
def test_shapes_and_samples_that_cannot_be_are_refused(folder, options, reason):
    with pytest.raises(DataError, match=reason):
        load_dataset(DataConfig("fashion-mnist", **options), folder)


def test_made_up_samples_have_the_shape_and_number_asked_for():
    dataset = load_dataset(DataConfig("synthetic", shape=(2, 5), classes=3, samples=40))
    assert dataset.train.inputs.shape == (40, 2, 5)
    assert dataset.test.inputs.shape == (10, 2, 5)
    assert set(dataset.train.labels.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    "options", [{"samples": 0}, {"classes": 0}, {"shape": (3, 0)}, {"shape": ()}]
)
def test_made_up_samples_of_nothing_are_refused(options):
    with pytest.raises(DataError, match="shape, classes and samples must be at least 1"):
        load_dataset(DataConfig("synthetic", **options))


@pytest.mark.parametrize("options", [{"samples": 5}, {"shape": (3, 32, 32)}])
def test_data_sets_without_an_option_refuse_it(options):
    (option,) = options
    with pytest.raises(DataError, match=f"the data set 'digits' has no option {option}; remove it"):
        load_dataset(DataConfig("digits", **options))


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
        (
            "t10k-labels-idx1-ubyte",
            lambda b: b[:-1],
            r"should hold 10 values \[10\] but holds only 9",
        ),
        ("t10k-labels-idx1-ubyte", lambda b: b + b"\0", "but holds more"),
        (
            "t10k-labels-idx1-ubyte",
            lambda _: b"",
            "not a 1-dimensional uint8 idx file .it starts with nothing",
        ),
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
