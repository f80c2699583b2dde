"""An export only reads its source: not a bit of a model changes, and it exports again the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from fanin.export import ExportReport, export

from ._torch_models import Masked, state_dict_hash


class LivedIn(nn.Module):
    """A model in the middle of its training, with all that people attach to modules."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(20, 32)
        self.norm = nn.BatchNorm1d(32)
        self.pruned = nn.Linear(32, 32)
        self.parametrized = nn.Linear(32, 32)
        self.tied = nn.Linear(32, 32)
        self.frozen = nn.Linear(32, 32)
        self.hooked = nn.Linear(32, 6)
        self.dropout = nn.Dropout(0.2)
        self.register_buffer("scale", torch.full((32,), 0.5))
        self.register_buffer("scratch", torch.ones(32), persistent=False)
        self.steps = 0

    def forward(self, x):
        x = self.norm(self.plain(x)).relu() * self.scale
        x = self.dropout(self.parametrized(self.pruned(x).relu()))
        x = torch.tanh(self.frozen(self.tied(x))) * self.scratch
        return self.hooked(x)


def doubled(module, inputs, output):  # noqa: ARG001
    return output * 2


def shifted(module, inputs):  # noqa: ARG001
    return (inputs[0] + 1,)


def lived_in() -> LivedIn:
    torch.manual_seed(0)
    model = LivedIn()
    for linear in (model.plain, model.tied, model.hooked):
        with torch.no_grad():
            linear.weight.mul_(torch.rand_like(linear.weight) < 0.2)
    prune.l1_unstructured(model.pruned, "weight", 0.8)
    mask = torch.rand_like(model.parametrized.weight) < 0.2
    parametrize.register_parametrization(model.parametrized, "weight", Masked(mask))
    model.frozen.weight = model.tied.weight
    model.frozen.bias.requires_grad_(False)
    model.frozen.eval()
    model.hooked.register_forward_hook(doubled)
    model.plain.register_forward_pre_hook(shifted)
    model(torch.randn(8, 20)).square().mean().backward()
    # A product's last bits depend on threads and alignment, which two processes need not share.
    with torch.no_grad():
        model.norm.running_mean.copy_(torch.linspace(-1, 1, 32))
        model.norm.running_var.copy_(torch.linspace(0.5, 2, 32))
    return model


def snapshot(model: nn.Module) -> list[object]:
    """Everything about a model that somebody could notice."""
    seen: list[object] = [state_dict_hash(model)]
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        gradient = None if tensor.grad is None else tensor.grad.numpy().tobytes()
        content = tensor.detach().numpy().tobytes()
        seen.append((name, id(tensor), tensor._version, tensor.requires_grad, gradient, content))
    for name, module in model.named_modules():
        hooks = [list(hooks) for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        seen.append((name, id(module), type(module), module.training, sorted(vars(module)), hooks))
    return seen


def surroundings() -> list[object]:
    """What an export could leave behind in torch itself."""
    return [
        torch.get_rng_state().numpy().tobytes(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.backends.mha.get_fastpath_enabled(),
    ]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[list, list, list, ExportReport]:
    model = lived_in()
    folder = tmp_path_factory.mktemp("lived_in")
    before, around = snapshot(model), surroundings()
    report = export(model, torch.ones(2, 20), folder / "m.onnx", external_data_threshold=0)
    return before, snapshot(model), [around, surroundings()], report


def test_hash_of_the_state_dict_is_the_same_after_an_export(exported):
    before, after, _, _ = exported
    assert before[0] == after[0]


def test_buffers_gradients_modes_hooks_and_versions_are_the_same_after_an_export(exported):
    before, after, _, _ = exported
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        assert old == new


def test_export_leaves_torch_as_it_was(exported):
    _, _, (before, after), _ = exported
    assert before == after


def test_training_goes_on_as_if_nothing_had_been_exported(tmp_path: Path):
    def trained(*, exports: bool) -> str:
        model = lived_in()
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
        for _ in range(2):
            optimizer.step()
            optimizer.zero_grad()
            model(torch.randn(8, 20)).square().mean().backward()
            if exports:
                export(model, torch.ones(2, 20), tmp_path / "m.onnx", verify=False)
        optimizer.step()
        return state_dict_hash(model)

    assert trained(exports=False) == trained(exports=True)


def test_second_export_gives_identical_bytes(exported, tmp_path: Path):
    *_, report = exported
    again = export(lived_in(), torch.ones(2, 20), tmp_path / "m.onnx", external_data_threshold=0)
    assert Path(again.path).read_bytes() == Path(report.path).read_bytes()
    assert Path(again.data_path).read_bytes() == Path(report.data_path).read_bytes()
    assert Path(again.data_path).name == Path(report.data_path).name


def test_export_of_another_process_gives_identical_bytes(exported, tmp_path: Path):
    """Sets of strings have a different order there."""
    *_, report = exported
    code = (
        "import sys, torch; from fanin.export import export; "
        "from tests.export.test_source_stays import lived_in; "
        "export(lived_in(), torch.ones(2, 20), sys.argv[1], external_data_threshold=0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.onnx")],
        env=os.environ | {"PYTHONHASHSEED": "4321", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "m.onnx").read_bytes() == Path(report.path).read_bytes()
