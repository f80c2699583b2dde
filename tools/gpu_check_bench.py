"""Part of gpu_check: one layer, condensed against what PyTorch offers, in interleaved rounds.

All costs of ours are counted: from x [batch, in] to y [batch, out] with the bias. A time is that of
one call, from a CUDA graph of several calls in a row ("graph") or from a plain loop between two
events ("events", which includes launch gaps). Buffers are the same in every call, so all that fits
the L2 is there; with "flushed", 256 MB are written before each call.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "ort_ops"))

from _cuda_layers import Layer, bits

START = time.monotonic()
SECONDS = float(os.environ.get("FANIN_CHECK_SECONDS", "150"))
JSON = Path(os.environ.get("FANIN_CHECK_JSON", "bench.json"))
DRY = "--dry-run" in sys.argv
DEVICE = "cpu" if DRY else "cuda"
TORCH_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROUNDS = 11
GRAPH_SECONDS = 400e-6  # of one replay
LAYERS = [(3072, 768), (768, 3072)]
Call = Callable[[], Any]


def left() -> float:
    """Return the seconds that are left."""
    return SECONDS - (time.monotonic() - START)


class CondensedLayer:
    """Our kernels on torch tensors."""

    def __init__(self, layer: Layer, kind: str, kernel: str | None = None) -> None:
        from fanin.ort_ops import _cuda

        self.out_features = layer.out_features
        self.gemm = _cuda.PackedGemm(
            **layer.arrays(),
            in_features=layer.in_features,
            activations=kind,
            kernel=kernel,
        )

    def call(self, x: torch.Tensor, y: torch.Tensor) -> Call:
        """Return a launch from x to y on torch's current stream."""

        def run() -> torch.Tensor:
            stream = torch.cuda.current_stream().cuda_stream
            self.gemm.run(x=x.data_ptr(), batch=x.shape[0], y=y.data_ptr(), stream=stream)
            return y

        return run


def with_tf32(on: bool, call: Call) -> Call:
    """Return the call with TF32 products allowed or not."""

    def run() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = on
        try:
            return call()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return run


def dense_weight(layer: Layer) -> torch.Tensor:
    """Return the layer as [out, in] float32 on the device."""
    dense = np.zeros((layer.out_features, layer.in_features), np.float32)
    dense[layer.rows[:, None], layer.indices.astype(np.int64)] = layer.values
    return torch.from_numpy(dense).to(DEVICE)


def contenders(layer: Layer, x: torch.Tensor, kind: str) -> dict[str, Call]:
    """Everything that computes the layer; those that cannot be made are left out with a message."""
    weight32 = dense_weight(layer)
    weight = weight32.to(x.dtype)
    bias32 = torch.from_numpy(layer.bias).to(DEVICE)
    bias = bias32.to(x.dtype)
    y = torch.empty(len(x), layer.out_features, dtype=x.dtype, device=DEVICE)
    linear = torch.nn.functional.linear
    calls: dict[str, Call] = {}

    def offer(name: str, make: Callable[[], Call]) -> None:
        try:
            call = make()
            call()
            calls[name] = call
        except Exception as error:
            print(f"  {name}: {type(error).__name__}: {str(error)[:200]}", flush=True)

    if DRY:
        calls["condensed"] = lambda: y
    else:
        from fanin.ort_ops import _cuda

        offer("condensed", lambda: CondensedLayer(layer, kind).call(x, y))
        for row in _cuda.kernel_table():
            if row["activations"] == kind:
                name = f"kernel {row['layout']}"
                offer(name, lambda row=row: CondensedLayer(layer, kind, row["name"]).call(x, y))
    if kind == "float32":
        offer("dense float32", lambda: with_tf32(False, lambda: linear(x, weight, bias)))
        offer("dense TF32", lambda: with_tf32(True, lambda: linear(x, weight, bias)))
        x16, weight16, bias16 = x.bfloat16(), weight.bfloat16(), bias.bfloat16()
        offer("dense bfloat16", lambda: lambda: linear(x16, weight16, bias16))
    else:
        offer(f"dense {kind}", lambda: lambda: linear(x, weight, bias))
    # The product stays transposed, [out, batch]: less work than the others do.
    csr = weight.to_sparse_csr()
    offer("CSR", lambda: lambda: torch.sparse.mm(csr, x.t()) + bias[:, None])
    if len(layer.rows) < layer.out_features:
        rows = torch.from_numpy(layer.rows.astype(np.int64)).to(DEVICE)
        active, active_bias = weight[rows].contiguous(), bias[rows].contiguous()

        def structured() -> torch.Tensor:
            y.copy_(bias.expand_as(y))
            return y.index_copy_(1, rows, linear(x, active, active_bias))

        offer("structured", lambda: structured)
    if kind != "float32" and len(x) >= 64:
        offer("2:4", lambda: two_of_four(x, weight32, bias))
    return calls


