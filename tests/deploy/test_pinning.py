"""Keeping a measurement on a few CPUs, and what the benchmarks' child processes share."""

import os
import time

import pytest

from fanin.deploy.bench.engines.child import conditions
from fanin.deploy.bench.measure.pinning import pinned

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="the system has no affinities"
)


@needs_affinity
def test_the_last_cpus_are_taken_and_all_are_given_back():
    before = os.sched_getaffinity(0)
    with pinned(1):
        inside = os.sched_getaffinity(0)
    expected = {max(before)} if len(before) > 1 else before
    assert (inside, os.sched_getaffinity(0)) == (expected, before)


@needs_affinity
@pytest.mark.parametrize("options", [{"threads": 1, "pin": False}, {"threads": 4096}])
def test_nothing_is_pinned_without_need(options):
    before = os.sched_getaffinity(0)
    with pinned(**options):
        assert os.sched_getaffinity(0) == before


@needs_affinity
def test_the_cpus_come_back_after_an_error():
    before = os.sched_getaffinity(0)
    with pytest.raises(OSError, match="x"), pinned(1):
        raise OSError("x")
    assert os.sched_getaffinity(0) == before


def test_a_pause_is_between_5_and_50_milliseconds(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    made = conditions.Conditions(1, seed=3)
    for _ in range(200):
        made.prepare("paced")
    assert 0.005 <= min(slept) < 0.01
    assert 0.045 < max(slept) <= 0.05
    made.prepare("")
    assert len(slept) == 200


@pytest.mark.parametrize("threads", [1, 2])
def test_flushing_writes_all_of_twice_the_largest_cache(threads, monkeypatch):
    monkeypatch.setattr(conditions, "_LEAST_FLUSH", 1 << 16)
    monkeypatch.setattr(conditions, "cache_sizes", lambda: {1: 1 << 12, 2: 1 << 17})
    made = conditions.Conditions(threads)
    made.prepare("cold")
    made.prepare("cold")
    assert sum(part.nbytes for part in made._parts) == 2 << 17
    assert all((part == 2).all() for part in made._parts)


@needs_affinity
def test_onnx_runtime_is_loaded_while_the_process_has_all_its_cpus(monkeypatch):
    """It decides about AMX by then, and leaves it out with one CPU."""
    cpus = []
    monkeypatch.setattr(
        "fanin.deploy.bench.measure.pinning.load_onnxruntime",
        lambda: cpus.append(os.sched_getaffinity(0)),
    )
    before = os.sched_getaffinity(0)
    with pinned(1):
        pass
    assert cpus == ([before] if len(before) > 1 else [])
