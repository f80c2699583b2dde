"""``fanin serve`` under load: throughput against dense, a soak with reloads, memory of sessions."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...model_check import checked_content
from ...session import open_session
from ..measure.server import Client, Clients, Server, ServerError, message
from ..measure.statistics import Spread
from ..measure.timing import Progress
from ..report.blocks import busy_note, conditions, figure_title
from ..report.document import Bullets, Document, Notes, Table
from ..report.figure import Axis, Figure, Panel, Series, names_axis
from ..report.text import plain_text, short
from ..results.plain import RAW
from ..results.result import Recorder, Result
from .model_pair import ModelPairSpec, input_shapes
from .specs import check_choices

PARTS = ("load", "soak", "memory")
MEMORY_BOUND = 0.02
"""What anonymous memory may move by in the last three quarters of a soak."""

_PEAK_SECONDS = 5.0
_SERVERS = ((1, 1), (1, 8), (2, 1), (2, 4))
"""Workers and sessions in each, whose memory is compared."""
_WARM_REQUESTS = 20
_WORKER_SECONDS = 60.0


@dataclass(frozen=True)
class BenchServerSpec(ModelPairSpec):
    """A model behind ``fanin serve``, clients on the loopback interface of the same machine.

    ``part`` is one of PARTS. *load*: closed loops of ``connections`` clients for ``seconds``, dense
    and condensed in ``rounds`` turns. *soak*: half of the peak rate for ``minutes``, while a new
    version replaces the model every ``reload_seconds``. *memory*: of one to eight sessions in one
    process and over two. ``workers``, ``threads`` and ``concurrency`` are the server's options,
    ``concurrency`` by default as it chooses.
    """

    part: str = "load"
    threads: int = 1
    workers: int = 1
    concurrency: int | None = None
    connections: int = 4
    rounds: int = 5
    seconds: float = 5.0
    minutes: float = 30.0
    reload_seconds: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("parts", (self.part,), PARTS)
        for name in ("threads", "workers", "concurrency", "connections", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        for name in ("seconds", "minutes", "reload_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")

    def options(self) -> list[str]:
        """Return the server's command line without its models."""
        options = ["--threads", str(self.threads), "--workers", str(self.workers)]
        return options + (["--concurrency", str(self.concurrency)] if self.concurrency else [])


@dataclass(frozen=True)
class ServerCase:
    """An engine (load), a moment (soak) or a number of workers and sessions (memory).

    ``figures`` by name: requests per second and latencies in seconds, medians over the rounds;
    numbers of requests; bytes.
    """

    title: str
    figures: dict[str, float]
    rounds: tuple[dict[str, float], ...] = field(default=(), metadata=RAW)


ServerResult = Result[ServerCase]
"""Its ``facts`` have ``kept``: whether the bounds of a soak were kept."""


def bench_server(spec: BenchServerSpec, *, progress: Progress | None = None) -> ServerResult:
    """Measure a part.

    Raises SessionError when a file does not open, ServerError when the server does not start.
    """
    if spec.part == "load":
        spec.require_baseline()
    recorder = Recorder()
    say = progress or (lambda _title, _done: None)
    measure = {"load": _load, "soak": _soak, "memory": _memory}[spec.part]
    cases, facts = measure(spec, _request(spec), say)
    title = f"{spec.model.name} behind fanin serve, {spec.part}"
    return recorder.result("server", title, spec.to_dict(), None, tuple(cases), **facts)


_Measured = tuple[list[ServerCase], dict[str, Any]]


def _request(spec: BenchServerSpec) -> bytes:
    session = open_session(spec.model, threads=1)
    rng = np.random.default_rng(0)
    shapes = input_shapes(spec.model, spec.model, (1,), session, session)
    inputs = {
        name: rng.standard_normal([1 if size is None else size for size in shape], np.float32)
        for name, shape in shapes.items()
    }
    return message("m", inputs)


def _load(spec: BenchServerSpec, raw: bytes, progress: Progress) -> _Measured:
    rounds: dict[str, list[dict[str, float]]] = {"dense": [], "condensed": []}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Server(f"m={path}", *spec.options()))
            for name, path in (("dense", spec.dense_path), ("condensed", spec.model))
        }
        for server in servers.values():
            _closed_loops(server, raw, spec.connections, min(2.0, spec.seconds))
        for number in range(spec.rounds):
            for name, server in servers.items():
                progress(name, number / spec.rounds)
                rounds[name].append(_closed_loops(server, raw, spec.connections, spec.seconds))
    cases = [
        ServerCase(
            name,
            {key: float(np.median([one[key] for one in own])) for key in own[0]},
            tuple(own),
        )
        for name, own in rounds.items()
    ]
    rates = ([one["requests_per_second"] for one in own] for own in rounds.values())
    ratios = [fast / slow for slow, fast in zip(*rates, strict=True)]
    return cases, {"throughput_ratio": Spread.of(ratios), "kept": True}


def _closed_loops(server: Server, raw: bytes, connections: int, seconds: float) -> dict[str, float]:
    clients = Clients(server.port, raw, connections)
    time.sleep(seconds)
    clients.stop()
    if clients.failures or not clients.latencies:
        raise ServerError(f"requests failed: {'; '.join(clients.failures[:3]) or 'none answered'}")
    p50, p99 = np.quantile(clients.latencies, (0.5, 0.99)).tolist()
    return {"requests_per_second": len(clients.latencies) / seconds, "p50": p50, "p99": p99}


