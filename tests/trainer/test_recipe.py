import dataclasses
import tomllib

import pytest
import torch

from fanin.trainer import METHODS, ConfigError, Dense, SRigL, Static, load_recipe, recipe_names
from fanin.trainer.optimization import AdamW, ConstantLR, CosineLR, StepLR
from fanin.trainer.recipe import (
    config_to_tables,
    config_to_toml,
    extend,
    load_customized,
    override,
    parse_config,
)

MINIMAL = """
[data]
name = "digits"
[model]
name = "mlp"
[training]
epochs = 2
[optimizer]
name = "adamw"
[method]
name = "srigl"
sparsity = 0.9
"""


def parse(text):
    return parse_config(text, "test")


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_load_and_survive_writing(name):
    config = load_recipe(name)
    assert parse(config_to_toml(config)) == config
    assert name.startswith(f"{config.model.name}-{config.data.name}-")
    kind = {"dense": Dense, "int8": Static}.get(name.rpartition("-")[2], SRigL)
    assert isinstance(config.method, kind)


@pytest.mark.parametrize("data", ["fashion-mnist", "digits"])
def test_dense_and_sparse_recipes_differ_in_the_method_only(data):
    dense, sparse = load_recipe(f"mlp-{data}-dense"), load_recipe(f"mlp-{data}-srigl90")
    for part in ("data", "model", "training", "optimizer", "lr_schedule"):
        assert getattr(dense, part) == getattr(sparse, part)
    assert sparse.model.hidden == (3072, 768)
    assert sparse.method == SRigL(sparsity=0.9, gamma_sal=0.95)


def test_defaults_are_filled_in():
    config = parse(MINIMAL)
    assert config.optimizer == AdamW(lr=0.001)
    assert config.method == SRigL(sparsity=0.9, gamma_sal=0.3)
    assert config.sparsifier.layers.distribution == "erk"
    assert config.lr_schedule.name == "cosine"
    assert config.sparsifier.layers.no_ablation is None


def test_written_configuration_holds_every_default():
    tables = tomllib.loads(config_to_toml(parse(MINIMAL)))
    assert tables["sparsifier"]["update_every"] == 100
    assert tables["optimizer"]["betas"] == [0.9, 0.999]
    assert tables == config_to_tables(parse(MINIMAL))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("epochs = 2", "epoch = 2", r"unknown key 'training.epoch'\. Did you mean 'epochs'"),
        ("[training]", "[trainin]", r"unknown table 'trainin'\. Did you mean 'training'"),
        ("epochs = 2", "", "'training.epochs' is missing"),
        ("epochs = 2", 'epochs = "2"', "'training.epochs' must be int, got str"),
        ("epochs = 2", "epochs = true", "'training.epochs' must be int, got bool"),
        ("epochs = 2", "epochs = 2.0", "'training.epochs' must be int, got float"),
        ("epochs = 2", "epochs = 0", r"\[training\]: epochs must be at least 1"),
        ("sparsity = 0.9", "sparsity = 1.2", r"\[method\]: sparsity must be in \(0, 1\)"),
        ("sparsity = 0.9", "sparsty = 0.9", "'method.sparsty'.*'sparsity'"),
        ("sparsity = 0.9", "sparsity = 0.9\nsalient_growth = 'x'", "'method.salient_growth' must"),
        ('"srigl"', '"srigle"', "unknown method 'srigle'.*'srigl'"),
        ('"adamw"', '"adamw"\nmomentum = 0.9', "unknown key 'optimizer.momentum'"),
        ('"adamw"', '"adamw"\nbetas = [0.9, "x"]', r"'optimizer.betas\[1\]' must be float"),
        ('name = "adamw"', "lr = 0.1", r"\[optimizer\] must be a table with a 'name', one of"),
        ('"digits"', '"digit"', "unknown data set 'digit'.*'digits'"),
        ('"mlp"', '"mlp"\nhidden = []', "hidden must list positive"),
        ('"mlp"', '"mlp"\nhidden = 3', "'model.hidden' must be a list"),
        ('name = "digits"', 'name = "digits', "recipe test: .*line"),
        ('[data]\nname = "digits"', "", r"table \[data\] is missing"),
        ('[data]\nname = "digits"', 'data = "digits"', r"\[data\] must be a table"),
    ],
)
def test_wrong_recipes_name_the_key(old, new, reason):
    assert old in MINIMAL
    with pytest.raises(ConfigError, match=reason):
        parse(MINIMAL.replace(old, new, 1))


