"""One layer on a GPU: the condensed kernels, PyTorch's products, sessions of ONNX Runtime.

Times include everything from x on the device to y, bias included, on the device. ``launch`` selects
how an engine's calls reach the device.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ....ort_ops import register
from ....ort_ops.format.condensed import CondensedWeight
from ...cpus import available_cpus
from ..requirements import require
from .child.conditions import PAUSES
from .cuda_binding import layer_arrays, open_binding
from .protocol import EngineUnavailableError

if TYPE_CHECKING:
    from torch import Tensor

LAUNCHES = ("graph", "stream", "call", "ring")
"""``graph``: from a CUDA graph of several calls in a row. ``stream``: of several plain calls in a
row between two events, gaps between launches included. ``call``: one call and the wait for it, by
the host's clock. These leave the layer in the L2 where it fits. ``ring``: from a CUDA graph of one
call on each of so many copies of the weights that they do not fit into the L2."""

_BURST_SECONDS = 400e-6
_LEAST_CALLS, _MOST_CALLS = 4, 40
_FLUSHED_BYTES = 256 << 20
_RING_BYTES = 300 << 20
_EMULATED_COPIES = 2
_BFLOAT16_MAJOR = 8  # compute capability that has it

Call = Callable[[], "Tensor"]
"""Launches the layer on the device's stream and returns y."""


class Device:
    """A GPU, or the host, which emulates the kernels: then times mean nothing.

    Raises RequirementError without torch, EngineUnavailableError without a device.
    """

    def __init__(self, *, emulated: bool):
        self.torch: Any = require("torch", "the GPU's memory and clock are reached through it")
        self.binding = open_binding(emulated=emulated)
        self.emulated = emulated
        self.place = "cpu" if emulated else "cuda"
        self._random = random.Random(0)
        self._flushed: Tensor | None = None
        self.stream: Any = None
        if not emulated:
            if not self.torch.cuda.is_available():
                raise EngineUnavailableError("torch sees no CUDA device; it may be built for CPUs")
            # One stream for all, also for what torch does in between.
            self.stream = self.torch.cuda.Stream()
            self.torch.cuda.set_stream(self.stream)

    @property
    def stream_address(self) -> int:
        """Of the stream that all calls go to; 0 under emulation."""
        return 0 if self.emulated else int(self.stream.cuda_stream)

    @property
    def has_sessions(self) -> bool:
        """Whether ONNX Runtime can run on the device."""
        runtime = require("onnxruntime", "the layer runs in its sessions, too")
        return self.emulated or "CUDAExecutionProvider" in runtime.get_available_providers()

    def wait(self) -> None:
        """Wait for the device."""
        if not self.emulated:
            self.torch.cuda.synchronize()

    def seconds(self, launch: Callable[[], object], *, by_host: bool = False) -> float:
        """Time what ``launch`` puts on the stream."""
        if self.emulated or by_host:
            self.wait()
            start = time.perf_counter()
            launch()
            self.wait()
            return time.perf_counter() - start
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        end.synchronize()
        elapsed: float = begin.elapsed_time(end)
        return elapsed * 1e-3

    def bring_about(self, condition: str) -> None:
        """Replace what the L2 holds (cold), or pause (paced)."""
        if condition == "paced":
            time.sleep(self._random.uniform(*PAUSES))
        elif condition == "cold" and not self.emulated:
            if self._flushed is None:
                self._flushed = self.torch.empty(
                    _FLUSHED_BYTES, dtype=self.torch.uint8, device=self.place
                )
            self._flushed.zero_()

    def facts(self) -> dict[str, Any]:
        """Name the device and what it does at most; nothing under emulation."""
        torch = self.torch
        if self.emulated:
            return {"device": "the host, emulated: times mean nothing"}
        card = torch.cuda.get_device_properties(0)
        big = torch.empty(1 << 29, dtype=torch.uint8, device=self.place).random_(255)
        other = torch.empty_like(big)
        matrix = torch.randn(4096, 4096, device=self.place)
        kind = "bfloat16" if card.major >= _BFLOAT16_MAJOR else "float16"
        half = matrix.to(getattr(torch, kind))

        def best(call: Callable[[], object]) -> float:
            call()
            return min(self.seconds(call) for _ in range(5))

        products = {"float32": best(lambda: matrix @ matrix), kind: best(lambda: half @ half)}
        return {
            "device": card.name,
            "compute_capability": f"{card.major}.{card.minor}",
            "multiprocessors": card.multi_processor_count,
            "hertz": getattr(card, "clock_rate", 1_980_000) * 1e3,
            "l2_bytes": card.L2_cache_size,
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "bytes_per_second": 2 * big.numel() / best(lambda: other.copy_(big)),
            **{f"{kind}_macs_per_second": 4096**3 / took for kind, took in products.items()},
        }


