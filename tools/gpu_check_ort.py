"""Compare one layer, dense and condensed, in ONNX Runtime's CUDA provider; part of gpu_check.sh.

    python tools/gpu_check_ort.py --out FILE.json [--seconds 80] [--device cpu]

gpu_check.sh names the file and the time in FANIN_CHECK_JSON and FANIN_CHECK_SECONDS instead.

Needs fanin with its CUDA library, onnxruntime-gpu, onnx, torch and a GPU. Every output is compared
with float64 before it is timed; inputs and outputs lie on the device (IOBinding). Two times are
measured in interleaved rounds: ``stream_us``, a run among many that are queued without waiting, by
events of the stream; and ``latency_us``, one run and the wait for it. A run from Python costs about
10 us of the host: below that, ``stream_us`` is the host's time, whatever the kernel. Ends with
status 1 if a check fails. ``--device cpu`` rehearses the script on the CPU provider: its times mean
nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from fanin import ort_ops
from fanin.export.onnx_op import make_condensed_node
from fanin.ort_ops.format.condensed import CondensedWeight

IN_FEATURES, OUT_FEATURES = 3072, 768
BATCHES = (1, 8, 64, 256)
SPARSITIES = (0.9, 0.8, 0.95)  # in order of weight: the time may not suffice for all
ROUNDS = 7

KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
KINDS["bfloat16"] = TensorProto.BFLOAT16
# Half a unit in the last place of the result, and what the sum's float32 rounding adds.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

# What libonnxruntime_providers_cuda.so needs and dlopens, in order of their own needs.
CUDA_LIBRARIES = (
    *("libcudart.so.13", "libnvrtc.so.13", "libnvJitLink.so.13", "libcublasLt.so.13"),
    *("libcublas.so.13", "libcurand.so.10", "libcufft.so.12", "libcudnn.so.9"),
)


@dataclass
class Report:
    """What is written as JSON."""

    onnxruntime: str = ""
    device: str = ""
    providers: list[str] = field(default_factory=list)
    provider_options: dict[str, str] = field(default_factory=dict)
    preloaded: list[str] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def check(self, name: str, ok: bool, detail: str = "") -> bool:
        """Note a check and print it."""
        self.checks.append({"name": name, "ok": bool(ok), "detail": detail})
        print(f"{'ok  ' if ok else 'FAIL'} {name} {detail}", flush=True)
        return ok


def preload() -> list[str]:
    """Load CUDA's libraries from NVIDIA's wheels, so that the provider finds them by name."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    loaded = []
    for name in CUDA_LIBRARIES:
        found = [path for root in roots for path in sorted(root.glob(f"**/lib/{name}"))]
        found += [Path("/usr/local/cuda/lib64") / name]
        for path in filter(Path.exists, found):
            try:
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                print(f"cannot preload {path}: {error}")
                continue
            loaded.append(str(path))
            break
    return loaded


loaded_libraries = preload()
import onnxruntime  # noqa: E402  (it looks for CUDA's libraries when it is imported)
from gpu_check_ort_conv import CONVOLUTIONS, check_conv  # noqa: E402


def random_weight(sparsity: float, dtype: str) -> CondensedWeight:
    """Draw a layer with constant fan-in whose values the type holds exactly."""
    rng = np.random.default_rng(int(sparsity * 100))
    fan_in = round(IN_FEATURES * (1 - sparsity))
    order = np.argsort(rng.random((OUT_FEATURES, IN_FEATURES), np.float32), axis=1)
    values = rng.standard_normal((OUT_FEATURES, fan_in), np.float32) / np.float32(fan_in**0.5)
    values = torch.from_numpy(values).to(getattr(torch, dtype)).float().numpy()
    bias = rng.standard_normal(OUT_FEATURES, np.float32)
    return CondensedWeight(
        values=values,
        indices=np.sort(order[:, :fan_in], axis=1).astype(np.uint16),
        rows=np.arange(OUT_FEATURES, dtype=np.int32),
        bias=torch.from_numpy(bias).to(getattr(torch, dtype)).float().numpy(),
        in_features=IN_FEATURES,
        out_features=OUT_FEATURES,
    )


def tensor(name: str, array: np.ndarray, dtype: str | None = None) -> onnx.TensorProto:
    """Make an initializer, of another float type if one is named."""
    if dtype in (None, "float32"):
        return numpy_helper.from_array(array, name)
    bits = torch.tensor(array).to(getattr(torch, dtype)).view(torch.int16).numpy()
    return helper.make_tensor(name, KINDS[dtype], array.shape, bits.tobytes(), raw=True)


