"""CUDA sessions, which fall back to the CPU only if allowed to, and with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import ort_ops
from ..onnx_file import ModelFileError, read_model_file
from ..ort_ops.contract import BATCH_KEY, DEVICE_KEY, OPS, QUANTIZED_OPS

Provider = str | tuple[str, dict[str, Any]]

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"

_CPU_ONLY = set(QUANTIZED_OPS)

_SPOKEN = {"cpu": "a CPU", "cuda": "a GPU"}

# Times as many rows from which another form is often the fastest, on GPUs and CPUs.
_FAR_BATCH = 4

# Stack level of open_session's caller, seen from warn_cpu_instead().
_CALLER = 4


def provider_name(provider: Provider) -> str:
    """Return the name of a provider given with or without options."""
    return provider if isinstance(provider, str) else provider[0]


def is_optional(providers: list[Provider] | None) -> bool:
    """Return whether the list asks for CUDA and allows the CPU instead."""
    return {CUDA, CPU} <= set(map(provider_name, providers or []))


def without_absent_gpu(providers: list[Provider] | None) -> list[Provider] | None:
    """Remove CUDA from a list that allows the CPU instead, with a warning, if there is no GPU.

    ONNX Runtime itself would raise an exception or write to stderr, depending on its release.
    """
    if providers is None or not is_optional(providers):
        return providers
    status = ort_ops.cuda_status()
    if status.devices:
        return providers
    remedy = "See what nvidia-smi says." if status.driver else "Install NVIDIA's driver."
    warn_cpu_instead(status.device_problem, remedy)
    return [provider for provider in providers if provider_name(provider) != CUDA]


def warn_cpu_instead(reason: str, remedy: str) -> None:
    """Warn that a session runs on the CPU instead of CUDA."""
    warnings.warn(
        f"the session runs on the CPU instead of CUDA: {reason}. {remedy}",
        RuntimeWarning,
        stacklevel=_CALLER,
    )


def warn_without_kernels(session: Any, model: Path) -> None:
    """Warn if the session runs on CUDA but fanin's ops in it do not."""
    if CUDA not in session.get_providers():
        return
    used = _used_ops(model)
    if used & _CPU_ONLY:
        warnings.warn(
            "fanin's ops on 8-bit integers run on the CPU within this CUDA session: they have no "
            "CUDA kernels. Use providers=['CPUExecutionProvider'], or a model of floats.",
            RuntimeWarning,
            stacklevel=3,
        )
    if not used - _CPU_ONLY:
        return
    status = ort_ops.cuda_status()
    if not status.usable:
        warnings.warn(
            f"fanin's ops run on the CPU within this CUDA session: {status.reason}. "
            f"{status.remedy}",
            RuntimeWarning,
            stacklevel=3,
        )


def warn_of_other_device(session: Any) -> None:
    """Warn if the layers of a model were chosen for another device than the session runs on."""
    mismatch = device_mismatch(
        session.get_modelmeta().custom_metadata_map, on_cuda=CUDA in session.get_providers()
    )
    if mismatch:
        problem, remedy = mismatch
        warnings.warn(f"{problem}. {remedy}", RuntimeWarning, stacklevel=3)


def device_mismatch(metadata: Mapping[str, str], *, on_cuda: bool) -> tuple[str, str] | None:
    """Compare what a model's layers were chosen for with what it runs on.

    Returns:
        A problem and a remedy; None if they agree or the model does not say.

    """
    chosen, here = metadata.get(DEVICE_KEY), "cuda" if on_cuda else "cpu"
    if chosen not in ("cpu", "cuda") or chosen == here:
        return None
    return (
        f"the model's layers were chosen for {_SPOKEN[chosen]} and run on {_SPOKEN[here]}, where "
        "dense ones may be faster",
        f"Export it again with --device {here}.",
    )


def batch_mismatch(metadata: Mapping[str, str], batch: int) -> tuple[str, str] | None:
    """Compare what a model's layers were chosen for with a batch that it runs with.

    Returns:
        A problem and a remedy; None if they are near, or the model does not say.

    """
    said = metadata.get(BATCH_KEY, "")
    chosen = int(said) if said.isascii() and said.isdecimal() else 0
    if not chosen or max(chosen, batch) < _FAR_BATCH * min(chosen, batch):
        return None
    return (
        f"the model's layers were chosen for batch {chosen}; at batch {batch} other forms may be "
        "faster",
        f"Export it again with --batch {batch}.",
    )


def _used_ops(model: Path) -> set[str]:
    try:
        return {node.op_type for node in read_model_file(model).nodes} & set(OPS)
    except (ModelFileError, OSError):  # a format that only ONNX Runtime reads
        return set(OPS) - _CPU_ONLY