def test_dense_training_refuses_options_that_it_would_ignore():
    text = MINIMAL.replace('"srigl"\nsparsity = 0.9', '"dense"')
    assert parse(text).method == Dense()
    with pytest.raises(ConfigError, match=r"does not use \[sparsifier\]"):
        parse(text + '[sparsifier]\ndistribution = "uniform"')


def test_recipes_load_from_paths(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL)
    assert load_recipe(path) == load_recipe(str(path)) == parse(MINIMAL)
    with pytest.raises(ConfigError, match=r"missing.toml cannot be read"):
        load_recipe(tmp_path / "missing.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"mine.toml cannot be read"):
        load_recipe(path)


def test_unknown_recipe_names_list_near_matches():
    with pytest.raises(ConfigError, match=r"no recipe 'mlp-digit-dense'.*'mlp-digits-dense'"):
        load_recipe("mlp-digit-dense")


def test_override_replaces_single_values():
    config = override(parse(MINIMAL), {"training.epochs": 7, "method.gamma_sal": 0.5})
    assert config.training.epochs == 7
    assert config.method.gamma_sal == 0.5
    changed = dataclasses.replace(config.training, epochs=2)
    assert dataclasses.replace(config, training=changed, method=SRigL(sparsity=0.9)) == parse(
        MINIMAL
    )
    for wrong in ("training.epoch", "epochs", "trainin.epochs"):
        with pytest.raises(ConfigError, match="unknown key"):
            override(config, {wrong: 7})


PAPER = {
    # epochs, steps of an update, window, learning rate, gamma_sal, distribution
    "resnet18-cifar10-srigl99": (250, 100, 1, 0.1, 0.3, "erk"),
    "wide-resnet-cifar10-srigl90": (250, 100, 1, 0.1, 0.3, "erk"),
    "resnet50-imagenet-srigl90": (103, 800, 8, 0.2, 0.3, "erk"),
    "mobilenet-v3-large-imagenet-srigl90": (600, 100, 2, 0.064, 0.3, "erk"),
    "mobilenet-v3-small-imagenet-srigl90": (600, 100, 2, 0.064, 0.3, "erk"),
    "vit-b-16-imagenet-srigl90": (150, 100, 8, 0.003, 0.95, "uniform"),
}


@pytest.mark.parametrize("name", PAPER)
def test_recipes_hold_the_papers_hyper_parameters(name):
    config = load_recipe(name)
    schedule = config.sparsifier.schedule
    found = (
        config.training.epochs, schedule.update_every, schedule.gradient_window,
        config.optimizer.lr, config.method.gamma_sal, config.sparsifier.layers.distribution,
    )  # fmt: skip
    assert found == PAPER[name]
    assert (schedule.alpha, schedule.end_fraction) == (0.3, 0.75)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("resnet50-imagenet-srigl90", 512),
        ("mobilenet-v3-large-imagenet-srigl90", 1024),
        ("mobilenet-v3-small-imagenet-srigl90", 1024),
        ("vit-b-16-imagenet-srigl90", 4096),
        ("vit-b-16-imagenet-srigl90-in-proj", 4096),
    ],
)
def test_imagenet_recipes_are_for_gpus_with_the_papers_batches(name, batch):
    training, data = load_recipe(name).training, load_recipe(name).data
    assert training.batch_size == batch
    assert batch // training.accumulate == 512
    assert (training.precision, training.tf32, training.compile) == ("bfloat16", True, True)
    convolutions = not name.startswith("vit")
    assert (training.channels_last, training.cudnn_benchmark) == (convolutions, convolutions)
    assert training.drop_last  # one shape of batches, for compiled models and cuDNN's search
    assert data.workers == 8


def test_longer_training_stretches_the_learning_rate_schedule():
    config = extend(load_recipe("resnet50-imagenet-srigl90"), 5)
    assert config.training.epochs == 515
    assert config.lr_schedule.milestones == (150.0, 350.0, 450.0)
    assert config.lr_schedule.warmup_epochs == 25.0
    assert extend(load_recipe("resnet18-cifar10-srigl99"), 2).lr_schedule.every == 154.0
    with pytest.raises(ConfigError, match=r"103 epochs times 0\.5 is not a whole number"):
        extend(load_recipe("resnet50-imagenet-srigl90"), 0.5)