def layer_model(
    engine: str, weight: CondensedWeight, dtype: str, batch: int | None, *, residual: bool = False
) -> bytes:
    """Serialize the layer: "dense" as Gemm, "condensed" as our op without its fallback function."""
    kind, rows = KINDS[dtype], "batch" if batch is None else batch
    inputs = [helper.make_tensor_value_info("x", kind, [rows, IN_FEATURES])]
    if engine == "dense":
        node = helper.make_node("Gemm", ["x", "weight", "bias"], ["y"], name="layer", transB=1)
        arrays = [tensor("weight", weight.to_dense(), dtype), tensor("bias", weight.bias, dtype)]
    else:
        arrays = [
            tensor("values", weight.values, dtype),
            *(tensor(name, getattr(weight, name)) for name in ("indices", "bias", "rows")),
        ]
        if residual:
            inputs.append(helper.make_tensor_value_info("residual", kind, [rows, OUT_FEATURES]))
        else:
            arrays.append(tensor("residual", np.zeros(1, np.float32), dtype))
        node = make_condensed_node(
            ["x", "values", "indices", "bias", "rows", "residual"],
            "y",
            in_features=IN_FEATURES,
            out_features=OUT_FEATURES,
            name="layer",
            **({"clip_min": 0.0, "clip_max": 1.0} if residual else {}),
        )
    outputs = [helper.make_tensor_value_info("y", kind, [rows, OUT_FEATURES])]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.fanin", 1)]
    graph = helper.make_graph([node], "layer", inputs, outputs, arrays)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


class Machine:
    """Sessions on the device, and the clock for what they do."""

    def __init__(self, device: str):
        self.device = device
        self.cuda = device == "cuda"
        self.stream = torch.cuda.Stream() if self.cuda else None
        self.queue = onnxruntime.RunOptions()
        if self.cuda:
            torch.cuda.set_stream(self.stream)
            self.queue.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def session(self, model: bytes, profile: str = "", **options: str) -> Any:
        """Open a session of the CUDA provider alone, on our stream unless it captures graphs."""
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        if profile:
            settings.enable_profiling, settings.profile_file_prefix = True, profile
        ort_ops.register(settings)
        if not self.cuda:
            return onnxruntime.InferenceSession(model, settings, ["CPUExecutionProvider"])
        if "enable_cuda_graph" not in options:
            options["user_compute_stream"] = str(self.stream.cuda_stream)
        provider = ("CUDAExecutionProvider", {"device_id": "0", **options})
        session = onnxruntime.InferenceSession(model, settings, [provider], enable_fallback=0)
        if "CUDAExecutionProvider" not in session.get_providers():
            raise RuntimeError("the CUDA provider did not come up")
        return session

    def binding(self, session: Any, dtype: str, **tensors: torch.Tensor) -> Any:
        """Bind device tensors: ``y`` is the output, the others are inputs."""
        binding = session.io_binding()
        kind = np.float32 if dtype == "float32" else KINDS[dtype]
        for name, value in tensors.items():
            place = (name, self.device, 0, kind, list(value.shape), value.data_ptr())
            (binding.bind_output if name == "y" else binding.bind_input)(*place)
        return binding

    def wait(self) -> None:
        """Wait for all work of the device."""
        if self.cuda:
            torch.cuda.synchronize()

    def stream_us(self, run: Callable[[], None], repeats: int) -> float:
        """Microseconds of one of ``repeats`` runs in a queue."""
        if not self.cuda:
            return self.latency_us(run)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(repeats):
            run()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e3 / repeats

    def latency_us(self, run: Callable[[], None]) -> float:
        """Microseconds from the call until the result is there."""
        self.wait()
        start = time.perf_counter()
        run()
        self.wait()
        return (time.perf_counter() - start) * 1e6


