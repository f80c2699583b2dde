"""Training on tar files of WebDataset."""

import io
import json
import os
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from fanin.trainer import DataError, load_run, train
from fanin.trainer.data import Augmentation, DataConfig, check_data_config, held_out, load_dataset
from fanin.trainer.recipe import parse_config


def write_tar(path, files):
    with tarfile.open(path, "w") as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def image(number):
    """A PNG of one color, which tells its number."""
    file = io.BytesIO()
    Image.new("RGB", (20, 24), (number, 5, 250 - number)).save(file, "png")
    return file.getvalue()


def sample(number, classes=3):
    return [
        (f"s/{number:03}.png", image(number)),
        (f"s/{number:03}.cls", b"%d" % (number % classes)),
    ]


@pytest.fixture
def folder(tmp_path):
    """Shards of 5, 3 and 6 samples for training, and one of 4."""
    for shard, numbers in enumerate((range(5), range(5, 8), range(8, 14))):
        write_tar(tmp_path / f"train-{shard}.tar", [f for n in numbers for f in sample(n)])
    write_tar(tmp_path / "val.tar", [f for n in range(100, 104) for f in sample(n)])
    return tmp_path


def config(**options):
    names = {"train_shards": "train-{0..2}.tar", "test_shards": "val.tar"}
    return DataConfig("webdataset", **{"classes": 3, "image_size": 16} | names | options)


def numbers(images):
    """The numbers of images, from the normalized red of their centers."""
    return ((images[:, 0, 8, 8] * 0.229 + 0.485) * 255).round().int().tolist()


def test_all_samples_are_read_in_the_order_of_the_shards(folder):
    data = load_dataset(config(), folder)
    assert (len(data.train), len(data.test)) == (14, 4)
    ((images, labels),) = data.train.batches([torch.arange(14)])
    assert images.shape == (14, 3, 16, 16)
    assert numbers(images) == list(range(14))
    assert labels.tolist() == [n % 3 for n in range(14)]
    ((images, labels),) = data.test.batches([torch.tensor([3, 0])])
    assert numbers(images) == [103, 100]
    assert labels.tolist() == [103 % 3, 100 % 3]


def test_webdataset_itself_reads_the_same_samples(folder):
    webdataset = pytest.importorskip("webdataset")
    write_tar(
        folder / "odd.tar",
        [
            ("__meta__/info.json", b"{}"),
            ("README", b"no sample"),
            ("a/x.1.JPG", image(60)),
            ("a/x.1.cls", b"1"),  # one member of "a/x", not its class
            *sample(61),
            ("b.c/y.json", json.dumps({"label": 2, "width": 20}).encode()),
            ("b.c/y.PNG", image(62)),
        ],
    )
    expected = [
        (Image.open(io.BytesIO(found["png"])).getpixel((3, 3))[0], found["__key__"])
        for found in webdataset.WebDataset(
            [str(folder / f"{name}.tar") for name in ("train-0", "train-1")], shardshuffle=False
        )
    ]
    data = load_dataset(config(train_shards="train-{0,1}.tar"), folder)
    ((images, _),) = data.train.batches([torch.arange(8)])
    assert numbers(images) == [number for number, _ in expected]
    odd = webdataset.WebDataset(str(folder / "odd.tar"), shardshuffle=False)
    assert [found["__key__"] for found in odd] == ["a/x", "s/061", "b.c/y"]
    with pytest.raises(DataError, match=r"odd.tar: sample 'a/x' has no image"):
        load_dataset(config(train_shards="odd.tar"), folder)


def test_the_class_can_be_the_label_of_a_json_and_cls_comes_first(folder):
    label = json.dumps({"label": 2}).encode()
    files = [("a.jpg", image(1)), ("a.json", label), ("b.json", label), *sample(3)[:1]]
    files[3:] = [("b.cls", b" 1\n"), ("b.webp", image(2))]
    write_tar(folder / "train.tar", files)
    data = load_dataset(config(train_shards="train.tar"), folder)
    ((images, labels),) = data.train.batches([torch.arange(2)])
    assert numbers(images) == [1, 2]
    assert labels.tolist() == [2, 1]