def rates(schedule, epochs=10, epoch_steps=4):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = schedule.build(optimizer, epochs * epoch_steps, epoch_steps)
    found = []
    for _ in range(epochs * epoch_steps):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


def test_learning_rates_warm_up_and_step_down():
    stepped = rates(StepLR(gamma=0.5, milestones=(5.0, 7.5), warmup_epochs=2, warmup_start=0.2))
    assert stepped[:9] == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0])
    assert stepped[19:21] == [2.0, 1.0]
    assert stepped[29:31] == [1.0, 0.5]
    assert rates(StepLR(gamma=0.5, every=5.0))[18:22] == [2.0, 2.0, 1.0, 1.0]
    cosine = rates(CosineLR(warmup_epochs=2))
    assert cosine[8] == 2.0
    assert cosine[24] == pytest.approx(1.0)
    assert 0 < cosine[-1] < 0.01
    assert rates(ConstantLR()) == [2.0] * 40
    with pytest.raises(ValueError, match="either milestones or every"):
        StepLR()


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ('[augmentation]\ncrop = "random-resized"', "crop does not apply to images in memory"),
        ("[augmentation]\nflip = 1", "'augmentation.flip' must be bool"),
        ("[augmentation]\nresize = [256]", "resize must list sizes for crop"),
        ("[augmentation]\nmixup = -1.0", "mixup must be 0 or more"),
        ("[sparsifier]\ndensities = 3", r"\[sparsifier\.densities\] must be a table"),
        ('[sparsifier.densities]\nhead = "x"', "'sparsifier.densities.head' must be float"),
    ],
)
def test_wrong_tables_name_the_key(table, reason):
    with pytest.raises(ConfigError, match=reason):
        parse(MINIMAL + table)


def test_data_sets_refuse_options_that_they_do_not_have():
    with pytest.raises(ConfigError, match="the data set 'digits' has no option workers"):
        parse(MINIMAL.replace('"digits"', '"digits"\nworkers = 2'))
    with pytest.raises(ConfigError, match=r"accumulate \(3\) must divide batch_size"):
        parse(MINIMAL.replace("epochs = 2", "epochs = 2\naccumulate = 3"))


@pytest.mark.parametrize("method", ['"static"\nsparsity = 0.9', '"sr-ste"'])
def test_methods_without_updates_refuse_a_schedule(method):
    text = MINIMAL.replace('"srigl"\nsparsity = 0.9', method)
    assert parse(text).method.sparsity in (0.9, 0.5)
    with pytest.raises(ConfigError, match=r"has no topology updates; remove sparsifier.alpha"):
        parse(text + "[sparsifier]\nalpha = 0.2")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_survives_writing(name):
    values = "" if name in ("dense", "sr-ste") else "\nsparsity = 0.75"
    config = parse(MINIMAL.replace('"srigl"\nsparsity = 0.9', f'"{name}"{values}'))
    assert parse(config_to_toml(config)) == config
    assert config.method.name == name


def test_command_line_values_are_toml():
    config = load_customized(
        "resnet50-imagenet-srigl90", ["method.sparsity=0.8", 'training.device="cpu"'], factor=2
    )
    assert (config.method.sparsity, config.training.device) == (0.8, "cpu")
    assert config.training.epochs == 206
    for wrong in ("method.sparsity", "method.sparsity=", "training.device=cpu"):
        with pytest.raises(ConfigError, match="is not KEY=VALUE"):
            load_customized("resnet50-imagenet-srigl90", [wrong])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"lr": float("nan")}, "lr must be finite, got nan"),
        ({"momentum": 0.0}, "Nesterov momentum requires a momentum"),
    ],
)
def test_values_that_the_optimizer_refuses_are_refused_when_a_recipe_is_read(
    small_config, values, reason
):
    changes = {f"optimizer.{name}": value for name, value in values.items()}
    with pytest.raises(ConfigError, match=rf"in \[optimizer\]: {reason}"):
        override(small_config, changes)


def test_an_adam_with_one_beta_is_refused():
    with pytest.raises(ValueError, match=r"betas must be two numbers, got \[0\.9\]"):
        AdamW(betas=(0.9,))
