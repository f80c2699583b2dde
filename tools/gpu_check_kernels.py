"""Part of gpu_check: every kernel against float64, over shapes, dtypes, alignments and epilogues.

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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "ort_ops"))

from _cuda_layers import TYPES, Layer, bits, poisoned

START = time.monotonic()
SECONDS = float(os.environ.get("FANIN_CHECK_SECONDS", "60"))
JSON = Path(os.environ.get("FANIN_CHECK_JSON", "correctness.json"))
# in_features, out_features, fan_in, active: the benchmark's layers, tails, one over 65,536 columns.
SHAPES = [
    (3072, 768, 307, 768),
    (768, 3072, 77, 3072),
    (3072, 768, 307, 538),
    (1000, 1001, 101, 900),
    (65536, 64, 2000, 60),
    (65537, 64, 2000, 60),
    (200_000, 33, 1500, 33),
    (1, 1, 1, 1),
    (129, 5, 129, 5),
    (4096, 4096, 41, 4000),
]
SMALL = [(301, 45, 31, 40), (128, 16, 20, 16), (1024, 33, 100, 33), (70_000, 9, 200, 8)]


def tables(emulated: bool) -> list[dict[str, Any]]:
    """Return the kernels to check."""
    if emulated:
        return [
            {"name": f"{kind}-{layout}", "layout": layout, "activations": kind}
            for layout in ("stream", "panel")
            for kind in TYPES
        ]
    from fanin.ort_ops import _cuda

    return _cuda.kernel_table()


class Subject:
    """A layer behind one kernel, on the device or emulated."""

    def __init__(self, layer: Layer, kernel: dict[str, Any], emulated: bool) -> None:
        self.layer, self.kernel, self.emulated = layer, kernel, emulated
        if not emulated:
            from fanin.ort_ops import _cuda

            self.gemm = _cuda.PackedGemm(
                **layer.arrays(),
                in_features=layer.in_features,
                activations=kernel["activations"],
                kernel=kernel["name"],
            )

    def run(self, x, residual, clip, shift):
        """Return y; `shift`: bytes behind an aligned address."""
        y = poisoned(len(x), self.layer.out_features, x.dtype.name)
        extra = None if residual is None else bits(residual)
        if self.emulated:
            from fanin.ort_ops import _cuda_emulation

            _cuda_emulation.run(
                layout=self.kernel["layout"],
                **self.layer.arrays(),
                in_features=self.layer.in_features,
                x=bits(x),
                activations=x.dtype.name,
                residual=extra,
                y=bits(y),
                clip_min=clip[0],
                clip_max=clip[1],
            )
        else:
            self.gemm.run_arrays(
                bits(x), y=bits(y), residual=extra, clip_min=clip[0], clip_max=clip[1], shift=shift
            )
        return y


def check(rng, shape, kernel, batch, emulated) -> dict[str, Any]:
    """One random layer and input; the largest error as a share of what rounding allows."""
    kind = kernel["activations"]
    values = str(rng.choice(list(TYPES)))
    layer = Layer.random(rng, *shape, values, padded=bool(rng.random() < 0.3))
    x = rng.standard_normal((batch, shape[0])).astype(TYPES[kind])
    residual = None
    if rng.random() < 0.5:
        residual = rng.standard_normal((batch, shape[1])).astype(TYPES[kind])
    clip = (-1.0, 2.0) if rng.random() < 0.5 else (-np.inf, np.inf)
    shift = int(rng.choice([0, 4, 8, 16]))
    subject = Subject(layer, kernel, emulated)
    y = subject.run(x, residual, clip, shift)
    want, allowed = layer.expect(x, residual, *clip)
    share = np.abs(y.astype(np.float64) - want) / allowed
    norm = np.linalg.norm(y.astype(np.float64) - want) / max(np.linalg.norm(want), 1e-300)
    again = subject.run(x, residual, clip, shift)
    return {
        "kernel": kernel["name"],
        "values": values,
        "shape": list(shape),
        "batch": batch,
        "share_of_allowed": float(np.max(share)),  # NaN: an output that nobody wrote
        "relative_error": float(norm),
        "passed": bool((share <= 1).all()),
        "same_bits_again": bits(y).tobytes() == bits(again).tobytes(),
    }


def main() -> int:
    """Check until done or out of time; results after every case."""
    small, emulated = "--small" in sys.argv, "--emulated" in sys.argv
    kernels = tables(emulated)
    shapes = SMALL if small or emulated else SHAPES
    result: dict[str, Any] = {"cases": 0, "worst": {}, "failures": [], "complete": False}
    rng = np.random.default_rng()
    batches = [1, 3, 20] if small or emulated else [1, 2, 3, 5, 8, 16, 33, 64, 100]
    # Whole rounds over the kernels, so that time runs out evenly.
    plan = [(s, b, k) for s in shapes for b in batches for k in kernels]
    order = rng.permutation(len(plan)) if not small else np.arange(len(plan))
    for at in order:
        if time.monotonic() - START > SECONDS:
            break
        shape, batch, kernel = plan[at]
        case = check(rng, shape, kernel, batch, emulated)
        result["cases"] += 1
        worst = result["worst"].get(kernel["name"], {"share_of_allowed": -1})
        if not case["share_of_allowed"] <= worst["share_of_allowed"]:
            result["worst"][kernel["name"]] = case
        if not case["passed"] or not case["same_bits_again"]:
            result["failures"].append(case)
            print("FAILED", case, flush=True)
        JSON.write_text(json.dumps(result))
    else:
        result["complete"] = True
    JSON.write_text(json.dumps(result))
    print(
        f"{result['cases']} of {len(plan)} cases, {len(result['failures'])} failures, worst error "
        + ", ".join(f"{k}: {v['share_of_allowed']:.3f}" for k, v in result["worst"].items())
        + " of what rounding allows",
        flush=True,
    )
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
