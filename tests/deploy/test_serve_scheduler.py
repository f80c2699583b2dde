"""The queue: order, limit, timeouts, batches, closing."""

import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from fanin.deploy.serve.errors import QueueFullError, RequestError, SchedulerClosedError
from fanin.deploy.serve.errors import RequestTimeoutError as Passed
from fanin.deploy.serve.scheduler import Batching, Scheduler

from .._waiting import PATIENCE, wait_until


class Gate:
    """A model that doubles x once released, and records the rows of each run."""

    def __init__(self, opened=True):
        self.runs = []
        self.opened = threading.Event()
        self.begun = threading.Semaphore(0)
        if opened:
            self.opened.set()

    def __call__(self, outputs, inputs):
        self.begun.release()
        assert self.opened.wait(PATIENCE)
        x = inputs["x"]
        self.runs.append(x[:, 0].tolist())
        if (x < 0).any():
            raise RequestError("negative")
        return [2 * x for _ in outputs]


@pytest.fixture
def clock(monkeypatch):
    """The scheduler's clock, moved only by the test."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr("fanin.deploy.serve.scheduler.time", clock)
    return clock


def scheduler(gate, *, concurrency=1, limit=8, timeout=PATIENCE, batching=None):
    return Scheduler(
        "m", gate, concurrency=concurrency, limit=limit, timeout=timeout, batching=batching
    )


def submit(queue, *rows):
    return queue.submit({"x": np.array(rows, np.float32)[:, None]}, ["y"])


def answer(job):
    return job.future.result(PATIENCE)[0][:, 0].tolist()


def test_jobs_run_in_their_order_and_get_their_own_answers():
    gate = Gate()
    queue = scheduler(gate)
    jobs = [submit(queue, number) for number in range(8)]
    assert [answer(job) for job in jobs] == [[2.0 * number] for number in range(8)]
    assert gate.runs == [[number] for number in range(8)]
    assert all(job.queue_seconds >= 0 and job.compute_seconds > 0 for job in jobs)
    queue.close()


@pytest.mark.parametrize("limit", [0, 2])
def test_a_full_queue_refuses_at_once_and_serves_again_when_there_is_room(limit):
    gate = Gate(opened=False)
    queue = scheduler(gate, limit=limit)
    first = submit(queue, 1)
    assert gate.begun.acquire(timeout=PATIENCE)
    waiting = [submit(queue, 2) for _ in range(limit)]
    assert queue.waiting == limit
    with pytest.raises(QueueFullError, match=rf"'m' is full \({limit} requests wait\)") as caught:
        submit(queue, 3)
    assert caught.value.status == 503
    gate.opened.set()
    assert [answer(job) for job in (first, *waiting)] == [[2.0], *[[4.0]] * limit]
    assert answer(submit(queue, 5)) == [10.0]
    queue.close()


def test_as_many_runs_at_a_time_as_asked():
    gate = Gate(opened=False)
    queue = scheduler(gate, concurrency=3)
    jobs = [submit(queue, number) for number in range(5)]
    for _ in range(3):
        assert gate.begun.acquire(timeout=PATIENCE)
    assert not gate.begun.acquire(timeout=0.2)
    assert (queue.running, queue.waiting) == (3, 2)
    gate.opened.set()
    assert [answer(job) for job in jobs] == [[2.0 * number] for number in range(5)]
    queue.close()


def test_a_job_that_waited_too_long_does_not_run(clock):
    gate = Gate(opened=False)
    queue = scheduler(gate, timeout=5.0)
    first = submit(queue, 1)
    assert gate.begun.acquire(timeout=PATIENCE)
    late = submit(queue, 2)
    clock.now += 5.1
    gate.opened.set()
    assert answer(first) == [2.0]
    with pytest.raises(Passed, match="waiting in the queue") as caught:
        answer(late)
    assert caught.value.status == 504
    queue.close()
    assert gate.runs == [[1]]


def test_an_abandoned_job_frees_its_place():
    gate = Gate(opened=False)
    queue = scheduler(gate, limit=1)
    running = submit(queue, 1)
    assert gate.begun.acquire(timeout=PATIENCE)
    waiting = submit(queue, 2)
    assert "waiting in the queue" in str(queue.abandon(waiting))
    following = submit(queue, 3)
    assert "(running)" in str(queue.abandon(running))
    gate.opened.set()
    assert answer(following) == [6.0]
    queue.close()
    assert gate.runs == [[1], [3]]


def test_closing_finishes_the_queue_and_refuses_more():
    gate = Gate(opened=False)
    queue = scheduler(gate)
    jobs = [submit(queue, number) for number in range(4)]
    closing = threading.Thread(target=queue.close)
    closing.start()
    wait_until(lambda: queue._closed, "it is told to close")
    with pytest.raises(SchedulerClosedError):
        submit(queue, 9)
    gate.opened.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert [answer(job) for job in jobs] == [[2.0 * number] for number in range(4)]


def test_a_thread_that_waits_for_work_keeps_no_arrays_of_the_last_one():
    queue = scheduler(Gate())
    job = submit(queue, 1)
    kept = [weakref.ref(job.inputs["x"]), weakref.ref(job.future.result(PATIENCE)[0])]
    del job
    wait_until(lambda: not any(array() is not None for array in kept), "nobody holds the arrays")
    queue.close()


def test_an_error_of_one_job_leaves_the_others_alone():
    queue = scheduler(Gate())
    good, bad, after = submit(queue, 1), submit(queue, -1), submit(queue, 2)
    assert (answer(good), answer(after)) == ([2.0], [4.0])
    with pytest.raises(RequestError, match="negative"):
        answer(bad)
    queue.close()


def held(batching, *rows, **more):
    """Submit jobs while a first run occupies the thread; return queue, gate and jobs."""
    gate = Gate(opened=False)
    queue = scheduler(gate, batching=batching, **more)
    first = submit(queue, *[0] * batching.max_rows)
    assert gate.begun.acquire(timeout=PATIENCE)
    jobs = [submit(queue, *each) for each in rows]
    gate.opened.set()
    assert answer(first) == [0.0] * batching.max_rows
    return queue, gate, jobs


def test_waiting_requests_become_one_run_and_get_their_own_rows():
    queue, gate, jobs = held(Batching(4, 5.0), [1], [2, 3], [4])
    assert [answer(job) for job in jobs] == [[2.0], [4.0, 6.0], [8.0]]
    queue.close()
    assert gate.runs[1:] == [[1, 2, 3, 4]]


def test_a_batch_never_exceeds_its_rows():
    queue, gate, jobs = held(Batching(4, 0.0), [1, 2, 3], [4, 5], [6])
    assert [len(answer(job)) for job in jobs] == [3, 2, 1]
    queue.close()
    assert gate.runs[1:] == [[1, 2, 3], [4, 5, 6]]


def test_a_single_request_waits_no_longer_than_the_delay():
    gate = Gate()
    queue = scheduler(gate, batching=Batching(64, 0.02))
    assert answer(submit(queue, 1)) == [2.0]
    queue.close()
    assert gate.runs == [[1]]


def test_requests_of_another_shape_are_not_joined():
    gate = Gate(opened=False)
    queue = scheduler(gate, batching=Batching(8, 0.0))
    first = submit(queue, 0)
    assert gate.begun.acquire(timeout=PATIENCE)
    wide = queue.submit({"x": np.ones((1, 5), np.float32)}, ["y"])
    narrow = submit(queue, 2)
    gate.opened.set()
    assert wide.future.result(PATIENCE)[0].shape == (1, 5)
    assert answer(narrow) == [4.0]
    assert answer(first) == [0.0]
    queue.close()


def test_a_bad_request_in_a_batch_fails_alone():
    queue, _, jobs = held(Batching(3, 5.0), [1], [-2], [3])
    assert (answer(jobs[0]), answer(jobs[2])) == ([2.0], [6.0])
    with pytest.raises(RequestError, match="negative"):
        answer(jobs[1])
    queue.close()


def test_several_threads_lose_and_double_nothing():
    gate = Gate()
    queue = scheduler(gate, concurrency=3, limit=4000, batching=Batching(7, 0.001))
    jobs = [submit(queue, number, number + 0.5) for number in range(600)]
    assert [answer(job) for job in jobs] == [[2.0 * n, 2.0 * n + 1] for n in range(600)]
    queue.close()
    assert sorted(row for run in gate.runs for row in run) == [n / 2 for n in range(1200)]
    assert max(map(len, gate.runs)) <= 7


def test_a_brief_run_is_made_on_the_callers_thread_and_a_long_one_is_not(clock):
    threads = []

    def run(_outputs, inputs):
        threads.append(threading.current_thread())
        clock.now += 0.01 if inputs["x"].size > 100 else 1e-5
        return [inputs["x"]]

    queue = scheduler(run)
    small, large = {"x": np.zeros((1, 1))}, {"x": np.zeros((1, 10_000))}
    assert queue.run_inline_if_short(small, ["y"]) is None  # there is no estimate yet
    for _ in range(3):
        queue.submit(small, ["y"]).future.result(PATIENCE)
    wait_until(lambda: not queue.running, "the thread is back, a moment after its answer")
    job = queue.run_inline_if_short(small, ["y"])
    assert job is not None
    assert job.future.result(0)[0].shape == (1, 1)
    assert threads[-1] is threading.current_thread()
    queue.submit(large, ["y"]).future.result(PATIENCE)
    assert queue.run_inline_if_short(large, ["y"]) is None
    queue.close()
    with pytest.raises(SchedulerClosedError):
        queue.run_inline_if_short(small, ["y"])


def test_no_brief_run_while_the_threads_are_busy():
    gate = Gate()
    queue = scheduler(gate)
    for _ in range(30):
        answer(submit(queue, 1))
    gate.opened.clear()
    running = submit(queue, 2)
    wait_until(lambda: queue.running and not queue.waiting, "it runs")
    assert queue.run_inline_if_short({"x": np.ones((1, 1), np.float32)}, ["y"]) is None
    gate.opened.set()
    assert answer(running) == [4.0]
    queue.close()