@pytest.mark.parametrize("buffer", [None, 1, 4, 6, 14, 100])
def test_every_epoch_has_each_sample_once_in_an_order_of_its_own(folder, buffer):
    split = load_dataset(config(shuffle_buffer=buffer), folder).train
    orders = [split.order(seed, epoch).tolist() for seed in (0, 1) for epoch in range(6)]
    assert all(sorted(order) == list(range(14)) for order in orders)
    assert len({tuple(order) for order in orders}) > (4 if buffer == 1 else 8)
    assert split.order(1, 2).tolist() == orders[8]


def test_a_buffer_shuffles_within_itself_and_shards_as_a_whole(folder):
    split = load_dataset(config(shuffle_buffer=4), folder).train
    shards = [list(range(5)), list(range(5, 8)), list(range(8, 14))]
    for epoch in range(10):
        order = split.order(0, epoch).tolist()
        # Some order of the shards gives all buffers, as sets.
        assert any(
            all(sorted(order[i : i + 4]) == sorted(plain[i : i + 4]) for i in range(0, 14, 4))
            for a in range(3)
            for b in range(3)
            if a != b
            for plain in [shards[a] + shards[b] + shards[3 - a - b]]
        )
    unshuffled = load_dataset(config(shuffle_buffer=1), folder).train.order(0, 0).tolist()
    assert any(unshuffled[:2] == shard[:2] for shard in shards)


def test_a_held_out_part_follows_the_order_of_the_whole(folder):
    split = load_dataset(config(shuffle_buffer=3), folder).train
    train_part, validation = held_out(split, 0.3, seed=5)
    assert len(train_part) + len(validation) == 14
    order = train_part.indices[train_part.order(2, 1)].tolist()
    assert sorted(order) == train_part.indices.tolist()
    whole = split.order(2, 1).tolist()
    assert order == [index for index in whole if index in set(train_part.indices.tolist())]


def test_workers_and_processes_share_fewer_shards_than_they_are(folder):
    options = Augmentation(crop="random-resized", flip=True)
    found = []
    for workers in (0, 3):
        one = config(train_shards="train-2.tar", workers=workers)
        split = load_dataset(one, folder, options).train
        batches = torch.split(split.order(0, 0), 3)
        shares = [batch.tensor_split(2)[rank] for rank in (0, 1) for batch in batches]
        seeds = [(0, number) for number in range(len(shares))]
        found.append(list(split.batches(shares, seeds)))
        assert sorted(label for _, labels in found[-1] for label in labels.tolist()) == sorted(
            n % 3 for n in range(8, 14)
        )
    for (images, labels), (others, same) in zip(*found, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, same)


RECIPE = """
[data]
name = "webdataset"
classes = 3
image_size = 16
train_shards = "train-{0..2}.tar"
test_shards = "val.tar"
shuffle_buffer = 5
[augmentation]
crop = "random-resized"
[model]
name = "wide-resnet"
depth = 10
widen = 1
[training]
epochs = 3
batch_size = 4
device = "cpu"
checkpoint_every = 1
[optimizer]
name = "sgd"
lr = 0.05
[method]
name = "srigl"
sparsity = 0.8
[sparsifier]
update_every = 3
"""


