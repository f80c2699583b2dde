"""What docs/training.md shows and lists is what the code does."""

import dataclasses
import re
from pathlib import Path

from fanin.trainer import METHODS, Dense, LayerOptions, ScheduleOptions
from fanin.trainer.data import Augmentation, DataConfig
from fanin.trainer.models import MODELS
from fanin.trainer.optimization import OPTIMIZERS, StepLR
from fanin.trainer.recipe import DistillationConfig, TrainingConfig

TEXT = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


def table_rows():
    """(table, key) → default, of the recipe reference."""
    rows, table = {}, ""
    for line in TEXT.splitlines():
        cells = [cell.strip().strip("`") for cell in line[1:-1].split("|")]
        if len(cells) == 4 and line.startswith("| "):
            table = cells[0].strip("[]") or table
            rows[table, cells[1]] = cells[2]
    return rows


def test_python_examples_run(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/training.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "total density 0.09" in printed
    kept, weights = map(int, re.search(r"(\d+) of (\d+) weights", printed).groups())
    assert weights * 0.195 < kept <= weights * 0.2  # the sub-net of 80 %


def test_recipe_reference_lists_every_key_with_its_default():
    rows = table_rows()
    for table, cls in (
        ("training", TrainingConfig),
        ("distillation", DistillationConfig),
        ("sparsifier", LayerOptions),
        ("sparsifier", ScheduleOptions),
        ("data", DataConfig),
        ("augmentation", Augmentation),
        ("lr_schedule", StepLR),
        *(("model", model) for model in MODELS.values()),
    ):
        for field in dataclasses.fields(cls):
            documented = rows[table, field.name]
            if field.default is field.default_factory is dataclasses.MISSING:
                assert documented == ""
            elif field.default is None:
                assert documented in ("the output layers", "none", "all")
            elif field.default_factory is not dataclasses.MISSING:
                assert documented == str(field.default_factory())
            else:
                assert documented == written(field.default)


def written(default):
    """A default as the reference writes it."""
    plain = list(default) if isinstance(default, tuple) else default
    return str(plain).replace("True", "true").replace("False", "false") or '""'


def test_recipe_reference_lists_every_key_of_every_method_with_its_default():
    described = {
        cells[2].strip().strip("`"): line
        for line in TEXT.partition("| `[method]`")[2].partition("| `[sparsifier]`")[0].splitlines()
        if len(cells := line.split("|")) == 6
    }
    rows = table_rows()
    for name, method in METHODS.items():
        for field in dataclasses.fields(method):
            if field.default is dataclasses.MISSING:
                assert rows["method", field.name] == ""
            elif written(field.default) != rows["method", field.name]:  # another than most methods
                own = rf"`{name}`(: [^;|]*| )\(`?{re.escape(str(field.default))}`?\)"
                assert re.search(own, described[field.name]), (name, field.name)


def test_every_optimizer_and_its_options_are_listed():
    row = next(line for line in TEXT.splitlines() if line.startswith("| `[optimizer]`"))
    for name, cls in OPTIMIZERS.items():
        assert f"`{name}`" in row
        assert all(f"`{field.name}`" in row for field in dataclasses.fields(cls))
    assert Dense.name in TEXT


def test_every_method_is_listed():
    assert all(f"| `{name}` | `{method.__name__}`" in TEXT for name, method in METHODS.items())
