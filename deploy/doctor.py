"""Find out whether fanin's models can run here, and what to do when they cannot."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .. import ort_ops
from . import doctor_gpu as gpu
from .cpus import available_cpus
from .doctor_probe import Finding, FindingError, run_probes
from .errors import SessionError
from .runtime import installed_distributions, load_onnxruntime

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, whether it is fine, and what to do when it is not."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def run_checks() -> list[Check]:
    """Look at everything that running an exported model needs.

    Never raises: a check that fails says why, and the others go on.
    """
    checks: Sequence[tuple[str, Callable[[], Finding]]] = (
        ("Python", _python),
        ("NumPy", _numpy),
        ("ONNX Runtime", _onnxruntime),
        ("execution providers", _providers),
        ("op library", _library),
        ("registration", _registration),
        ("ops in a session", _probes),
        ("instruction sets", _isas),
        ("kernels", _kernels),
        ("CPUs and threads", _threads),
        *gpu.CHECKS,
    )
    return [_run(name, check) for name, check in checks]


def checks_table(checks: Sequence[Check]) -> Table:
    """Lay the checks out for the terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    for column in range(3):
        table.add_column(no_wrap=column == 0, overflow="fold")
    for check in checks:
        mark = Text("ok", "green") if check.ok else Text("FAIL", "bold red")
        table.add_row(mark, Text(check.name, "bold"), Text(check.detail))
        if check.remedy:
            table.add_row("", "", Text(f"→ {check.remedy}", "yellow"))
    return table


def _run(name: str, check: Callable[[], Finding]) -> Check:
    try:
        found = check()
        return Check(name, True, *([found] if isinstance(found, str) else found))
    except SessionError as error:
        return Check(name, False, error.problem, error.remedy)
    except FindingError as error:
        return Check(name, False, str(error), error.remedy)
    except Exception as error:  # the doctor reports every failure, also one nobody thought of
        remedy = "Install fanin again (pip install --force-reinstall fanin)."
        return Check(name, False, f"{type(error).__name__}: {error}", remedy)


def _python() -> str:
    return f"{platform.python_version()} ({platform.system()} {platform.machine()})"


def _numpy() -> str:
    return np.__version__


def _onnxruntime() -> str:
    runtime = load_onnxruntime()
    wheels = installed_distributions()
    if len(wheels) > 1:
        raise FindingError(
            f"{' and '.join(wheels)} are both installed, and overwrite each other's files",
            f"Uninstall them ({' '.join(wheels)}), then install the one you want.",
        )
    kind = next(iter(wheels), "of unknown origin")
    return f"{runtime.__version__} ({kind})"


def _providers() -> str:
    return ", ".join(load_onnxruntime().get_available_providers())


def _library() -> str:
    try:
        path = ort_ops.get_library_path()
    except OSError as error:
        raise FindingError(str(error), "Install fanin again (pip install fanin).") from error
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise FindingError(
            f"{path} does not load: {error}",
            "It was built for another system: build fanin from source here (pip install .).",
        ) from error
    if not hasattr(library, "RegisterCustomOps"):
        raise FindingError(
            f"{path} does not export RegisterCustomOps",
            "Another file lies in its place: install fanin again.",
        )
    return str(path)


def _registration() -> str:
    runtime = load_onnxruntime()
    ort_ops.register(runtime.SessionOptions())
    return f"onnxruntime {runtime.__version__} accepts the library"


def _probes() -> str:
    return run_probes(["CPUExecutionProvider"])


def _isas() -> str:
    from ..ort_ops import _native

    asked = os.environ.get("FANIN_ISA")
    offered = list(_native.supported_isas())
    try:
        taken = _native.select_isa()
    except ValueError as error:
        raise FindingError(
            str(error), f"Unset FANIN_ISA, or set it to one of {', '.join(offered)}."
        ) from error
    source = f"by FANIN_ISA={asked}" if asked else "the best one"
    return f"{', '.join(offered)}; in force: {taken} ({source})"


def _kernels() -> str:
    """Compare every kernel that this CPU can run with float64, on a small random layer."""
    from ..ort_ops import _native, reference

    rng = np.random.default_rng(0)
    rows, fan_in, width = 24, 37, 300
    values = rng.standard_normal((rows, fan_in), np.float32)
    indices = np.sort(rng.permuted(np.tile(np.arange(width), (rows, 1)), axis=1)[:, :fan_in])
    arrays = (values, indices.astype(np.uint16), np.arange(rows, dtype=np.int32))
    bias = rng.standard_normal(rows, np.float32)
    for isa in _native.supported_isas():
        packed = _native.PackedGemm(*arrays, bias, width, rows, isa=isa)
        for batch in (1, 5, 64):
            x = rng.standard_normal((batch, width), np.float32)
            want = reference.condensed_gemm(
                x, values, arrays[1], bias, arrays[2], in_features=width, out_features=rows
            )
            error = float(np.abs(packed.run(x) - want).max() / np.abs(want).max())
            if not error <= 1e-5:
                raise FindingError(
                    f"the {isa} kernel for batch {batch} is wrong by {error:.1e}",
                    "Set FANIN_ISA to another one, and report this with the output of fanin "
                    "doctor.",
                )
    names = [row.name for row in ort_ops.kernel_table() if row.supported]
    return f"right on every instruction set of this CPU: {', '.join(names)}"


def _threads() -> str:
    available, total = available_cpus(), os.cpu_count()
    detail = f"{available} of {total} CPUs may be used"
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        if name in os.environ:
            detail += f"; {name}={os.environ[name]} (onnxruntime does not read it)"
    return f"{detail}; open_session(threads=…) sets the session's pool"
