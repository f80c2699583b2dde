"""The convolutions of gpu_check_ort: CondensedConv beside Conv in ONNX Runtime's CUDA provider."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import torch

from fanin.export.onnx_op import condensed_conv_model, dense_conv_model
from fanin.ort_ops.format.condensed import CondensedWeight
from fanin.ort_ops.format.conv_geometry import ConvGeometry

ROUNDS = 7

# Of ResNet-50 at 90 %: a 3x3 and a 1x1 convolution.
CONVOLUTIONS = {
    "3x3": (ConvGeometry(64, 64, (3, 3), pads=(1, 1, 1, 1)), 56, 58),
    "1x1": (ConvGeometry(256, 512, (1, 1), strides=(2, 2)), 56, 26),
}


def conv_models(geometry: ConvGeometry, fan_in: int) -> tuple[CondensedWeight, bytes, bytes]:
    """Draw a weight, and make its condensed and its dense model, with residual and ReLU."""
    rng = np.random.default_rng(fan_in)
    order = np.argsort(rng.random((geometry.out_channels, geometry.in_features)), axis=1)
    weight = CondensedWeight(
        values=rng.standard_normal((geometry.out_channels, fan_in)).astype(np.float32)
        / fan_in**0.5,
        indices=np.sort(order[:, :fan_in], axis=1).astype(np.uint16),
        rows=np.arange(geometry.out_channels, dtype=np.int32),
        bias=rng.standard_normal(geometry.out_channels).astype(np.float32),
        in_features=geometry.in_features,
        out_features=geometry.out_channels,
    )
    size = (None, None, None)
    models = [
        build(weight, geometry, size, clip_min=0.0, with_residual=True)
        for build in (condensed_conv_model, dense_conv_model)
    ]
    # Without its function the condensed model cannot be anything else.
    models[0].ClearField("functions")
    return weight, *(model.SerializeToString() for model in models)


def check_conv(machine: Any, report: Any, name: str, batch: int) -> None:
    """Compare a convolution with float64 and time it beside the dense one (without TF32).

    ``machine`` and ``report`` are gpu_check_ort's.
    """
    geometry, side, fan_in = CONVOLUTIONS[name]
    weight, condensed, dense = conv_models(geometry, fan_in)
    x = torch.randn(batch, geometry.in_channels, side, side, device=machine.device)
    shape = (batch, geometry.out_channels, *geometry.output_sizes((side, side)))
    residual = torch.randn(*shape, device=machine.device)
    conv = {"stride": geometry.strides, "padding": geometry.pads[:2], "groups": geometry.group}
    wide = torch.from_numpy(weight.to_dense().reshape(geometry.weight_shape)).double()
    bias = torch.from_numpy(weight.bias).double()
    host, add = x.cpu().double(), residual.cpu().double()
    sums = torch.nn.functional.conv2d(host, wide, bias, **conv) + add
    magnitude = torch.nn.functional.conv2d(host.abs(), wide.abs(), bias.abs(), **conv) + add.abs()
    expected, allowed = sums.clamp(min=0).numpy(), (fan_in + 4) * 2.0**-24 * magnitude.numpy()
    case: dict[str, Any] = {"convolution": name, "batch": batch, "engines": {}}
    options = {"use_tf32": "0"} if machine.cuda else {}
    for engine, model in (("condensed", condensed), ("dense-no-tf32", dense)):
        session = machine.session(model, **options)
        y = torch.full(shape, torch.nan, device=machine.device)
        binding = machine.binding(session, "float32", x=x, residual=residual, y=y)
        machine.wait()
        session.run_with_iobinding(binding)
        machine.wait()
        share = np.abs(y.double().cpu().numpy() - expected) / allowed
        error = float("inf") if np.isnan(share).any() else float(share.max())
        if engine == "condensed":
            label = f"convolution {name}, batch {batch}, residual and clip"
            report.check(f"{label} is right", error <= 1, f"{error:.3f} of the bound")

        def queued(session: Any = session, binding: Any = binding) -> None:
            session.run_with_iobinding(binding, machine.queue)

        stream = [machine.stream_us(queued, 20) for _ in range(ROUNDS)]
        case["engines"][engine] = {"worst_error_of_bound": error, "stream_us": stream}
    report.cases.append(case)
    medians = {k: statistics.median(v["stream_us"]) for k, v in case["engines"].items()}
    print(
        f"     {name} batch {batch}: " + ", ".join(f"{n} {us:.1f} us" for n, us in medians.items())
    )
