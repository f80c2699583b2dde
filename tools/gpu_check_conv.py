"""Part of gpu_check: the CUDA convolution against float64, over geometries, dtypes and epilogues.

``--small``: a few small cases, for compute-sanitizer. ``--emulated``: through the host emulation.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fanin.ort_ops.format.conv_geometry import ConvGeometry
from tests.ort_ops._conv_layer import ConvLayer
from tests.ort_ops._cuda_convs import arguments, expect, images
from tests.ort_ops._cuda_layers import TYPES

START = time.monotonic()
SECONDS = float(os.environ.get("FANIN_CHECK_SECONDS", "60"))
JSON = Path(os.environ.get("FANIN_CHECK_JSON", "conv.json"))
SAME = (1, 1, 1, 1)
# Geometry, size of X without its channels, fan-in, active filters; some of ResNet-50 at 90 %.
CASES = {
    "1x1": (ConvGeometry(256, 64, (1, 1)), (1, 56, 56), 26, 64),
    "3x3": (ConvGeometry(64, 64, (3, 3), pads=SAME), (1, 56, 56), 58, 60),
    "3x3, stride 2": (ConvGeometry(128, 128, (3, 3), (2, 2), SAME), (2, 56, 56), 115, 128),
    "7x7, few pixels": (ConvGeometry(512, 512, (3, 3), pads=SAME), (1, 7, 7), 461, 500),
    "first": (ConvGeometry(3, 64, (7, 7), (2, 2), (3, 3, 3, 3)), (1, 64, 64), 15, 64),
    "batch": (ConvGeometry(64, 32, (3, 3), pads=SAME), (8, 28, 28), 58, 32),
}
SMALL = {
    "grouped": (ConvGeometry(8, 12, (3, 2), (1, 2), (1, 0, 2, 1), group=4), (2, 9, 8), 5, 10),
    "depthwise": (ConvGeometry(6, 12, (3, 3), (2, 2), (0, 0, 1, 1), group=6), (3, 7, 9), 4, 12),
    "dilated": (ConvGeometry(4, 5, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2)), (1, 6, 7), 9, 5),
    "line": (ConvGeometry(5, 7, (4,), (2,), (1, 3), (2,)), (2, 33), 6, 7),
    "nothing stored": (ConvGeometry(3, 4, (2, 2)), (1, 5, 5), 3, 0),
    "padding alone": (ConvGeometry(2, 3, (2, 2), pads=(4, 0, 0, 5)), (1, 3, 3), 4, 3),
}


class Subject:
    """A convolution on the device or emulated."""

    def __init__(self, layer: ConvLayer, kind: str, emulated: bool) -> None:
        self.layer, self.kind, self.conv = layer, kind, None
        if not emulated:
            from fanin.ort_ops import _cuda

            self.conv = _cuda.PackedConv(**arguments(layer), activations=kind)

    def run(
        self, x: np.ndarray, residual: np.ndarray | None, clip: tuple[float, float], shift: int
    ) -> np.ndarray:
        """Return y; `shift`: bytes behind an aligned address."""
        y = np.full(self.layer.y_shape(x), np.nan, x.dtype)
        extra = None if residual is None else images(residual)
        if self.conv is not None:
            self.conv.run_arrays(
                images(x),
                y=images(y),
                residual=extra,
                clip_min=clip[0],
                clip_max=clip[1],
                shift=shift,
            )
        else:
            from fanin.ort_ops import _cuda_emulation

            _cuda_emulation.run_conv(
                **arguments(self.layer),
                x=images(x),
                activations=self.kind,
                residual=extra,
                y=images(y),
                clip_min=clip[0],
                clip_max=clip[1],
            )
        return y


def check(rng: np.random.Generator, name: str, case: tuple, kind: str, emulated: bool) -> dict:
    """One random layer and input; the largest error as a share of what rounding allows."""
    geometry, size, fan_in, active = case
    values = str(rng.choice(list(TYPES)))
    layer = ConvLayer.random(
        geometry,
        fan_in,
        active=active,
        padded=bool(rng.random() < 0.3),
        value_type=TYPES[values],
        seed=int(rng.integers(1 << 62)),
    )
    x = layer.x(*size, seed=int(rng.integers(1 << 62)), dtype=TYPES[kind])
    residual = None
    if rng.random() < 0.5:
        residual = rng.standard_normal(layer.y_shape(x)).astype(TYPES[kind])
    clip = (-1.0, 2.0) if rng.random() < 0.5 else (-np.inf, np.inf)
    shift = int(rng.choice([0, 4, 8, 16]))
    subject = Subject(layer, kind, emulated)
    y = subject.run(x, residual, clip, shift)
    want, allowed = expect(layer, x, residual, *clip)
    share = np.abs(y.astype(np.float64) - want) / allowed
    again = subject.run(x, residual, clip, shift)
    return {
        "case": name,
        "activations": kind,
        "values": values,
        "share_of_allowed": float(np.max(share)),  # NaN: an output that nobody wrote
        "passed": bool((share <= 1).all()),
        "same_bits_again": y.tobytes() == again.tobytes(),
    }


def main() -> int:
    """Check until done or out of time; results after every case."""
    emulated = "--emulated" in sys.argv
    cases = SMALL if emulated or "--small" in sys.argv else {**SMALL, **CASES}
    result: dict[str, Any] = {"cases": 0, "worst": {}, "failures": [], "complete": False}
    rng = np.random.default_rng()
    plan = [(name, kind) for name in cases for kind in TYPES]
    for name, kind in plan:
        if time.monotonic() - START > SECONDS:
            break
        case = check(rng, name, cases[name], kind, emulated)
        result["cases"] += 1
        worst = result["worst"].get(kind, {"share_of_allowed": -1})
        if not case["share_of_allowed"] <= worst["share_of_allowed"]:
            result["worst"][kind] = case
        if not case["passed"] or not case["same_bits_again"]:
            result["failures"].append(case)
            print("FAILED", case, flush=True)
        JSON.write_text(json.dumps(result))
    else:
        result["complete"] = True
    JSON.write_text(json.dumps(result))
    print(
        f"{result['cases']} of {len(plan)} convolutions, {len(result['failures'])} failures, "
        "worst error "
        + ", ".join(f"{k}: {v['share_of_allowed']:.3f}" for k, v in result["worst"].items())
        + " of what rounding allows",
        flush=True,
    )
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
