"""Checks whether this machine can run exported models, and tells how to repair what is wrong."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import ort_ops
from ..ort_ops.contract import BATCH_KEY, DEVICE_KEY
from . import doctor_cpus as cpus
from . import doctor_gpu as gpu
from .doctor_kernels import conv_kernels, gemm_kernels, quantized_kernels
from .doctor_model import layers, opens, read_report
from .doctor_plan import ModelPlan, plan_model
from .doctor_probe import Finding, FindingError, run_probes
from .errors import SessionError
from .runtime import installed_distributions, load_onnxruntime


@dataclass(frozen=True)
class Check:
    """Result of a check: its name, whether it passed, what was found, and what to do about it."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def run_checks() -> list[Check]:
    """Check everything that running an exported model needs.

    Returns:
        One result per check. A check that fails does not stop the others, and none raises.

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
        ("kernels", gemm_kernels),
        ("convolutions", conv_kernels),
        ("8-bit kernels", quantized_kernels),
        *cpus.CHECKS,
        *gpu.CHECKS,
    )
    return [_run(name, check) for name, check in checks]


def check_model_file(
    model: str | os.PathLike[str],
    libraries: Sequence[str | os.PathLike[str]] = (),
    batch: int | None = None,
) -> list[Check]:
    """Check one model: whether it opens here, which kernels its layers use, what it was made for.

    Args:
        model: Path of the model.
        libraries: Paths of other custom-op libraries that it needs.
        batch: That it shall run with, to compare with the one that its layers were chosen for.

    Returns:
        The results, without that of the layers if the model does not open. Never raises.

    """
    path = Path(model)
    name = f"model {path.name}"
    try:
        report = read_report(path, libraries=[os.fspath(library) for library in libraries])
    except FindingError as error:
        return [Check(name, False, str(error), error.remedy)]
    checks = [_run(name, lambda: opens(report)), _run("its layers", lambda: layers(report, path))]
    if DEVICE_KEY in report.metadata:
        checks.append(_run("its device", lambda: gpu.chosen_device(report.metadata)))
    if BATCH_KEY in report.metadata and batch is not None:
        checks.append(_run("its batch", lambda: gpu.chosen_batch(report.metadata, batch)))
    return checks


def check_plan(
    model: str | os.PathLike[str],
    threads: int,
    batches: Sequence[int],
    libraries: Sequence[str | os.PathLike[str]] = (),
) -> tuple[Check, ModelPlan | None]:
    """Plan how a session of so many threads shares the work of a model's condensed layers.

    Args:
        model: Path of a model that opens.
        threads: Threads of the session.
        batches: Sizes of the first dimension of its inputs.
        libraries: Paths of other custom-op libraries that it needs.

    Returns:
        The result, and the plan unless it failed. Never raises.

    """
    found: list[ModelPlan] = []

    def find() -> Finding:
        others = [os.fspath(library) for library in libraries]
        found.append(plan_model(Path(model), threads, batches, others))
        return found[0].summary()

    check = _run(f"plan for {threads} threads", find)
    return check, found[0] if found else None


def _run(name: str, check: Callable[[], Finding]) -> Check:
    try:
        found = check()
        return Check(name, True, *([found] if isinstance(found, str) else found))
    except ort_ops.MissingBindingError as error:  # as installed: no failure
        return Check(name, True, f"not checked: {error}")
    except SessionError as error:
        return Check(name, False, error.problem, error.remedy)
    except FindingError as error:
        return Check(name, False, str(error), error.remedy)
    except Exception as error:  # the doctor reports every failure, even an unforeseen one
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
            f"{' and '.join(wheels)} are both installed and overwrite each other's files",
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
            "It has been replaced by another file: install fanin again.",
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

    requested = os.environ.get("FANIN_ISA")
    offered = list(_native.supported_isas())
    try:
        selected = _native.select_isa()
    except ValueError as error:
        raise FindingError(
            str(error), f"Unset FANIN_ISA, or set it to one of {', '.join(offered)}."
        ) from error
    source = f"by FANIN_ISA={requested}" if requested else "the best one"
    return f"{', '.join(offered)}; selected: {selected} ({source})"
