"""Models exported once for all tests of this folder, since torch.onnx.export takes seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from fanin.export import ExportReport, export

# No test fails because the machine is busy.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@dataclass(frozen=True)
class Exported:
    """A model, what it was exported with, and the report."""

    model: nn.Module
    masks: dict[str, Tensor]
    report: ExportReport

    @property
    def path(self) -> Path:
        return Path(self.report.path)


def export_condensed(*arguments, **options) -> ExportReport:
    """Export with every sparse layer condensed as it is, ablated neurons in place."""
    return export(*arguments, policy="condensed", fold=False, **options)


def sparse_mlp() -> tuple[nn.Module, dict[str, Tensor]]:
    """A small MLP: ablated neurons in layer 0, unequal rows in layer 2, dense head."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(40, 96),
        nn.ReLU(),
        nn.Linear(96, 64),
        nn.ReLU6(),
        nn.Dropout(0.5),
        nn.Linear(64, 10),
    )
    rng = np.random.default_rng(0)
    constant = np.argsort(rng.random((96, 40)), axis=1) < 5
    constant[[0, 7, 8, 95]] = False
    unequal = rng.random((64, 96)) < rng.uniform(0.02, 0.2, (64, 1))
    masks = {"0.weight": torch.from_numpy(constant), "2.weight": torch.from_numpy(unequal)}
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(name).mul_(mask)
    return model, masks


@pytest.fixture(scope="session")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model, masks = sparse_mlp()
    path = tmp_path_factory.mktemp("mlp") / "model.onnx"
    report = export_condensed(model, torch.randn(1, 40), path, masks=masks, dense_baseline=True)
    return Exported(model, masks, report)
