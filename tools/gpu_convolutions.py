#!/usr/bin/env python3
"""Measure the convolutions of ResNet-50: the condensed kernels against cuDNN, on one GPU.

    python tools/gpu_convolutions.py --out results
    python tools/gpu_convolutions.py --out rehearsal --emulated --shrink 16 --batches 1

Every distinct layer of 1 x 1 and 3 x 3, in a CUDA graph of several calls. Dense is torch's conv2d
with cuDNN's own choice of algorithm, in the same precision; float32 is TF32 on both sides. Outputs
are checked against float64. ``--emulated`` rehearses on the host; then times mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fanin.deploy.bench import print_report, report_of, save_result
from fanin.deploy.bench.engines.cuda import CudaEngine, Device
from fanin.deploy.bench.engines.cuda_binding import layer_arrays
from fanin.deploy.bench.measure.loop import measure
from fanin.deploy.bench.measure.problem import Problem
from fanin.deploy.bench.measure.timing import Timing
from fanin.deploy.bench.results.case import Case, make_case
from fanin.deploy.bench.results.result import Recorder
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.ort_ops import cuda_kernel_table

# Input channels, output channels, side of the window, stride, side of the input.
RESNET_50 = (
    *((64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 64, 1, 1, 56)),
    *((256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (256, 512, 1, 2, 56), (128, 512, 1, 1, 28)),
    *((512, 128, 1, 1, 28), (128, 128, 3, 1, 28), (512, 256, 1, 1, 28), (256, 256, 3, 2, 28)),
    *((512, 1024, 1, 2, 28), (256, 1024, 1, 1, 14), (1024, 256, 1, 1, 14), (256, 256, 3, 1, 14)),
    *((1024, 512, 1, 1, 14), (512, 512, 3, 2, 14), (1024, 2048, 1, 2, 14), (512, 2048, 1, 1, 7)),
    *((2048, 512, 1, 1, 7), (512, 512, 3, 1, 7)),
)
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Setting:
    """A layer and how it is run."""

    inputs: int
    outputs: int
    window: int
    stride: int
    side: int
    batch: int
    kind: str
    sparsity: float

    @property
    def title(self) -> str:
        """The case's."""
        window = f"{self.window}×{self.window}" + (", stride 2" if self.stride == 2 else "")
        kind = "TF32" if self.kind == "float32" else self.kind
        return f"{window}, {self.inputs} → {self.outputs}, {self.side}², batch {self.batch}, {kind}"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--batches", default="1,32,8")
    parser.add_argument("--precisions", default="float16,float32")
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--time", type=float, help="start no case after this many seconds")
    parser.add_argument("--shrink", type=int, default=1, help="divide channels and sides by this")
    parser.add_argument("--emulated", action="store_true", help="on the host")
    options = parser.parse_args()
    device = Device(emulated=options.emulated)
    timing = Timing(rounds=options.rounds, turn=1e-5, lead_in=1e-4, max_warmup=0.1)
    recorder, start = Recorder(), time.monotonic()
    card, cases, left_out = device.facts(), list[Case](), list[str]()
    for setting in settings(options):
        if options.time is not None and time.monotonic() - start > options.time:
            left_out.append(setting.title)
        else:
            cases.append(measure_convolution(setting, device, timing))
    title = f"Convolutions of ResNet-50 on {card['device']}"
    facts: dict[str, Any] = {"gpu": card, "left_out": left_out, "has_sessions": True}
    result = recorder.result(
        "cuda", title, vars(options) | {"out": ""}, timing, tuple(cases), **facts
    )
    print_report(report_of(result))
    save_result(result, options.out)


def settings(options: argparse.Namespace) -> list[Setting]:
    """List the cases, so that a part of them has every layer."""
    shrink = options.shrink
    layers = {
        (max(16, i // shrink), max(16, o // shrink), window, stride, max(4, side // shrink))
        for i, o, window, stride, side in RESNET_50
    }
    every = itertools.product(
        map(int, options.batches.split(",")), options.precisions.split(","), sorted(layers)
    )
    return [Setting(*layer, batch, kind, options.sparsity) for batch, kind, layer in every]


def measure_convolution(setting: Setting, device: Device, timing: Timing) -> Case:
    """Compare all kernels with cuDNN."""
    torch, kind = device.torch, setting.kind
    rng = np.random.default_rng([setting.inputs, setting.outputs, setting.window])
    features = setting.inputs * setting.window**2
    fan_in = max(1, round((1 - setting.sparsity) * features))
    layer = random_sparse_layer("random", rng, features, setting.outputs, setting.outputs, fan_in)
    # The expand kernel does not round weights.
    weight = layer.astype(kind)
    shape = (setting.outputs, setting.inputs, setting.window, setting.window)
    dense = torch.from_numpy(weight.to_dense().astype(np.float32).reshape(shape)).to(device.place)
    bias = torch.from_numpy(np.array(weight.bias)).to(device.place)
    window = {"stride": setting.stride, "padding": setting.window // 2}

    def exact(inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        x = torch.from_numpy(inputs["x"]).to(device.place).double()
        y = torch.nn.functional.conv2d(x, dense.double(), bias.double(), **window)
        return [y.cpu().numpy()]

    size = (setting.batch, setting.inputs, setting.side, setting.side)
    timed, fresh = ({"x": rng.standard_normal(size, np.float32)} for _ in "12")
    problem = Problem.of(timed, fresh, exact, tolerance=TOLERANCE)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True

    def convolve(x: Any) -> Callable[[], Any]:
        taken, added = dense.to(x.dtype), bias.to(x.dtype)
        return lambda: torch.nn.functional.conv2d(x, taken, added, **window)

    # TF32 has the mantissa of float16.
    narrow = "float16" if kind == "float32" else kind
    engines = [
        CudaEngine("dense", "conv2d", device, "graph", convolve, dtype=kind, precision=narrow)
    ]
    for row in cuda_kernel_table():
        if (row.op, row.activations) == ("CondensedConv", kind):
            make = condensed(setting, device, weight, row.name)
            name = "condensed" if row.layout == "expand" else f"kernel-{row.layout}"
            engines.append(
                CudaEngine(name, row.name, device, "graph", make, dtype=kind, precision=narrow)
            )
    measured, _ = measure(engines, problem, timing)
    facts = {"type": kind, "fan_in": fan_in}
    return make_case(setting.title, setting.batch, setting.sparsity, facts, measured, None)


def condensed(setting: Setting, device: Device, weight: Any, kernel: str) -> Callable[..., Any]:
    """Run a kernel of CondensedConv."""
    pad = setting.window // 2

    def make(x: Any) -> Callable[[], Any]:
        packed = device.binding.PackedConv(
            **layer_arrays(weight),
            in_channels=setting.inputs,
            group=1,
            kernel=[setting.window] * 2,
            strides=[setting.stride] * 2,
            pads=[pad] * 4,
            dilations=[1, 1],
            activations=setting.kind,
            conv_kernel=kernel,
        )
        side = (setting.side + 2 * pad - setting.window) // setting.stride + 1
        size = (setting.batch, setting.outputs, side, side)
        y = device.torch.empty(size, dtype=x.dtype, device=device.place)

        def call() -> Any:
            packed.run(
                x=x.data_ptr(),
                batch=setting.batch,
                height=setting.side,
                width=setting.side,
                y=y.data_ptr(),
                stream=device.stream_address,
            )
            return y

        return call

    return make


if __name__ == "__main__":
    main()