def test_a_run_resumes_bit_for_bit_within_an_epoch(folder, tmp_path, interrupt_at):
    recipe = parse_config(RECIPE, "shards")
    whole = train(recipe, tmp_path / "whole", data_dir=folder, progress=False)
    assert whole.steps == 12
    with interrupt_at(6):
        train(recipe, tmp_path / "part", data_dir=folder, progress=False)
    train(None, tmp_path / "part", resume=True, data_dir=folder, progress=False)
    first, second = (load_run(tmp_path / name).model.state_dict() for name in ("whole", "part"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_two_processes_train_on_one_shard(folder, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.replace("train-{0..2}", "train-2").replace("epochs = 3", "epochs = 6"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "fanin", "train", str(recipe), "--no-progress"]
    command += ["--out", str(tmp_path / "run"), "--data-dir", str(folder)]
    done = subprocess.run(
        [*command, "--set", "training.drop_last=true", "--set", "data.workers=1"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert load_run(tmp_path / "run").metrics[-1]["step"] == 6


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


def scratch(path, at):
    content = bytearray(path.read_bytes())
    content[at : at + 8] = b"\xff" * 8
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), r"train-1\.tar does not exist; 1 of the 3 shards"),
        (lambda path: path.write_bytes(b""), "is damaged, or no uncompressed tar"),
        (lambda path: cut(path, 700), "is damaged.*unexpected end of data"),
        (lambda path: cut(path, 4096), "is damaged.*ends at byte 4096, without the mark"),
        (lambda path: scratch(path, 1024 + 148), "is damaged.*no header at byte 1024"),
        (lambda path: path.write_bytes(np.random.default_rng(0).bytes(5000)), "is damaged"),
        (lambda path: write_tar(path, []), r"train-1\.tar holds no samples"),
        (lambda path: write_tar(path, sample(1)[:1]), r"'s/001' has no class: neither .cls"),
        (lambda path: write_tar(path, sample(1)[1:]), r"'s/001' has no image"),
        (lambda path: write_tar(path, sample(1) * 2), r"'s/001' has two images"),
        (lambda path: write_tar(path, sample(5, 9)), r"has class 5, expected 0 to 2"),
        (
            lambda path: write_tar(path, [("a.png", image(1)), ("a.cls", b"cat")]),
            r"'a' has a \.cls that cannot be read",
        ),
        (
            lambda path: write_tar(path, [("a.png", image(1)), ("a.json", b'{"label": "cat"}')]),
            r"'a' has class 'cat', expected 0 to 2",
        ),
        (
            lambda path: write_tar(path, [("a.png", image(1)), ("a.json", b'{"label": true}')]),
            r"'a' has class True, expected 0 to 2",
        ),
        (
            lambda path: write_tar(path, [("a.png", image(1)), ("a.json", b"[" * 100_000)]),
            r"'a' has a \.json that cannot be read",
        ),
    ],
)
def test_what_is_wrong_with_a_shard_is_said(folder, damage, reason):
    damage(folder / "train-1.tar")
    with pytest.raises(DataError, match=reason) as caught:
        load_dataset(config(), folder)
    assert str(folder / "train-1.tar") in str(caught.value)


def test_random_damage_is_an_error_or_changes_no_count(folder):
    rng, path = np.random.default_rng(0), folder / "train-1.tar"
    whole, messages = path.read_bytes(), []
    for _ in range(300):
        content = bytearray(whole)
        at = int(rng.integers(len(content)))
        content[at : at + 4] = rng.bytes(4)
        path.write_bytes(bytes(content[: len(content) - int(rng.choice([0, 0, 9500]))]))
        try:
            found = load_dataset(config(train_shards="train-1.tar"), folder).train
        except DataError as error:
            messages.append(str(error))
        else:
            assert len(found) == 3
    assert len(messages) > 100
    assert all(message.startswith(str(path)) for message in messages)
    write_tar(path, [("a.png", image(1)), ("a.json", b"[" * 100_000)])
    with pytest.raises(DataError, match=r"'a' has a \.json that cannot be read"):
        load_dataset(config(), folder)


def test_an_image_that_cannot_be_decoded_is_named_with_its_shard(folder):
    write_tar(folder / "train-1.tar", [("a.jpg", b"no image"), ("a.cls", b"0")])
    split = load_dataset(config(workers=1), folder).train
    with pytest.raises(DataError, match=r"train-1\.tar: the image at byte 512 cannot be read"):
        list(split.batches([torch.tensor([5])], [(0,)]))


def test_options_are_checked_before_anything_is_read(folder):
    for options, reason in (
        ({"train_shards": None}, "needs train_shards, such as"),
        ({"test_shards": ""}, "needs test_shards"),
        ({"shuffle_buffer": 0}, "shuffle_buffer must be at least 1"),
        ({"samples": 5}, "has no option samples"),
    ):
        with pytest.raises(ValueError, match=reason):
            check_data_config(config(**options), Augmentation())
    with pytest.raises(ValueError, match="no option train_shards"):
        check_data_config(DataConfig("imagenet", train_shards="a.tar"), Augmentation())
    with pytest.raises(DataError, match="give the folder that holds them"):
        load_dataset(config())
    for pattern, reason in (("train-{0.tar", "unmatched brace"), ("{val,val}.tar", "twice")):
        with pytest.raises(DataError, match=reason):
            load_dataset(config(train_shards=pattern), folder)


def test_the_fingerprint_tells_other_data(folder):
    before = load_dataset(config(), folder).fingerprint()
    assert load_dataset(config(shuffle_buffer=3), folder).fingerprint() == before
    write_tar(folder / "train-1.tar", [f for n in (5, 6, 20) for f in sample(n)])
    assert load_dataset(config(), folder).fingerprint() != before
