#!/usr/bin/env python3
"""Measure `fanin serve` on this machine: its own overhead, its load, and a soak.

    python tools/serving_check.py overhead --out docs/results/serving
    python tools/serving_check.py load --out docs/results/serving
    python tools/serving_check.py soak --minutes 30 --out docs/results/serving
    python tools/serving_check.py memory --out docs/results/serving

Without --model, a perceptron at 90 % sparsity is made; with it, --dense names the baseline for
`load`. Every client is on the loopback interface; `load` needs wrk. Exit status 1 when a bound is
not kept (overhead: 1.0 ms; soak: no failed request, memory within 2 %).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from _serving import Client, Message, Server, make_mlp, wrk

from fanin.deploy import open_session
from fanin.deploy.bench.measure.machine import describe_machine
from fanin.onnx_file import external_files, read_model_file

OVERHEAD_BOUND = 1.0  # ms
MEMORY_BOUND = 0.02

# Overhead shows best on a model that takes next to no time; the others want some work and memory.
_LARGE = (784, 3072, 3072, 10)
SIZES = {"overhead": (784, 300, 100, 10), "load": _LARGE, "soak": _LARGE, "memory": _LARGE}


def example(path: Path, batch: int = 1) -> dict[str, np.ndarray]:
    """Random float32 inputs of a model, symbolic sizes as ``batch``."""
    rng = np.random.default_rng(0)
    return {
        item.name: rng.standard_normal(
            [size if isinstance(size, int) else batch for size in item.shape], np.float32
        )
        for item in open_session(path, threads=1).get_inputs()
    }


def overhead(options: argparse.Namespace, model: Path, _dense: Path | None) -> tuple[dict, bool]:
    """Time a request and the bare session in turns, both in closed loops of one caller."""
    inputs = example(model)
    session = open_session(model, threads=options.threads)
    raw = Message.of("m", inputs).raw
    rounds = []
    with Server(f"m={model}", "--threads", str(options.threads)) as server:
        client = Client(server.port)
        bare = _timed(lambda: session.run(None, inputs), 300)
        asked = _timed(lambda: client.ask(raw), 300)
        for _ in range(options.rounds):
            bare = _timed(lambda: session.run(None, inputs), options.runs)
            asked = _timed(lambda: client.ask(raw), options.runs)
            rounds.append(
                {
                    "session_p50_ms": float(np.median(bare)),
                    "session_p99_ms": float(np.quantile(bare, 0.99)),
                    "request_p50_ms": float(np.median(asked)),
                    "request_p99_ms": float(np.quantile(asked, 0.99)),
                    "overhead_p50_ms": float(np.median(asked) - np.median(bare)),
                }
            )
        client.close()
    median = float(np.median([item["overhead_p50_ms"] for item in rounds]))
    result = {
        "bytes_of_request": len(raw),
        "threads": options.threads,
        "runs_per_round": options.runs,
        "overhead_p50_ms": median,
        "bound_ms": OVERHEAD_BOUND,
        "rounds": rounds,
    }
    return result, median <= OVERHEAD_BOUND


def load(options: argparse.Namespace, model: Path, dense: Path | None) -> tuple[dict, bool]:
    """Load one server after the other at equal threads, in turns."""
    if dense is None:
        raise SystemExit("load compares with a baseline: --dense")
    message = Message.of("m", example(model))
    rounds = []
    threads = ["--threads", str(options.threads), "--workers", str(options.workers)]
    concurrency = ["--concurrency", str(options.concurrency)] if options.concurrency else []
    with (
        Server(f"m={dense}", *threads, *concurrency) as first,
        Server(f"m={model}", *threads, *concurrency) as second,
    ):
        servers = {"dense": first, "condensed": second}
        for server in servers.values():
            wrk(server.port, message, options.connections, 2)
        for _ in range(options.rounds):
            rounds.append(
                {
                    name: wrk(server.port, message, options.connections, options.seconds)
                    for name, server in servers.items()
                }
            )
    summary = {
        name: {
            key: float(np.median([item[name][key] for item in rounds])) for key in rounds[0][name]
        }
        for name in servers
    }
    ratios = [
        item["condensed"]["requests_per_second"] / item["dense"]["requests_per_second"]
        for item in rounds
    ]
    result = {
        "client": "wrk, 1 thread",
        "connections": options.connections,
        "threads": options.threads,
        "workers": options.workers,
        "seconds": options.seconds,
        "median": summary,
        "throughput_ratio": float(np.median(ratios)),
        "rounds": rounds,
    }
    return result, True


def soak(options: argparse.Namespace, model: Path, _dense: Path | None) -> tuple[dict, bool]:
    """Run at half of the peak; a new version replaces the model every minute."""
    inputs = example(model)
    message = Message.of("m", inputs)
    with tempfile.TemporaryDirectory() as folder:
        versions = Path(folder) / "m"
        _add_version(versions, 1, model)
        arguments = ["--threads", str(options.threads), "--poll", "1"]
        with Server(f"m={versions}", *arguments) as server:
            peak = _peak(server, message, options.connections)
            pacer = _Pacer(server, message, options.connections, peak / 2)
            samples = _watch(options, server, pacer, versions, model)
            pacer.stop()
            loads = server.log().count('"event": "loaded"')
            failed_loads = server.log().count('"event": "load failed"')
    # The first quarter fills caches and arenas; the rest must be flat.
    settled = samples[len(samples) // 4 :]
    anonymous = np.array([item["anonymous"] for item in settled], float)
    drift = float(np.abs(anonymous / np.median(anonymous) - 1).max())
    result = {
        "minutes": options.minutes,
        "peak_requests_per_second": peak,
        "requests": pacer.answered,
        "requests_per_second": pacer.answered / (options.minutes * 60),
        "failed": pacer.failures,
        "loads": loads,
        "failed_loads": failed_loads,
        "memory_drift": drift,
        "memory_bound": MEMORY_BOUND,
        "samples": samples,
    }
    return result, not pacer.failures and not failed_loads and drift <= MEMORY_BOUND


def memory(options: argparse.Namespace, model: Path, _dense: Path | None) -> tuple[dict, bool]:
    """Count what eight sessions of a model take in one process, and over two workers."""
    rows: list[dict] = []
    message = Message.of("m0", example(model)).raw
    for workers, sessions in ((1, 1), (1, 8), (2, 1), (2, 4)):
        names = [f"m{number}={model}" for number in range(sessions)]
        arguments = ["--workers", str(workers), "--threads", "1", "--poll", "0"]
        with Server(*names, *arguments) as server:
            while server.log().count('"event": "serving"') < workers:
                time.sleep(0.1)
            for _ in range(20):
                client = Client(server.port)
                client.ask(message)
                client.close()
            found = {"workers": workers, "sessions_per_worker": sessions, **server.memory()}
        rows.append(found)
        print(json.dumps(found), flush=True)
    size = sum(file.stat().st_size for file in (model, *_data(model)))
    return {"model_bytes": size, "threads": options.threads, "rows": rows}, True


def _timed(call, runs: int) -> list[float]:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def _data(model: Path) -> list[Path]:
    return external_files(model, read_model_file(model))


def _add_version(versions: Path, number: int, model: Path) -> None:
    """Copy beside, then rename: no half of a version can be seen."""
    beside = versions / ".incoming"
    beside.mkdir(parents=True)
    shutil.copyfile(model, beside / "model.onnx")
    for data in _data(model):
        shutil.copyfile(data, beside / data.name)
    beside.rename(versions / str(number))


def _peak(server: Server, message: Message, connections: int, seconds: float = 5) -> float:
    """Measure requests per second of closed loops, by the same clients as the soak's."""
    pacer = _Pacer(server, message, connections, float("inf"))
    time.sleep(seconds)
    pacer.stop()
    return pacer.answered / seconds


