"""The doctor's checks of the GPU; having none is not a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .. import ort_ops
from ..ort_ops.contract import BATCH_KEY, DEVICE_KEY, GPU_KEY, PRECISION_KEY
from .cuda import CUDA, batch_mismatch, device_mismatch
from .doctor_probe import Finding, FindingError, run_probes
from .errors import SessionError
from .runtime import load_onnxruntime


def _kernels() -> Finding:
    status = ort_ops.cuda_status()
    problem = status.library_problem
    if status.library is not None and problem:
        raise FindingError(problem, status.remedy)
    if status.library is None:
        if status.devices and _has_provider():
            raise FindingError(problem, status.remedy)
        return (problem, status.remedy) if status.devices else problem
    built = "" if status.toolkit is None else ", built with CUDA {}.{}".format(*status.toolkit)
    table = ort_ops.cuda_kernel_table()
    names = ", ".join(row.name for row in table if row.proven)
    unproven = ", ".join(row.name for row in table if not row.proven)
    return (
        f"{status.library}{built}: {names}; "
        f"not yet run on a device, taken with FANIN_CUDA_UNPROVEN=on only: {unproven}"
    )


def _gpu() -> Finding:
    status = ort_ops.cuda_status()
    if status.devices:
        driver = "" if status.driver is None else "; driver for CUDA {}.{}".format(*status.driver)
        return ", ".join(status.devices) + driver
    detail = f"none: {status.device_problem}; sessions run on the CPU"
    # With the kernels and the provider installed, the user probably expects to have a GPU.
    wanted = status.library is not None and not status.library_problem and _has_provider()
    return (detail, status.remedy) if wanted else detail


def _provider() -> Finding:
    has = _has_provider()
    status = ort_ops.cuda_status()
    if has and status.usable:
        return f"{CUDA}: {run_probes([CUDA])}"
    if has:
        return f"{CUDA} is offered, but sessions run fanin's ops on the CPU: {status.reason}"
    detail = f"this onnxruntime has no {CUDA}"
    if not status.devices:
        return detail
    remedy = "To use the GPU: pip uninstall onnxruntime, then pip install onnxruntime-gpu."
    return detail, remedy


def chosen_device(metadata: Mapping[str, str]) -> Finding:
    """Compare the device that a model's layers were chosen for with what this machine has."""
    on_cuda = _has_provider() and ort_ops.cuda_status().usable
    mismatch = device_mismatch(metadata, on_cuda=on_cuda)
    if mismatch is not None:
        return mismatch
    gpu, batch = metadata.get(GPU_KEY), metadata.get(BATCH_KEY)
    said = [
        metadata[DEVICE_KEY] + (f" ({gpu})" if gpu else ""),
        *([f"batch {batch}"] if batch else []),
        *filter(None, [metadata.get(PRECISION_KEY)]),
    ]
    return f"layers were chosen for {', '.join(said)}"


def chosen_batch(metadata: Mapping[str, str], batch: int) -> Finding:
    """Compare a batch with the one that a model's layers were chosen for."""
    mismatch = batch_mismatch(metadata, batch)
    return mismatch or f"layers were chosen for batch {metadata[BATCH_KEY]}"


def _has_provider() -> bool:
    try:
        return CUDA in load_onnxruntime().get_available_providers()
    except SessionError:  # reported by a check of its own
        return False


CHECKS: Sequence[tuple[str, Callable[[], Finding]]] = (
    ("CUDA kernels", _kernels),
    ("GPU", _gpu),
    ("CUDA provider", _provider),
)
