from contextlib import contextmanager

import pytest
import torch

from fanin.trainer.recipe import parse_config
from fanin.trainer.training_run import TrainingRun

SMALL = """
[data]
name = "digits"
[model]
name = "mlp"
hidden = [96, 48]
[training]
epochs = 3
batch_size = 64
device = "cpu"
log_every = 5
checkpoint_every = 7
[optimizer]
name = "sgd"
lr = 0.05
[method]
name = "srigl"
sparsity = 0.8
gamma_sal = 0.9
[sparsifier]
update_every = 5
gradient_window = 2
"""


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Small tensors gain nothing from threads, which on a busy machine wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def interrupt_at(monkeypatch):
    """Makes a context that a KeyboardInterrupt ends before the training's step of a number."""

    @contextmanager
    def interrupting(step):
        take = TrainingRun._step

        def interrupted(run, *arguments):
            if run.progress.step == step:
                raise KeyboardInterrupt
            take(run, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(TrainingRun, "_step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                yield

    return interrupting


@pytest.fixture(scope="session")
def small_config():
    """A sparse run on digits that takes about a second: 3 epochs of 23 steps."""
    return parse_config(SMALL, "small")