def bound(weight: CondensedWeight, x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the result in float64 and how far one of this type may be from it."""
    dense = weight.to_dense().astype(np.float64)
    expected = x.astype(np.float64) @ dense.T + weight.bias
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(dense).T + np.abs(weight.bias)
    terms = weight.values.shape[1] + 3
    return expected, terms * 2.0**-24 * magnitude + ROUNDING[dtype] * np.abs(expected) + 2.0**-24


def worst(y: torch.Tensor, expected: np.ndarray, allowed: np.ndarray) -> float:
    """Return the largest error as a multiple of what is allowed; inf for a NaN."""
    share = np.abs(y.double().cpu().numpy() - expected) / allowed
    return float("inf") if np.isnan(share).any() else float(share.max())


def engines(machine: Machine, weight: CondensedWeight, dtype: str) -> Iterator[tuple[str, Any]]:
    """Open the sessions that are compared; TF32 is a matter of float32 alone."""
    dense = layer_model("dense", weight, dtype, None)
    yield "condensed", lambda: machine.session(layer_model("condensed", weight, dtype, None))
    yield "dense", lambda: machine.session(dense)
    if dtype == "float32" and machine.cuda:
        yield "dense-no-tf32", lambda: machine.session(dense, use_tf32="0")


def compare(machine: Machine, report: Report, sparsity: float, dtype: str, deadline: float) -> None:
    """Check and time one layer of one type in all batches."""
    weight = random_weight(sparsity, dtype)
    sessions = {}
    for name, opener in engines(machine, weight, dtype):
        try:
            sessions[name] = opener()
        except Exception as error:  # the runtime's exceptions share no base class
            refused = f"{name}, {dtype}: {str(error)[:300]}"
            report.left_out.append(refused)
            if name == "condensed":
                report.check(f"{dtype} {sparsity:.0%} opens", not machine.cuda, refused)
    for batch in BATCHES if sessions else ():
        label = f"{dtype} {sparsity:.0%} batch {batch}"
        if time.monotonic() > deadline:
            report.left_out.append(f"{label}: no time left")
            continue
        generator = np.random.default_rng(batch)
        kind = getattr(torch, dtype)
        host = torch.from_numpy(generator.standard_normal((batch, IN_FEATURES), np.float32))
        x = host.to(kind).to(machine.device)
        expected, allowed = bound(weight, x.float().cpu().numpy(), dtype)
        runs, case = {}, {"sparsity": sparsity, "dtype": dtype, "batch": batch, "engines": {}}
        keep = []
        for name, session in sessions.items():
            y = torch.full((batch, OUT_FEATURES), torch.nan, dtype=kind, device=machine.device)
            keep.append(y)
            binding = machine.binding(session, dtype, x=x, y=y)
            machine.wait()
            session.run_with_iobinding(binding)
            machine.wait()
            error = worst(y, expected, allowed)
            case["engines"][name] = {"worst_error_of_bound": error}
            if name == "condensed":
                report.check(f"{label} is right", error <= 1, f"{error:.3f} of the bound")

            def queued(session: Any = session, binding: Any = binding) -> None:
                session.run_with_iobinding(binding, machine.queue)

            runs[name] = queued
        times = {name: ([], []) for name in runs}
        for round_ in range(ROUNDS + 1):  # the first one warms up
            for name, run in runs.items():
                stream, latency = machine.stream_us(run, 50), machine.latency_us(run)
                if round_:
                    times[name][0].append(stream)
                    times[name][1].append(latency)
        for name, (stream, latency) in times.items():
            case["engines"][name] |= {"stream_us": stream, "latency_us": latency}
        report.cases.append(case)
        medians = {name: statistics.median(stream) for name, (stream, _) in times.items()}
        print(f"     {label}: " + ", ".join(f"{n} {us:.1f} us" for n, us in medians.items()))


def check_epilogue(machine: Machine, report: Report) -> None:
    """Compare residual and clip, with a batch that no tile divides."""
    weight = random_weight(0.9, "float32")
    session = machine.session(layer_model("condensed", weight, "float32", None, residual=True))
    x = torch.randn(7, IN_FEATURES, device=machine.device)
    residual = torch.randn(7, OUT_FEATURES, device=machine.device)
    y = torch.full_like(residual, torch.nan)
    machine.wait()
    session.run_with_iobinding(machine.binding(session, "float32", x=x, residual=residual, y=y))
    machine.wait()
    expected, allowed = bound(weight, x.cpu().numpy(), "float32")
    expected = np.clip(expected + residual.double().cpu().numpy(), 0, 1)
    error = worst(y, expected, allowed + 2.0**-22)
    report.check("residual and clip are applied", error <= 1, f"{error:.3f} of the bound")


def check_provider(machine: Machine, report: Report) -> None:
    """Ask the runtime's own profile whether the node runs in the CUDA provider."""
    model = layer_model("condensed", random_weight(0.9, "float32"), "float32", None)
    with tempfile.TemporaryDirectory() as folder:
        session = machine.session(model, profile=f"{folder}/profile")
        session.run(None, {"x": np.zeros((2, IN_FEATURES), np.float32)})
        events = json.loads(Path(session.end_profiling()).read_text())
    options = session.get_provider_options()
    report.providers = session.get_providers()
    report.provider_options = options.get("CUDAExecutionProvider", {})
    ran = {
        event["args"].get("provider")
        for event in events
        if event.get("args", {}).get("op_name") == "CondensedGemm"
    }
    wanted = "CUDAExecutionProvider" if machine.cuda else "CPUExecutionProvider"
    report.check("the node runs in the provider", ran - {None} == {wanted}, f"{ran}")


def check_refusal(machine: Machine, report: Report) -> None:
    """See that weights that are graph inputs are refused at creation, by name."""
    weight = random_weight(0.9, "float32")
    model = onnx.load_from_string(layer_model("condensed", weight, "float32", None))
    kind = TensorProto.FLOAT
    model.graph.input.append(helper.make_tensor_value_info("values", kind, weight.values.shape))
    try:
        machine.session(model.SerializeToString())
        text = "it was taken"
    except Exception as error:  # the runtime's exceptions share no base class
        text = str(error)
    ok = "'layer'" in text and "not constant: values" in text
    report.check("weights that are not constant are refused", ok, text[-160:])


def check_graph(machine: Machine, report: Report, batch: int) -> None:
    """See that a captured CUDA graph computes with what its input holds at the replay."""
    weight = random_weight(0.9, "float32")
    case: dict[str, Any] = {"cuda_graph": True, "batch": batch, "engines": {}}
    for engine in ("condensed", "dense"):
        model = layer_model(engine, weight, "float32", batch)
        session = machine.session(model, enable_cuda_graph="1")
        x = torch.randn(batch, IN_FEATURES, device=machine.device)
        y = torch.full((batch, OUT_FEATURES), torch.nan, device=machine.device)
        binding = machine.binding(session, "float32", x=x, y=y)
        machine.wait()
        session.run_with_iobinding(binding)  # captures
        x.normal_()
        y.fill_(torch.nan)
        machine.wait()
        session.run_with_iobinding(binding)  # replays
        machine.wait()
        expected, allowed = bound(weight, x.cpu().numpy(), "float32")
        error = worst(y, expected, allowed)
        if engine == "condensed":
            name = f"a replayed CUDA graph is right, batch {batch}"
            report.check(name, error <= 1, f"{error:.3f} of the bound")

        def replay(session: Any = session, binding: Any = binding) -> None:
            session.run_with_iobinding(binding)

        latency = [machine.latency_us(replay) for _ in range(30)]
        case["engines"][engine] = {"worst_error_of_bound": error, "latency_us": latency}
    report.cases.append(case)


def main() -> int:
    """Run all; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    named, seconds = os.environ.get("FANIN_CHECK_JSON"), os.environ.get("FANIN_CHECK_SECONDS", "80")
    parser.add_argument("--out", type=Path, required=named is None, default=named)
    parser.add_argument(
        "--seconds", type=float, default=float(seconds), help="start no case after this"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    start = time.monotonic()
    deadline = start + arguments.seconds

    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    report = Report(onnxruntime=onnxruntime.__version__, preloaded=loaded_libraries)
    machine = Machine(arguments.device)
    report.device = torch.cuda.get_device_name(0) if machine.cuda else "cpu"
    status = ort_ops.cuda_status()
    if machine.cuda:
        report.check("fanin's CUDA library is usable", status.usable, status.reason)

    steps: list[tuple[str, Callable[[], None]]] = [
        ("provider", lambda: check_provider(machine, report)),
        ("epilogue", lambda: check_epilogue(machine, report)),
    ]
    for name in CONVOLUTIONS:
        for batch in (1, 8):
            run = lambda n=name, b=batch: check_conv(machine, report, n, b)  # noqa: E731
            steps.append((f"convolution {name} {batch}", run))
    if machine.cuda:
        steps.append(("refusal", lambda: check_refusal(machine, report)))
        for batch in (1, 64):
            steps.append((f"graph {batch}", lambda b=batch: check_graph(machine, report, b)))
    for sparsity in SPARSITIES:
        for dtype in KINDS:
            run = lambda s=sparsity, d=dtype: compare(machine, report, s, d, deadline)  # noqa: E731
            steps.append((f"{dtype} {sparsity:.0%}", run))
    for name, step in steps:
        if time.monotonic() > deadline:
            report.left_out.append(f"{name}: no time left")
            continue
        try:
            step()
        except Exception as error:  # one broken step must not hide what the others find
            report.check(name, False, f"{type(error).__name__}: {error}")
        report.seconds = time.monotonic() - start
        # After every step: a run that is cut off leaves what it has.
        arguments.out.write_text(json.dumps(asdict(report), indent=1))
    tf32 = report.provider_options.get("use_tf32", "unknown")
    print(f"use_tf32 of ONNX Runtime's default: {tf32}; {report.seconds:.0f} s; {arguments.out}")
    return 0 if all(check["ok"] for check in report.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
