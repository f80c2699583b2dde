"""Augmentation, the larger data sets on small trees, and training with every option of it."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from fanin.trainer import DataError, load_run, train
from fanin.trainer.data import Augmentation, DataConfig, load_dataset, mix_batch
from fanin.trainer.data.augmentation import augment_batch
from fanin.trainer.recipe import override, parse_config


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_crops_are_windows_of_the_reflected_image():
    images = torch.randn(64, 2, 6, 5, generator=generator())
    cropped = augment_batch(images, Augmentation(crop_padding=2), generator(1))
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2), mode="reflect")
    places = set()
    for image, source in zip(cropped, padded, strict=True):
        found = [
            (y, x)
            for y in range(5)
            for x in range(5)
            if torch.equal(image, source[:, y : y + 6, x : x + 5])
        ]
        assert found
        places.add(found[0])
    assert len(places) > 15


def test_flips_mirror_about_half_of_the_images():
    images = torch.randn(400, 1, 3, 4, generator=generator())
    flipped = augment_batch(images, Augmentation(flip=True), generator(1))
    mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(flipped, images, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(flipped, images, strict=True)]
    assert all(m or s for m, s in zip(mirrored, same, strict=True))
    assert 160 < sum(mirrored) < 240


def test_erasing_zeroes_one_rectangle_of_the_published_size():
    images = torch.ones(300, 1, 32, 32)
    erased = augment_batch(images, Augmentation(erasing=0.5), generator(1))
    counts = (erased == 0).flatten(1).sum(1)
    assert 110 < int((counts > 0).sum()) < 190
    for image in erased[counts > 0][:, 0]:
        rows, columns = (image == 0).any(1).sum(), (image == 0).any(0).sum()
        assert int((image == 0).sum()) == int(rows * columns)
        assert 0.01 < float(rows * columns) / 1024 < 0.36


def test_mixing_keeps_the_shares_of_the_labels():
    images = torch.randn(8, 3, 8, 8, generator=generator())
    labels = torch.arange(8) % 4
    state = torch.get_rng_state()
    for options in (Augmentation(mixup=0.2), Augmentation(cutmix=1.0), Augmentation(0, mixup=1.0)):
        mixed, shares = mix_batch(images, labels, 4, options, seed=3)
        assert shares.shape == (8, 4)
        assert torch.allclose(shares.sum(1), torch.ones(8))
        assert not torch.equal(mixed, images)
        again = mix_batch(images, labels, 4, options, seed=3)
        assert torch.equal(mixed, again[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert mix_batch(images, labels, 4, Augmentation(), seed=3)[1] is labels


@pytest.fixture(scope="module")
def images_folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("imagenet")
    rng = np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 2)):
        for name, color in (("n01", 60), ("n02", 190)):
            folder = root / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                noise = rng.integers(-40, 40, (40 + index, 52, 3))
                Image.fromarray((color + noise).astype(np.uint8)).save(folder / f"{index}.JPEG")
    return root


FOLDER = """
[data]
name = "imagenet"
classes = 2
image_size = 32
[augmentation]
crop = "random-resized"
flip = true
policy = "randaugment"
magnitude = 5
erasing = 0.3
mixup = 0.2
cutmix = 1.0
[model]
name = "wide-resnet"
depth = 10
widen = 1
[training]
epochs = 3
batch_size = 6
accumulate = 2
label_smoothing = 0.1
clip_norm = 1.0
precision = "bfloat16"
ema_decay = 0.9
device = "cpu"
checkpoint_every = 2
[optimizer]
name = "adamw"
[method]
name = "srigl"
sparsity = 0.8
[sparsifier]
update_every = 2
"""


@pytest.mark.parametrize("crop", ['"random-resized"', '"random"\nresize = [34, 48]', '"none"'])
def test_training_from_folders_with_every_option_resumes_bit_for_bit(
    images_folder, tmp_path, crop, interrupt_at
):
    config = parse_config(FOLDER.replace('"random-resized"', crop), "folder")
    whole = train(config, tmp_path / "whole", data_dir=images_folder, progress=False)
    assert whole.steps == 6
    with interrupt_at(3):
        train(config, tmp_path / "part", data_dir=images_folder, progress=False)
    train(None, tmp_path / "part", resume=True, data_dir=images_folder, progress=False)
    runs = [load_run(tmp_path / name) for name in ("whole", "part")]
    for name, tensor in runs[0].model.state_dict().items():
        assert torch.equal(tensor, runs[1].model.state_dict()[name])
    for name, mask in runs[0].masks.items():
        assert bool((dict(runs[0].model.named_parameters())[name][~mask] == 0).all())


def test_worker_processes_load_the_same_images(images_folder):
    batches = {}
    for workers in (0, 2):
        config = DataConfig("imagenet", classes=2, image_size=32, workers=workers)
        options = Augmentation(crop="random-resized", flip=True, policy="autoaugment")
        split = load_dataset(config, images_folder, options).train
        indices = [torch.tensor([0, 5, 7]), torch.tensor([11, 1])]
        if workers:  # a pass that ends early, as a training's does before an evaluation
            passing = split.batches([torch.tensor([i]) for i in range(8)], None)
            next(passing)
            first = {w.pid for w in split._loader._iterator._workers}
        batches[workers] = list(split.batches(indices, [(0, 1, 0), (0, 1, 1)]))
    assert {w.pid for w in split._loader._iterator._workers} == first  # started once
    for (images, labels), (others, same) in zip(*batches.values(), strict=True):
        assert images.shape[1:] == (3, 32, 32)
        assert torch.equal(images, others)
        assert torch.equal(labels, same)


def test_test_images_are_not_augmented_whatever_the_seeds(images_folder):
    config = DataConfig("imagenet", classes=2, image_size=32)
    test = load_dataset(config, images_folder, Augmentation(flip=True)).test
    indices = [torch.tensor([0, 3])]
    (plain,), (seeded,) = test.batches(indices), test.batches(indices, [(0, 1)])
    assert torch.equal(plain[0], seeded[0])
    assert torch.equal(plain[1], seeded[1])


def test_images_are_read_where_pillows_limit_of_pixels_was_lifted(images_folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    config = DataConfig("imagenet", classes=2, image_size=32)
    (images, labels), *_ = load_dataset(config, images_folder).test.batches([torch.tensor([0])])
    assert images.shape == (1, 3, 32, 32)
    assert labels.tolist() == [0]


def test_folders_that_do_not_fit_are_named(images_folder, tmp_path):
    with pytest.raises(DataError, match="give the folder that holds train and val"):
        load_dataset("imagenet")
    with pytest.raises(DataError, match="train does not hold class folders"):
        load_dataset("imagenet", tmp_path)
    with pytest.raises(
        DataError, match=r"has 2 classes, but the recipe expects 1000; set data\.classes"
    ):
        load_dataset("imagenet", images_folder)


def cifar_tree(root):
    """A CIFAR-10 of two images per batch, in the format of the original."""
    rng, folder = np.random.default_rng(0), root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        entry = {"data": rng.integers(0, 256, (2, 3072)).astype(np.uint8), "labels": [3, 9]}
        (folder / name).write_bytes(pickle.dumps(entry))
    meta = {"label_names": [str(i) for i in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta))
    return root


def test_cifar10_from_a_folder(tmp_path, monkeypatch):
    from torchvision.datasets import CIFAR10

    with pytest.raises(DataError, match=r"cannot be loaded from .*holds cifar-10-batches-py"):
        load_dataset("cifar10", tmp_path)
    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda _: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    data = load_dataset("cifar10", cifar_tree(tmp_path), Augmentation(crop_padding=4, flip=True))
    assert data.train.inputs.shape == (10, 3, 32, 32)
    assert data.test.labels.tolist() == [3, 9]
    assert float(data.train.inputs.max()) <= 1.0
    raw = pickle.loads((tmp_path / "cifar-10-batches-py" / "test_batch").read_bytes())["data"]
    assert torch.equal(data.test.inputs[0, 1] * 255, torch.tensor(raw[0, 1024:2048]).view(32, 32))
    plain, augmented = (
        next(data.train.batches([torch.arange(4)], seeds))[0] for seeds in (None, [(0, 0, 0)])
    )
    assert torch.equal(plain, data.train.inputs[:4])
    assert not torch.equal(plain, augmented)


def test_synthetic_data_can_be_learned_and_are_always_the_same():
    config = DataConfig("synthetic", shape=(2, 4, 4), classes=3, samples=60)
    first, second = load_dataset(config), load_dataset(config)
    assert first.train.inputs.shape == (60, 2, 4, 4)
    assert len(first.test) == 15
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert set(first.train.labels.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_learns_digits(small_config, tmp_path, precision):
    changes = {"training.precision": precision, "training.ema_decay": 0.9, "training.epochs": 2}
    result = train(override(small_config, changes), tmp_path / "run", progress=False)
    assert result.test_accuracy > 0.7


def test_accumulated_batches_train_as_whole_ones_do(small_config, tmp_path):
    runs = []
    for parts in (1, 2):
        config = override(small_config, {"training.accumulate": parts, "training.epochs": 1})
        config = override(config, {"optimizer.lr": 0.01})
        runs.append(load_run(train(config, tmp_path / str(parts), progress=False).out))
    one, two = (dict(run.model.named_parameters()) for run in runs)
    for name, mask in runs[0].masks.items():
        same = (mask == runs[1].masks[name]).float().mean()
        assert same > 0.99
        assert torch.allclose(one[name], two[name], atol=0.05)