class _Pacer:
    """Clients that together send at a rate, each on a connection of its own."""

    def __init__(self, server: Server, message: Message, connections: int, rate: float):
        self.answered = 0
        self.failures: list[str] = []
        self._pause = connections / rate
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(server.port, message.raw))
            for _ in range(connections)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, port: int, raw: bytes) -> None:
        client = Client(port)
        following = time.perf_counter()
        while not self._end.is_set():
            try:
                status = client.ask(raw)
            except OSError as error:
                self.failures.append(repr(error))
                client = Client(port)
                continue
            with self._lock:
                self.answered += 1
            if status != 200:
                self.failures.append(f"status {status}")
            following = max(following + self._pause, time.perf_counter() - 1)
            wait = following - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
        client.close()


def _watch(options, server: Server, pacer: _Pacer, versions: Path, model: Path) -> list[dict]:
    """Take a sample before each reload, reload, and so on."""
    start, samples, number = time.monotonic(), [], 1
    while time.monotonic() < start + options.minutes * 60:
        time.sleep(options.reload_seconds)
        sample = {
            "seconds": round(time.monotonic() - start),
            "answered": pacer.answered,
            "failed": len(pacer.failures),
            **server.memory(),
        }
        samples.append(sample)
        print(json.dumps(sample), flush=True)
        number += 1
        _add_version(versions, number, model)
        old = versions / str(number - 2)
        if old.exists():
            shutil.rmtree(old)
    return samples


def main() -> None:
    """Run one measurement; write OUT-NAME.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["overhead", "load", "soak", "memory"])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--dense", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="prefix of the result's file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=1000, help="requests of a round of overhead")
    parser.add_argument("--seconds", type=float, default=5, help="of a round of load")
    parser.add_argument("--minutes", type=float, default=30, help="of the soak")
    parser.add_argument("--reload-seconds", type=float, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, dense = options.model, options.dense
        if model is None:
            model, dense = make_mlp(Path(folder), SIZES[options.what])
            name = f"{'-'.join(map(str, SIZES[options.what]))} perceptron, 90 % sparse"
        else:
            name = model.name
        result, kept = globals()[options.what](options, model, dense)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    target = options.out.with_name(f"{options.out.name}-{options.what}.json")
    content = {"model": name, **result, "machine": describe_machine()}
    target.write_text(json.dumps(content, indent=1) + "\n")
    print(
        json.dumps(
            {key: value for key, value in result.items() if key not in ("rounds", "samples")}
        )
    )
    print(f"{'kept' if kept else 'NOT KEPT'}; written to {target}")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