class CudaEngine:
    """A layer on the device; ``make`` builds its call for x ``[batch, in]`` of the type ``dtype``.

    ``precision`` is what it computes in, see PRECISIONS. It times its own calls, on the device's
    clock.
    """

    threads = 1
    call_seconds: float | None = None

    def __init__(
        self,
        name: str,
        form: str,
        device: Device,
        launch: str,
        make: Callable[[Tensor], Call],
        *,
        dtype: str = "float32",
        precision: str | None = None,
        weight_bytes: int = _RING_BYTES,
    ):
        self.name, self.form = name, f"{form}, {launch}"
        self.precision = precision or dtype
        self.version = f"torch {device.torch.__version__}"
        self._device, self._how, self._make, self._dtype = device, launch, make, dtype
        self._y: Tensor | None = None
        self._copies = 1
        if launch == "ring":
            copies = -(-_RING_BYTES // weight_bytes)
            self._copies = _EMULATED_COPIES if device.emulated else max(2, copies)

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:
        """See Engine."""
        torch = self._device.torch
        (self._host,) = inputs.values()
        kind = getattr(torch, self._dtype)
        self._x = torch.empty(self._host.shape, dtype=kind, device=self._device.place)
        self._load()
        self._ring = self._make_all()
        self._launch: Callable[[], object] = self._call_once
        self._calls = 1
        if self._how == "ring":
            self._calls, self._launch = self._copies, self._call_in_a_row
        if self._device.emulated or self._how == "call":
            return
        for _ in range(2):  # what libraries do at first must not be captured
            self._call_once()
        self._device.wait()
        seconds = max(self._device.seconds(self._call_once), 1e-6)
        if self._how != "ring":
            self._calls = int(np.clip(_BURST_SECONDS / seconds, _LEAST_CALLS, _MOST_CALLS))
        self._launch = self._call_in_a_row
        if self._how in ("graph", "ring"):
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._device.stream):
                self._call_in_a_row()
            self._launch = self._graph.replay

    def run(self) -> None:
        """See Engine; y is filled with NaN before, so that what is not written shows."""
        if self._y is not None:
            self._y.fill_(float("nan"))
        self._load()
        self._launch()
        self._device.wait()

    def output(self) -> Sequence[np.ndarray]:
        """See Engine."""
        assert self._y is not None
        y: np.ndarray = self._y.float().cpu().contiguous().numpy()
        return [y]

    def close(self) -> None:
        """See Engine."""
        for name in ("_x", "_ring", "_launch", "_graph", "_make"):
            self.__dict__.pop(name, None)
        self._y = None

    def time_runs(
        self, lead_in: float, count: int, numbers: Sequence[float] = (), condition: str = ""
    ) -> Sequence[int]:
        """See SelfTimedEngine; the nanoseconds are of one call."""
        end = time.perf_counter() + lead_in
        while time.perf_counter() < end:
            self._launch()
        launch, calls = self._launch, self._calls
        if condition and self._how != "ring":
            launch, calls = self._call_once, 1
        times = []
        for left in range(count - 1, -1, -1):
            if numbers:
                self._x.view(-1)[0] = numbers[left % 2]
            if condition:
                self._device.bring_about(condition)
            seconds = self._device.seconds(launch, by_host=self._how == "call")
            times.append(max(1, round(seconds / calls * 1e9)))
        return times

    def _make_all(self) -> list[Call]:
        if self._copies == 1:
            return [self._make(self._x)]
        # Packing takes half a second for six million weights, on one thread. Threads have streams
        # of their own.
        with ThreadPoolExecutor(available_cpus()) as pool:
            calls = list(pool.map(self._make, [self._x] * self._copies))
        self._device.wait()
        return calls

    def _load(self) -> None:
        self._x.copy_(self._device.torch.from_numpy(self._host))

    def _call_once(self) -> None:
        self._y = self._ring[0]()

    def _call_in_a_row(self) -> None:
        for number in range(self._calls):
            self._y = self._ring[number % self._copies]()


def condensed(
    device: Device, weight: CondensedWeight, activations: str, kernel: str | None = None
) -> Callable[[Tensor], Call]:
    """Run our kernels: the one of that name, or what the dispatch table takes for the batch.

    Every call of what is returned packs a copy of its own.
    """
    numbers = itertools.count()

    def make(x: Tensor) -> Call:
        batch = len(x)
        layer = layer_arrays(weight)
        # Equal layers share their memory, so a copy differs from the others in the last bits of an
        # input that hardly matters.
        layer["bias"] = layer["bias"].copy()
        layer["bias"].view(np.int32)[0] += next(numbers)
        packed = device.binding.PackedGemm(
            **layer, activations=activations, min_batch=batch, max_batch=batch, kernel=kernel
        )
        y = device.torch.empty(batch, weight.out_features, dtype=x.dtype, device=device.place)

        def call() -> Tensor:
            packed.run(x=x.data_ptr(), batch=batch, y=y.data_ptr(), stream=device.stream_address)
            result: Tensor = y
            return result

        return call

    return make