def two_of_four(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Call:
    """Another mask than the layer's, half dense: a rate to compare with, not the same function."""
    groups = torch.randn_like(weight).view(-1, 4)
    keep = torch.zeros_like(groups).scatter_(1, groups.abs().topk(2, 1).indices, 1)
    pruned = (groups * keep).view_as(weight).to(x.dtype)
    sparse = torch.sparse.to_sparse_semi_structured(pruned)
    return lambda: torch.nn.functional.linear(x, sparse, bias)


def events_time(call: Call, repeat: int) -> float:
    """Seconds a call, plain launches in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeat):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / repeat


def graph_timer(call: Call, repeat: int) -> Callable[[], float]:
    """Return a timer of one call from a graph of several."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            call()
    graph.replay()
    return lambda: events_time(graph.replay, 1) / repeat


def flushed_timer(call: Call, buffer: torch.Tensor) -> Callable[[], float]:
    """Return a timer of one call after the buffer has replaced the L2's content."""

    def measure() -> float:
        buffer.zero_()
        return events_time(call, 1)

    return measure


def measure(calls: dict[str, Call], mode: str, flush: torch.Tensor | None) -> dict[str, Any]:
    """Interleaved rounds: median, least and greatest time, and the ratio to ours round by round."""
    timers: dict[str, tuple[str, Callable[[], float]]] = {}
    for name, call in calls.items():
        if DRY:
            timers[name] = (mode, lambda name=name: 1e-5 * (1 + len(name) / 10))
            continue
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        repeat = int(np.clip(GRAPH_SECONDS / max(events_time(call, 3), 1e-6), 4, 40))
        used, timer = mode, None
        if mode == "graph":
            try:
                timer = graph_timer(call, repeat)
            except Exception as error:
                print(f"  {name} in a graph: {str(error)[:160]}", flush=True)
                torch.cuda.synchronize()
                used = "events"
        elif mode == "flushed":
            assert flush is not None
            timer = flushed_timer(call, flush)
        if timer is None:
            timer = lambda call=call, repeat=repeat: events_time(call, repeat)  # noqa: E731
        timers[name] = (used, timer)
    times: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(ROUNDS):
        for name, (_, timer) in timers.items():
            times[name].append(timer())
    ours = np.array(times["condensed"])
    rows = {}
    for name, (used, _) in timers.items():
        taken = np.array(times[name])
        ratios = taken / ours
        rows[name] = {
            "mode": used,
            "microseconds": round(float(np.median(taken)) * 1e6, 3),
            "range_microseconds": [round(float(t) * 1e6, 3) for t in (taken.min(), taken.max())],
            "ratio": round(float(np.median(ratios)), 3),
            "range_ratio": [round(float(r), 3) for r in (ratios.min(), ratios.max())],
        }
    return rows


def error_of(layer: Layer, x: torch.Tensor, calls: dict[str, Call]) -> dict[str, float]:
    """Return the relative error of each contender of the same function, from float64."""
    exact = x.double() @ dense_weight(layer).double().t() + torch.from_numpy(layer.bias).to(
        DEVICE, torch.float64
    )
    errors = {}
    for name, call in calls.items():
        if name == "2:4" or DRY:
            continue
        if not name.startswith("dense"):
            poison = call()
            poison.fill_(float("nan"))
        result = call()
        result = result.t() if name == "CSR" else result
        errors[name] = float(torch.linalg.norm(result.double() - exact) / torch.linalg.norm(exact))
    return errors


def ceilings() -> dict[str, float]:
    """Measure what the card does at most: bytes of a large copy, large products."""
    if DRY:
        return {"bytes_per_second": 3e12, "float32_macs_per_second": 3e13}
    big = torch.empty(1 << 29, dtype=torch.uint8, device=DEVICE).random_(255)
    other = torch.empty_like(big)
    copy = min(events_time(lambda: other.copy_(big), 3) for _ in range(3))
    a = torch.randn(4096, 4096, device=DEVICE)
    half = a.bfloat16()
    torch.backends.cuda.matmul.allow_tf32 = False
    rates = {"bytes_per_second": 2 * big.numel() / copy}
    for name, call in {
        "float32": lambda: a @ a,
        "tf32": with_tf32(True, lambda: a @ a),
        "bfloat16": lambda: half @ half,
    }.items():
        call()
        rates[f"{name}_macs_per_second"] = 4096**3 / min(events_time(call, 3) for _ in range(3))
    return rates


def floors(
    layer: Layer, batch: int, kind: str, packed: int, rates: dict[str, float], clock: float
) -> dict[str, float]:
    """Microseconds: device memory for all bytes once; multiply-adds; columns from shared memory."""
    size = 4 if kind == "float32" else 2
    macs = batch * layer.values.size
    moved = packed + batch * (layer.in_features + layer.out_features) * size
    multiprocessors = 132
    if not DRY:
        multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    return {
        "bytes": moved / rates["bytes_per_second"] * 1e6,
        "operations": macs / rates["float32_macs_per_second"] * 1e6,
        "shared_memory": macs * size / (128 * multiprocessors * clock) * 1e6,
    }


def cases() -> list[dict[str, Any]]:
    """In the order of their weight, since time may run out."""
    listed = []
    for sparsities in ((90,), (95, 80, 99)):
        for kind in ("float32", "bfloat16"):
            for sparsity in sparsities:
                for shape in LAYERS:
                    for batch in (1, 256, 8, 64, 2048, 16, 32):
                        if batch in (16, 32) and sparsity != 90:
                            continue  # only to see where the kernels cross
                        listed.append({"kind": kind, "shape": shape, "batch": batch})
                        listed[-1]["sparsity"] = sparsity
                        listed[-1]["ablated"] = 0.0
        if sparsities == (90,):
            for batch in (1, 256):
                listed.append({"kind": "float32", "shape": LAYERS[0], "batch": batch})
                listed[-1] |= {"sparsity": 90, "ablated": 0.3}
    return listed


def make_layer(case: dict[str, Any]) -> Layer:
    """Draw the share of weights in all, the same number in each row that is not ablated."""
    in_features, out_features = case["shape"]
    active = round(out_features * (1 - case["ablated"]))
    fan_in = round(in_features * (1 - case["sparsity"] / 100) * out_features / active)
    rng = np.random.default_rng()
    return Layer.random(rng, in_features, out_features, fan_in, active)


def run_case(
    case: dict[str, Any], layer: Layer, rates: dict[str, float], clock: float, flush: Any
) -> dict[str, Any]:
    """Check and time one case."""
    kind, batch = case["kind"], case["batch"]
    x = torch.randn(batch, layer.in_features, device=DEVICE).to(TORCH_TYPES[kind])
    calls = contenders(layer, x, kind)
    result = dict(case)
    result["relative_errors"] = error_of(layer, x, calls)
    packed = [{"kernel": "dry run", "bytes": bits(layer.values).nbytes, "padding": 1.0}]
    if not DRY:
        from fanin.ort_ops import _cuda

        probe = _cuda.PackedGemm(
            **layer.arrays(),
            in_features=layer.in_features,
            activations=kind,
            min_batch=batch,
            max_batch=batch,
        )
        packed = probe.info()
    result["packed"] = packed
    result["floors_microseconds"] = floors(layer, batch, kind, packed[0]["bytes"], rates, clock)
    result["graph"] = measure(calls, "graph", flush)
    plain = {k: v for k, v in calls.items() if not k.startswith("kernel")}
    if case["sparsity"] == 90:
        result["events"] = measure(plain, "events", flush)
    if batch == 1:
        result["flushed"] = measure(plain, "flushed", flush)
    return result


def main() -> int:
    """Measure case by case; results after each."""
    result: dict[str, Any] = {"cases": [], "complete": False, "rounds": ROUNDS}
    result["torch"] = torch.__version__
    result["cuda_of_torch"] = torch.version.cuda
    result["rates"] = rates = ceilings()
    clock = 1.98e9
    if not DRY:
        properties = torch.cuda.get_device_properties(0)
        result["multiprocessors"] = properties.multi_processor_count
        result["l2_bytes"] = properties.L2_cache_size
        clock = getattr(properties, "clock_rate", 1_980_000) * 1e3
    result["clock_of_floors"] = clock
    flush = None if DRY else torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)
    layers: dict[Any, Layer] = {}
    listed = cases()[:5] if DRY else cases()
    for case in listed:
        if left() < 3:
            break
        key = (case["shape"], case["sparsity"], case["ablated"])
        if key not in layers:
            layers[key] = make_layer(case)
        try:
            done = run_case(case, layers[key], rates, clock, flush)
        except Exception as error:
            done = {**case, "error": f"{type(error).__name__}: {str(error)[:400]}"}
        result["cases"].append(done)
        JSON.write_text(json.dumps(result))
        times = {k: v["microseconds"] for k, v in done.get("graph", {}).items()}
        print(case, times, done.get("error", ""), flush=True)
        if "error" in done and "CUDA error" in done["error"]:
            break  # the device's context is lost
    else:
        result["complete"] = True
    JSON.write_text(json.dumps(result))
    return 0 if all("error" not in case for case in result["cases"]) else 1


if __name__ == "__main__":
    sys.exit(main())
