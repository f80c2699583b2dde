"""The timing loop on engines whose every nanosecond is scripted: no wall clock takes part."""

import itertools

import numpy as np
import pytest

from fanin.deploy.bench.measure.loop import measure
from fanin.deploy.bench.measure.problem import Problem, Sample
from fanin.deploy.bench.measure.timing import Timing

US = 1000  # nanoseconds


class Clock:
    """Time that only engines move on."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


class FakeEngine:
    """Doubles its input and takes the scripted time: a number, or one number per run."""

    version = "fake 1"
    form = "x + x"
    precision = "float32"
    call_seconds = None

    def __init__(self, name, clock, cost, *, threads=1, factor=2.0, log=None):
        self.name = name
        self.threads = threads
        self.closed = 0
        self.runs = 0
        self._clock = clock
        self._cost = itertools.repeat(cost) if isinstance(cost, int) else iter(cost)
        self._factor = factor
        self._log = log if log is not None else []

    def prepare(self, inputs):
        self._x = inputs["x"]
        self._clock.now += 5_000_000
        self._y = np.full_like(self._x, np.nan)

    def run(self):
        self.runs += 1
        self._log.append(self.name)
        self._clock.now += next(self._cost)
        self._y = self._x * np.float32(self._factor)

    def output(self):
        return [self._y]

    def close(self):
        self.closed += 1


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def problem():
    samples = []
    for seed in (1, 2):
        x = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
        samples.append(Sample({"x": x}, [2 * x.astype(np.float64)]))
    return Problem(*samples, tolerance=1e-6)


QUICK = Timing(rounds=4, turn=1e-3, lead_in=0, max_warmup=1)


def run(engines, problem, clock, timing=QUICK, null=None):
    return measure(engines, problem, timing, null=null, clock=clock)


def test_the_figure_of_a_turn_is_the_median_of_its_runs(clock, problem):
    # Every third run is preempted for a millisecond; the median does not see it.
    engine = FakeEngine("a", clock, itertools.cycle([10 * US, 10 * US, 1000 * US]))
    (result,), _ = run([engine], problem, clock)
    assert result.rounds_seconds == [pytest.approx(10e-6)] * 4


def test_load_and_first_run_are_reported_apart(clock, problem):
    engine = FakeEngine("a", clock, itertools.chain([700 * US], itertools.repeat(10 * US)))
    (result,), _ = run([engine], problem, clock)
    assert result.load_seconds == pytest.approx(5e-3)
    assert result.first_run_seconds == pytest.approx(700e-6)
    assert result.rounds_seconds == [pytest.approx(10e-6)] * 4


def test_repeats_fill_the_turn(clock, problem):
    (result,), _ = run([FakeEngine("a", clock, 10 * US)], problem, clock)
    assert result.repeats == 100


def test_slow_engines_still_get_the_minimum_of_repeats(clock, problem):
    timing = Timing(rounds=2, turn=1e-3, lead_in=0, min_repeats=3)
    (result,), _ = run([FakeEngine("a", clock, 50_000 * US)], problem, clock, timing)
    assert result.repeats == 3


def test_a_slow_engine_runs_once_a_turn(clock, problem):
    timing = Timing(rounds=2, turn=1e-3, min_repeats=3)
    engine = FakeEngine("a", clock, 300_000 * US)
    (result,), _ = run([engine], problem, clock, timing)
    assert result.repeats == 1
    # The first run, three windows of warm-up, one run a round and no lead-in, and the check.
    assert engine.runs == 1 + 3 + 2 + 1


def test_rounds_end_when_the_budget_is_spent_but_not_before_the_least(clock, problem):
    def rounds(budget):
        timing = Timing(rounds=40, turn=1e-2, lead_in=0, budget=budget, min_rounds=4)
        (result,), _ = run([FakeEngine("a", clock, 100 * US)], problem, clock, timing)
        return len(result.rounds_seconds)

    assert rounds(1e-4) == 4
    assert 10 < rounds(0.2) < 25  # of 10 ms each, after a warm-up of 15 ms
    assert rounds(None) == 40


def test_runs_under_conditions_come_once_a_round_after_the_preparation(clock, problem):
    log = []
    engines = [FakeEngine(name, clock, 500 * US, log=log) for name in "ab"]

    def prepare_run(condition):
        if condition:
            log.append(condition)
            clock.now += 9_000_000

    timing = Timing(rounds=2, turn=1e-3, lead_in=0, conditions=("cold", "paced"))
    results, _ = measure(engines, problem, timing, clock=clock, prepare_run=prepare_run)
    start = log.index("cold")
    assert log[start : start + 16] == [
        *("cold", "a", "cold", "b", "cold", "b", "cold", "a"),
        *("paced", "a", "paced", "b", "paced", "b", "paced", "a"),
    ]
    for result in results:
        assert result.conditions == {
            "cold": [pytest.approx(500e-6)] * 2,
            "paced": [pytest.approx(500e-6)] * 2,
        }


def test_every_timed_run_is_kept_for_percentiles(clock, problem):
    (result,), _ = run(
        [FakeEngine("a", clock, itertools.cycle([10 * US, 30 * US]))], problem, clock
    )
    assert len(result.runs_seconds) == 4 * result.repeats
    assert sorted(set(result.runs_seconds)) == pytest.approx([10e-6, 30e-6])


def test_rounds_are_interleaved_and_reversed_every_other_time(clock, problem):
    log = []
    engines = [FakeEngine(name, clock, 500 * US, log=log) for name in "ab"]
    null = FakeEngine("null", clock, 500 * US, log=log)
    timing = Timing(rounds=2, turn=1e-3, lead_in=0, min_repeats=3, steady_windows=2)
    run(engines, problem, clock, timing, null)
    order = [name for name, _ in itertools.groupby(log)]
    # first runs, warm-ups, round 1, round 2, checks (which the null engine has too)
    once = ["null", "a", "b"]
    expected = once + once + once + once[::-1] + once
    assert order == [name for name, _ in itertools.groupby(expected)]


def test_warm_up_ends_when_the_medians_are_steady(clock, problem):
    falling = (max(10 * US, round(100 * US * 0.97**run)) for run in itertools.count())
    (result,), _ = run([FakeEngine("a", clock, falling)], problem, clock)
    assert result.warmup.steady
    assert result.warmup.runs > 75  # 0.97 ** 75 is a tenth
    assert result.rounds_seconds == [pytest.approx(10e-6)] * 4


def test_warm_up_that_never_settles_is_reported(clock, problem):
    # Half a turn at 10 µs a run, then half a turn at 40 µs, and so on.
    restless = itertools.cycle([10 * US] * 50 + [40 * US] * 13)
    timing = Timing(rounds=1, turn=1e-3, lead_in=0, max_warmup=0.05)
    (result,), _ = run([FakeEngine("a", clock, restless)], problem, clock, timing)
    assert not result.warmup.steady
    assert result.warmup.seconds >= 0.05


def test_lead_in_runs_are_not_timed(clock, problem):
    # A turn is 2 ms of lead-in at 1 ms a run and then two timed runs; the cost falls after two.
    warm = [1000 * US] * (1 + 2 * 2)  # the first run, and two windows of a turn's half
    turn = [1000 * US, 1000 * US, 200 * US, 200 * US]
    timing = Timing(
        rounds=1, turn=4e-3, lead_in=2e-3, min_repeats=1, steady_windows=2, max_warmup=10
    )
    engine = FakeEngine("a", clock, itertools.chain(warm, turn, itertools.repeat(200 * US)))
    (result,), _ = run([engine], problem, clock, timing)
    assert result.rounds_seconds == [pytest.approx(200e-6)]


def test_right_engines_have_errors_and_everything_is_closed_once(clock, problem):
    engines = [FakeEngine("a", clock, US), FakeEngine("b", clock, US)]
    null = FakeEngine("null", clock, US, factor=0)
    results, null_result = run(engines, problem, clock, null=null)
    assert [one.excluded for one in results] == [None, None]
    assert [one.error_before for one in results] == [0, 0]
    assert [one.error_after for one in results] == [0, 0]
    assert null_result.excluded is None
    assert null_result.error_after is None
    assert [engine.closed for engine in (*engines, null)] == [1, 1, 1]


def test_a_wrong_engine_is_excluded_with_its_error_and_the_others_go_on(clock, problem):
    results, _ = run(
        [FakeEngine("wrong", clock, US, factor=2.001), FakeEngine("right", clock, US)],
        problem,
        clock,
    )
    assert "output 0 is wrong by 5.0e-04" in results[0].excluded
    assert results[0].rounds_seconds == []
    assert results[1].excluded is None
    assert len(results[1].rounds_seconds) == 4


def test_nan_is_wrong(clock, problem):
    (result,), _ = run([FakeEngine("a", clock, US, factor=np.nan)], problem, clock)
    assert "wrong by nan" in result.excluded


def test_another_dtype_is_wrong(clock, problem):
    engine = FakeEngine("a", clock, US)
    engine.output = lambda: [engine._y.astype(np.float16)]
    (result,), _ = run([engine], problem, clock)
    assert "float16, not float32" in result.excluded


def test_another_shape_is_wrong(clock, problem):
    engine = FakeEngine("a", clock, US)
    engine.output = lambda: [engine._y[:1]]
    (result,), _ = run([engine], problem, clock)
    assert "shape (1, 3), not (2, 3)" in result.excluded


def test_an_answer_that_does_not_depend_on_the_input_is_found_out(clock, problem):
    class Remembers(FakeEngine):
        def run(self):
            if not self.runs:
                super().run()
            self._clock.now += US

    (result,), _ = run([Remembers("a", clock, US)], problem, clock)
    assert result.error_before == 0
    assert "output 0 is wrong" in result.excluded


def test_an_engine_that_turns_wrong_while_it_is_timed_is_found_out(clock, problem):
    class Decays(FakeEngine):
        def run(self):
            super().run()
            if self.runs > 50:
                self._y[0, 0] += 1

    (result,), _ = run([Decays("a", clock, 10 * US)], problem, clock)
    assert "output 0 is wrong" in result.excluded


def test_another_number_of_threads_is_unfair(clock, problem):
    (result,), _ = run([FakeEngine("a", clock, US, threads=2)], problem, clock)
    assert "runs with 2 threads, not 1" in result.excluded


def test_an_engine_that_fails_in_any_step_is_excluded_with_its_words(clock, problem):
    class Fails(FakeEngine):
        def prepare(self, _):
            raise OSError("no license")

    class Breaks(FakeEngine):
        def run(self):
            if self.runs == 200:
                raise MemoryError("full")
            super().run()

    failing, breaking = Fails("fails", clock, US), Breaks("breaks", clock, 10 * US)
    results, _ = run([failing, breaking, FakeEngine("right", clock, US)], problem, clock)
    assert [one.excluded for one in results] == ["OSError: no license", "MemoryError: full", None]
    assert [failing.closed, breaking.closed] == [1, 1]


def test_a_broken_null_session_does_not_stop_the_others(clock, problem):
    class Fails(FakeEngine):
        def prepare(self, _):
            raise OSError("no")

    (result,), null = run(
        [FakeEngine("a", clock, US)], problem, clock, null=Fails("null", clock, US)
    )
    assert null.excluded == "OSError: no"
    assert len(result.rounds_seconds) == 4


def test_engines_of_the_same_name_are_refused(clock, problem):
    with pytest.raises(ValueError, match="different names"):
        run([FakeEngine("a", clock, US), FakeEngine("a", clock, US)], problem, clock)


def test_the_pools_of_other_engines_get_time_to_stop_before_each_turn(clock, problem):
    settled = []
    timing = Timing(threads=2, rounds=3, turn=1e-3, lead_in=0)
    engine = FakeEngine("a", clock, 10 * US, threads=2)
    measure([engine], problem, timing, clock=clock, settle=lambda: settled.append(engine.runs))
    assert len(settled) == 1 + 3  # the warm-up and the rounds


def test_inputs_are_aligned_and_restored_after_the_check(clock, problem):
    run([FakeEngine("a", clock, US)], problem, clock)
    x = problem.inputs["x"]
    assert x.ctypes.data % 64 == 0
    np.testing.assert_array_equal(x, problem.timed.inputs["x"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 0),
        ("threads", 0),
        ("threads", 100_000),
        ("min_repeats", 0),
        ("turn", 0),
        ("max_warmup", -1),
        ("steady_windows", 1),
        ("steady_tolerance", float("nan")),
        ("budget", 0),
        ("conditions", ("hot",)),
        ("conditions", ("cold", "cold")),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        Timing(**{name: value})
