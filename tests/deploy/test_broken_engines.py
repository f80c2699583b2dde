"""Engines that are broken on purpose, each in another way: they are left out with the reason."""

from itertools import pairwise

import numpy as np
import onnx
import pytest

from fanin.deploy.bench.engines.ort import OrtEngine
from fanin.deploy.bench.measure.layer_problem import layer_problem
from fanin.deploy.bench.measure.loop import measure
from fanin.deploy.bench.measure.timing import Timing
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.export.onnx_op import condensed_layer_model

QUICK = Timing(rounds=3, turn=1e-3, lead_in=1e-4, max_warmup=0.05)


@pytest.fixture(scope="module")
def weight():
    return random_sparse_layer("random", np.random.default_rng(0), 24, 10, 7, 5)


@pytest.fixture
def path(weight, tmp_path):
    onnx.save(condensed_layer_model(weight, 2), tmp_path / "layer.onnx")
    return tmp_path / "layer.onnx"


class Sound(OrtEngine):
    """The correct layer."""

    def __init__(self, path, threads=1):
        super().__init__(type(self).__name__, "CondensedGemm", path, threads, library=True)


class Wrong(Sound):
    """One output is off by a hundredth of the largest."""

    def output(self):
        (y,) = (y.copy() for y in super().output())
        y[1, 3] += 0.01 * np.abs(y).max()
        return [y]


class ManyThreads(Sound):
    """Requests a different number of threads than configured."""

    def prepare(self, inputs):
        self.threads = 2
        super().prepare(inputs)


class Half(Sound):
    """Returns float16."""

    def output(self):
        return [y.astype(np.float16) for y in super().output()]


class Rounded(Sound):
    """Computes in float16 and says float32."""

    def output(self):
        return [y.astype(np.float16).astype(np.float32) for y in super().output()]


class Once(Sound):
    """Computes the first run only."""

    def run(self):
        if not getattr(self, "done", False):
            super().run()
        self.done = True


class SameInput(Sound):
    """Computes again only where most of the input changed."""

    def prepare(self, inputs):
        super().prepare(inputs)
        self.inputs, self.seen = inputs["x"], None

    def run(self):
        if self.seen is None or (self.seen != self.inputs).sum() > 1:
            super().run()
            self.seen = self.inputs.copy()


def outcome(engine, problem):
    (measured,), _ = measure([engine], problem, QUICK)
    return measured.excluded


def test_a_sound_engine_stays(path, weight):
    assert outcome(Sound(path), layer_problem(weight, 2, 0)) is None


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (Wrong, "output 0 is wrong by 1.0e-02"),
        (ManyThreads, "runs with 2 threads, not 1"),
        (Half, "output 0 is float16, not float32"),
        (Rounded, "output 0 is wrong by"),
        (Once, "output 0 is wrong by"),
        (SameInput, "output 0 is wrong by"),
    ],
)
def test_a_broken_engine_is_left_out_with_the_reason(broken, reason, path, weight):
    excluded = outcome(broken(path), layer_problem(weight, 2, 0))
    assert excluded is not None
    assert reason in excluded


def test_the_others_go_on_and_nothing_is_compared_with_a_broken_engine(path, weight):
    measured, _ = measure([Once(path), Sound(path)], layer_problem(weight, 2, 0), QUICK)
    assert [one.excluded is None for one in measured] == [False, True]
    assert len(measured[1].rounds_seconds) == 3


def test_every_timed_run_has_another_input_than_the_one_before(path, weight):
    seen = []

    class Records(Sound):
        def run(self):
            seen.append(bound["x"].copy())
            super().run()

    problem = layer_problem(weight, 2, 0)
    bound = problem.inputs
    timing = Timing(rounds=2, turn=1e-6, min_repeats=4, lead_in=0, max_warmup=0.05)
    measure([Records(path)], problem, timing)
    turns = seen[-1 - 2 * 4 : -1]  # behind them comes the run on fresh input
    for start in (0, 4):
        turn = turns[start : start + 4]
        assert all((a != b).sum() == 1 for a, b in pairwise(turn))
    assert (turns[3] != turns[7]).sum() == 1  # the checked input changes from round to round
