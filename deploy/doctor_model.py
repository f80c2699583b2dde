"""The doctor's check of a model: whether it opens, and which kernels its layers use."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..onnx_file import ModelFile, ModelFileError, read_model_file
from ..ort_ops.contract import DOMAIN, OPS
from .altered_ops import (
    LOST,
    LOST_REMEDY,
    RENAMED_REMEDY,
    describe_renamed,
    has_lost_ops,
    renamed_nodes,
)
from .doctor_probe import Finding, FindingError

# In the ops' log: op, node, kernel, bytes. Node names may contain anything.
_NODE = rf"\b({'|'.join(OPS)}) node '(.*)': "
_PACKED = re.compile(_NODE + r"([\w-]+): (\d+) bytes, (?:packed|shared)", re.A)
_NOT_CONSTANT = re.compile(_NODE + "not constant: ")
_DENSE = ("Gemm", "MatMul", "Conv")
_SHOWN = 3  # most layer names in a line


@dataclass(frozen=True)
class ModelReport:
    """What was learned from opening a model in a separate process."""

    inputs: list[str]
    outputs: list[str]
    kernels: dict[tuple[str, str], tuple[tuple[str, int], ...]]  # (op, node): (kernel, bytes)
    variable: list[str]  # nodes whose weights are not constant
    metadata: Mapping[str, str]  # what the layers were chosen for, as far as the model says


def read_report(model: Path, timeout: float = 600, libraries: Sequence[str] = ()) -> ModelReport:
    """Open a model in a separate process.

    Args:
        model: Path of the model.
        timeout: Seconds until the process is ended.
        libraries: Paths of other custom-op libraries.

    Returns:
        Inputs, outputs, kernels and metadata.

    Raises:
        FindingError: If the model does not open.

    """
    result, log = run_child("fanin.deploy.doctor_load", str(model), *libraries, timeout=timeout)
    kernels: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for op, node, kernel, size in _PACKED.findall(log):
        kernels.setdefault((op, node), []).append((kernel, int(size)))
    variable = [node for _, node in _NOT_CONSTANT.findall(log)]
    return ModelReport(
        result["inputs"],
        result["outputs"],
        {key: tuple(found) for key, found in kernels.items()},
        variable,
        result["metadata"],
    )


def run_child(
    module: str, model: str, *arguments: str, timeout: float = 600
) -> tuple[dict[str, Any], str]:
    """Run a module that opens a model in a process of its own, which contains crashes.

    Args:
        module: Name of the module; it prints its result as a line of JSON.
        model: Path of the model, its first argument.
        arguments: The others.
        timeout: Seconds until the process is ended.

    Returns:
        The result, and what the process wrote to stderr.

    Raises:
        FindingError: If the process fails, or its result is a problem and a remedy.

    """
    command = [sys.executable, "-m", module, model, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise FindingError(
            f"it does not open within {timeout:g} s", "Try it on a machine with more memory."
        ) from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        remedy = (
            "The system killed the process, probably to free memory: use a larger machine."
            if name == "SIGKILL"
            else "Report this with the model and the output of fanin doctor."
        )
        raise FindingError(f"opening it crashes the process with {name}", remedy)
    result = _last_json(done.stdout)
    if result is None:
        tail = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise FindingError(f"opening it fails: {tail[0]}", "Install fanin again.")
    if "problem" in result:
        raise FindingError(result["problem"], result["remedy"])
    return result, done.stderr


def opens(report: ModelReport) -> str:
    """Describe the model's inputs and outputs."""
    return f"opens; {', '.join(report.inputs)} → {', '.join(report.outputs)}"


def layers(report: ModelReport, model: Path) -> Finding:
    """Report which kernels the layers use, grouped by kernel, and which layers are dense."""
    content = _content(model)
    lines = _kernel_lines(report)
    ours = sum(node.domain == DOMAIN for node in content.nodes)
    dense = Counter(node.op_type for node in content.nodes if node.op_type in _DENSE)
    rest = ", ".join(f"{count} {op}" for op, count in sorted(dense.items()))
    if rest:
        lines.append(f"{rest}: onnxruntime's own kernels")
    if report.variable:
        raise FindingError(
            f"the weights of {_some(report.variable)} are not constant: every run validates them "
            "and takes the plain path",
            "Make them initializers that are not graph inputs: fanin export does.",
        )
    renamed = renamed_nodes(content)
    if renamed:
        raise FindingError("\n".join([*lines, describe_renamed(renamed)]), RENAMED_REMEDY)
    if has_lost_ops(content):
        return "\n".join([*lines, LOST]), LOST_REMEDY
    if not ours:
        lines.append("no layer is condensed")
        return "\n".join(lines), "To condense it: fanin export MODEL.onnx --out FAST.onnx."
    slow = [node for (_, node), found in report.kernels.items() if _is_slow(found)]
    if slow:
        return "\n".join(lines), _slow_remedy(slow)
    return "\n".join(lines)


def _kernel_lines(report: ModelReport) -> list[str]:
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[str, int]]] = {}
    for (op, node), found in report.kernels.items():
        names = tuple(kernel for kernel, _ in found)
        groups.setdefault((op, names), []).append((node, sum(size for _, size in found)))
    lines = []
    for (op, kernels), nodes in groups.items():
        size = sum(size for _, size in nodes) / 1e6
        shown = _some([node for node, _ in nodes])
        lines.append(f"{len(nodes)} {op} ({shown}): {' and '.join(kernels)}; {size:.1f} MB packed")
    return lines


def _is_slow(found: tuple[tuple[str, int], ...]) -> bool:
    return any(kernel.endswith("-scalar") for kernel, _ in found)


def _slow_remedy(slow: list[str]) -> str:
    which = f"{_some(slow)} run on scalar code"
    if os.environ.get("FANIN_ISA") == "scalar":
        return f"{which}, since FANIN_ISA=scalar: unset it."
    return f"{which}: no vector kernel of this CPU takes that shape; a dense layer may be faster."


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _content(model: Path) -> ModelFile:
    try:
        return read_model_file(model)
    except (ModelFileError, OSError):  # a format that only ONNX Runtime reads
        return ModelFile()


def _last_json(text: str) -> dict[str, Any] | None:
    lines = text.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
