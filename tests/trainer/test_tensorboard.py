"""TensorBoard events of runs."""

import json
import sys

import pytest

from fanin.trainer import ConfigError, train
from fanin.trainer.recipe import override
from fanin.trainer.tensorboard import EventWriter


def scalars(folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_events_are_the_numbers_of_the_metrics_of_interrupted_runs_too(
    small_config, tmp_path, interrupt_at
):
    pytest.importorskip("tensorboard")
    config = override(small_config, {"training.tensorboard": True, "training.epochs": 2})
    with interrupt_at(33):  # five steps after a checkpoint
        train(config, tmp_path / "run", progress=False)
    train(None, tmp_path / "run", resume=True, progress=False)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    metrics, found = [json.loads(line) for line in lines], scalars(tmp_path / "run")
    for tag, name in (("step", "loss"), ("update", "itop_rate"), ("epoch", "test_accuracy")):
        expected = [(r["step"], r[name]) for r in metrics if r["event"] == tag]
        assert len(expected) >= 2
        assert [s for s, _ in found[f"{tag}/{name}"]] == [s for s, _ in expected]
        values = [value for _, value in found[f"{tag}/{name}"]]
        assert values == pytest.approx([value for _, value in expected], rel=1e-6)
    assert found["update/layers/active/fc1.weight"][-1][1] < 96
    assert found["epoch/layers/fan_in/head.weight"]


def test_runs_that_want_events_need_the_package_before_anything_is_written(
    small_config, tmp_path, monkeypatch
):
    config = override(small_config, {"training.tensorboard": True})
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"pip install 'fanin\[tensorboard\]'"):
        train(config, tmp_path / "run", progress=False)
    with pytest.raises(ConfigError, match="tensorboard"):
        EventWriter(tmp_path, 0)
    assert not list((tmp_path / "run").iterdir())