class DenseWeight:
    """The scattered weight ``[out, in]`` and the bias on the device, as torch multiplies them."""

    def __init__(self, device: Device, weight: CondensedWeight):
        self._device, self._rows = device, weight.rows
        torch = device.torch
        self._weight = torch.from_numpy(weight.to_dense().astype(np.float32)).to(device.place)
        self._bias = torch.from_numpy(np.array(weight.bias)).to(device.place)

    def exact(self, x: np.ndarray) -> np.ndarray:
        """Compute the outputs in float64, on the device."""
        torch = self._device.torch
        wide = torch.from_numpy(x).to(self._weight.device).double()
        y: np.ndarray = (wide @ self._weight.double().t() + self._bias.double()).cpu().numpy()
        return y

    def linear(self, x: Tensor, *, tf32: bool = False) -> Call:
        """Multiply as torch.nn.Linear does."""
        torch, (weight, bias) = self._device.torch, self._as(x)

        def call() -> Tensor:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            try:
                y: Tensor = torch.nn.functional.linear(x, weight, bias)
                return y
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False

        return call

    def csr(self, x: Tensor) -> Call:
        """Multiply as CSR; the product stays transposed in memory: less work than others do."""
        torch, (weight, bias) = self._device.torch, self._as(x)
        sparse = weight.to_sparse_csr()

        def call() -> Tensor:
            y: Tensor = (torch.sparse.mm(sparse, x.t()) + bias[:, None]).t()
            return y

        return call

    def structured(self, x: Tensor) -> Call:
        """Multiply the neurons that are not ablated, and put every output in its place."""
        torch, (weight, bias) = self._device.torch, self._as(x)
        rows = torch.from_numpy(self._rows.astype(np.int64)).to(x.device)
        active, active_bias = weight[rows].contiguous(), bias[rows].contiguous()
        y = torch.empty(len(x), len(bias), dtype=x.dtype, device=x.device)

        def call() -> Tensor:
            y.copy_(bias.expand_as(y))
            found: Tensor = y.index_copy_(
                1, rows, torch.nn.functional.linear(x, active, active_bias)
            )
            return found

        return call

    def semi_structured(self, x: Tensor) -> tuple[Call, Tensor]:
        """Multiply a 2:4 weight, half dense: a rate to compare with, of another function.

        Returns the call, and what is to be added to the weight that it multiplies to get the
        layer's.
        """
        torch, (weight, bias) = self._device.torch, self._as(x)
        groups = torch.randn_like(self._weight).view(-1, 4)
        keep = torch.zeros_like(groups).scatter_(1, groups.abs().topk(2, 1).indices, 1)
        pruned = (groups * keep).view_as(weight).to(x.dtype)
        sparse = torch.sparse.to_sparse_semi_structured(pruned)

        def call() -> Tensor:
            y: Tensor = torch.nn.functional.linear(x, sparse, bias)
            return y

        return call, weight.double() - pruned.double()

    def _as(self, x: Tensor) -> tuple[Any, Any]:
        """Return copies of weight and bias in the type of x."""
        return self._weight.to(x.dtype, copy=True), self._bias.to(x.dtype, copy=True)


class SemiStructuredEngine(CudaEngine):
    """The 2:4 form; what its other weight leaves out is added to its output, to be checked."""

    def __init__(self, dense: DenseWeight, device: Device, launch: str, dtype: str):
        def make(x: Tensor) -> Call:
            call, self._difference = dense.semi_structured(x)
            return call

        form = "torch.sparse.to_sparse_semi_structured, another mask of half the weights"
        super().__init__("2:4", form, device, launch, make, dtype=dtype)

    def output(self) -> Sequence[np.ndarray]:
        """See Engine."""
        assert self._y is not None
        y = self._y.double() + self._x.double() @ self._difference.t()
        return [y.float().cpu().numpy()]


def session(
    device: Device,
    model: bytes | str,
    y_shape: Sequence[int],
    *,
    library: bool,
    tf32: bool = False,
) -> Callable[[Tensor], Call]:
    """Run a model of one input and output in ONNX Runtime's CUDA provider, on the device's stream.

    ``model`` is its content or its file.
    """

    def make(x: Tensor) -> Call:
        runtime = require("onnxruntime", "the layer runs in its sessions, too")
        settings = runtime.SessionOptions()
        settings.log_severity_level = 3
        if library:
            register(settings)
        options = {"user_compute_stream": str(device.stream_address), "use_tf32": str(int(tf32))}
        provider: Any = ("CUDAExecutionProvider", {"device_id": "0", **options})
        if device.emulated:
            provider = "CPUExecutionProvider"
        opened = runtime.InferenceSession(model, settings, [provider], enable_fallback=0)
        if not device.emulated and "CUDAExecutionProvider" not in opened.get_providers():
            raise EngineUnavailableError("ONNX Runtime's CUDA provider did not come up")
        y = device.torch.empty(tuple(y_shape), dtype=x.dtype, device=device.place)
        binding = opened.io_binding()
        kind = np.dtype(str(x.dtype).removeprefix("torch.")).type
        (source,), (result,) = opened.get_inputs(), opened.get_outputs()
        for bind, one, tensor in (
            (binding.bind_input, source, x),
            (binding.bind_output, result, y),
        ):
            bind(one.name, device.place, 0, kind, list(tensor.shape), tensor.data_ptr())
        queued = runtime.RunOptions()
        if not device.emulated:
            queued.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def call() -> Tensor:
            opened.run_with_iobinding(binding, queued)
            filled: Tensor = y
            return filled

        return call

    return make
