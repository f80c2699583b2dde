import dataclasses
import tomllib

import pytest

from fanin.trainer import ConfigError, Dense, SRigL, load_recipe, recipe_names
from fanin.trainer.optimization import AdamW
from fanin.trainer.recipe import config_to_tables, config_to_toml, override, parse_config

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
    assert name == f"{config.model.name}-{config.data.name}-{name.split('-')[-1]}"
    assert isinstance(config.method, Dense if name.endswith("dense") else SRigL)


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
    assert config.sparsifier.distribution == "erk"
    assert config.lr_schedule.name == "cosine"
    assert config.sparsifier.no_ablation is None


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
    with pytest.raises(ConfigError, match=r"no use for \[sparsifier\]"):
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