def _soak(spec: BenchServerSpec, raw: bytes, progress: Progress) -> _Measured:
    with tempfile.TemporaryDirectory(prefix="fanin-soak-") as folder:
        versions = Path(folder) / "m"
        _add_version(versions, 1, spec.model)
        with Server(f"m={versions}", *spec.options(), "--poll", "1") as server:
            peak = _closed_loops(server, raw, spec.connections, min(_PEAK_SECONDS, spec.seconds))
            rate = peak["requests_per_second"] / 2
            clients = Clients(server.port, raw, spec.connections, rate)
            try:
                cases = _watch(spec, server, clients, versions, progress)
            finally:
                clients.stop()
            loads, failed_loads = map(server.log().count, ('"loaded"', '"load failed"'))
    # The first quarter fills caches and arenas; the rest must be flat.
    settled = np.array([case.figures["anonymous"] for case in cases[len(cases) // 4 :]])
    drift = float(np.abs(settled / np.median(settled) - 1).max())
    return cases, {
        "peak_requests_per_second": peak["requests_per_second"],
        "requests": len(clients.latencies),
        "failures": clients.failures,
        "loads": loads,
        "failed_loads": failed_loads,
        "memory_drift": drift,
        "memory_bound": MEMORY_BOUND,
        "kept": not clients.failures and not failed_loads and drift <= MEMORY_BOUND,
    }


def _watch(
    spec: BenchServerSpec, server: Server, clients: Clients, versions: Path, progress: Progress
) -> list[ServerCase]:
    """Alternate between taking a sample and reloading."""
    start, cases = time.monotonic(), []
    for number in range(2, 2 + max(1, round(spec.minutes * 60 / spec.reload_seconds))):
        time.sleep(spec.reload_seconds)
        passed = time.monotonic() - start
        figures: dict[str, float] = {
            "answered": len(clients.latencies),
            "failed": len(clients.failures),
            **server.memory(),
        }
        cases.append(ServerCase(f"{passed:.0f} s", figures))
        progress(f"{figures['answered']} answered", min(1.0, passed / (spec.minutes * 60)))
        _add_version(versions, number, spec.model)
        shutil.rmtree(versions / str(number - 2), ignore_errors=True)
    return cases


def _memory(spec: BenchServerSpec, raw: bytes, progress: Progress) -> _Measured:
    cases = []
    for at, (workers, sessions) in enumerate(_SERVERS):
        progress(f"{workers} × {sessions}", at / len(_SERVERS))
        names = ["m", *(f"m{number}" for number in range(1, sessions))]
        options = ["--workers", str(workers), "--threads", str(spec.threads), "--poll", "0"]
        with Server(*(f"{name}={spec.model}" for name in names), *options) as server:
            _wait_for_workers(server, workers)
            for _ in range(_WARM_REQUESTS):
                client = Client(server.port)
                client.ask(raw).outputs()
                client.close()
            figures: dict[str, float] = {
                "workers": workers,
                "sessions_per_worker": sessions,
                **server.memory(),
            }
        cases.append(ServerCase(f"{workers} × {sessions}", figures))
    return cases, {"model_bytes": sum(map(_size, _files(spec.model))), "kept": True}


def _wait_for_workers(server: Server, workers: int) -> None:
    end = time.monotonic() + _WORKER_SECONDS
    while server.log().count('"serving"') < workers:
        if time.monotonic() > end:
            raise ServerError(f"not all workers served within {_WORKER_SECONDS:.0f} s")
        time.sleep(0.1)


def _files(model: Path) -> list[Path]:
    beside = {model.parent / tensor.location for tensor in checked_content(model).external}
    return [model, *beside]


def _size(file: Path) -> int:
    return file.stat().st_size


def _add_version(versions: Path, number: int, model: Path) -> None:
    """Copy beside, then rename: no half of a version can be seen."""
    beside = versions / ".incoming"
    beside.mkdir(parents=True)
    for file in _files(model):
        shutil.copyfile(file, beside / ("model.onnx" if file == model else file.name))
    beside.rename(versions / str(number))


def server_document(result: ServerResult) -> Document:
    """Report on a part: a row for each case."""
    names = list(dict.fromkeys(name for case in result.cases for name in case.figures))
    rows = [
        [case.title, *(_text(name, case.figures.get(name)) for name in names)]
        for case in result.cases
    ]
    headings = ("", *(name.replace("_", " ") for name in names))
    table = Table(headings, rows, words=1, title=result.title)
    facts = [f"{name}: {plain_text(value)}" for name, value in result.facts.items()]
    notes = busy_note(result.machine)
    if not result.facts["kept"]:
        notes.append("the bounds are not kept: no request may fail, memory must stay flat")
    blocks = [table, Notes(notes), Bullets(facts), *conditions(result)]
    shown = "requests_per_second" if "requests_per_second" in names else "anonymous"
    values = [case.figures[shown] for case in result.cases]
    label = shown.replace("_", " ")
    panel = Panel(
        [Series(label, "bars", range(len(values)), values)],
        names_axis([case.title for case in result.cases]),
        Axis(label),
    )
    return Document(result.title, blocks, [table], Figure(figure_title(result), [panel]))


def _text(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name in ("anonymous", "file_backed"):
        return f"{value / 1e6:.1f} MB"
    if name in ("p50", "p99"):
        return f"{short(1e3 * value)} ms"
    return short(value) if isinstance(value, float) else str(value)
