"""Writes a model into a model repository of NVIDIA Triton Inference Server.

Triton's ONNX Runtime backend loads the custom-op libraries that ``model_operations`` names, so
their paths are absolute, on the machine or container that serves. Triton must be built with
onnxruntime 1.17 or newer, which fanin's ops need.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ... import ort_ops
from ..._base.atomic import atomic_file, output_folder, staging_folder, write_file
from ..._base.local_paths import refuse_address
from ...onnx_file import external_files
from ..cpus import MAX_THREADS
from ..errors import SessionError
from ..model_check import checked_content
from ..session import open_session
from .datatypes import config_datatype
from .settings import ModelSource, SettingsError, check_range
from .signature import Signature, TensorSpec, read_signature

_MOUNT = PurePosixPath("/models")


@dataclass(frozen=True)
class TritonSettings:
    """How Triton serves a model.

    Attributes:
        source: The model.
        repository: Folder of the repository here.
        mount: Absolute path of the repository on the serving machine.
        version: Version to write.
        threads: Intra-op threads of each session.
        instances: Number of sessions.
        max_batch: If above 0, Triton batches requests dynamically, up to so many rows, and adds the
            batch dimension itself.

    """

    source: ModelSource
    repository: Path
    mount: PurePosixPath = _MOUNT
    version: int = 1
    threads: int = 1
    instances: int = 1
    max_batch: int = 0

    def __post_init__(self) -> None:
        if not self.mount.is_absolute():
            raise SettingsError(f"--mount is {self.mount}, but Triton needs an absolute path")
        for option, value, least, most in (
            ("--model-version", self.version, 1, 1 << 62),
            ("--threads", self.threads, 1, MAX_THREADS),
            ("--instances", self.instances, 1, 1024),
            ("--max-batch", self.max_batch, 0, 1 << 20),
        ):
            check_range(option, value, least, most)

    @property
    def folder(self) -> Path:
        """The model's folder in the repository."""
        return self.repository / self.source.name


def write_triton_model(settings: TritonSettings) -> Path:
    """Add a model, the op library and config.pbtxt to a model repository.

    A version is written under another name and renamed, so a polling Triton sees it only complete.

    Args:
        settings: The model, the repository, and how Triton serves it.

    Returns:
        The model's folder in the repository.

    Raises:
        SessionError: If the model does not open here.
        SettingsError: If the version already exists, or requests cannot be batched.

    """
    model = settings.source.path
    target = settings.folder / str(settings.version)
    refuse_address(settings.repository)
    if os.path.exists(target):
        raise SettingsError(f"{target} already exists: choose another --model-version")
    signature = read_signature(open_session(model, threads=1), model)
    library = ort_ops.get_library_path()
    config = triton_config(settings, signature, library.name)
    output_folder(settings.folder)
    try:
        with staging_folder(target) as scratch:
            _copy_model(model, scratch / "version")
            # Replaced as a whole, because a running Triton may have the old library mapped.
            with library.open("rb") as source, atomic_file(settings.folder / library.name) as copy:
                shutil.copyfileobj(source, copy)
            write_file(settings.folder / "config.pbtxt", config)
            (scratch / "version").rename(target)
    finally:
        with contextlib.suppress(OSError):  # Triton would take an empty folder for a model
            settings.folder.rmdir()
    return settings.folder


def triton_config(settings: TritonSettings, signature: Signature, library: str) -> str:
    """Return the content of config.pbtxt for a model with this signature."""
    name = settings.source.name
    path = settings.mount / name / library
    lines = [
        f"name: {_quoted(name)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {settings.max_batch}",
        *_tensors("input", signature.inputs, settings),
        *_tensors("output", signature.outputs, settings),
        f"instance_group [ {{ count: {settings.instances} kind: KIND_CPU }} ]",
        f"model_operations {{ op_library_filename: [ {_quoted(str(path))} ] }}",
        *_parameter("intra_op_thread_count", settings.threads),
        *_parameter("inter_op_thread_count", 1),
    ]
    if settings.max_batch:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"


def _tensors(kind: str, specs: tuple[TensorSpec, ...], settings: TritonSettings) -> list[str]:
    lines = []
    for spec in specs:
        shape = [size if isinstance(size, int) else -1 for size in spec.shape]
        if settings.max_batch:
            if not shape or shape[0] != -1:
                raise SettingsError(
                    f"--max-batch needs an open batch dimension, but {kind} '{spec.name}' has "
                    f"shape {list(spec.shape)}"
                )
            shape = shape[1:]
        # Triton does not allow empty dims; a scalar is reshaped from one element.
        dims, reshape = (shape, "") if shape else ([1], " reshape { shape: [ ] }")
        lines += [
            f"{kind} [ {{",
            f"  name: {_quoted(spec.name)}",
            f"  data_type: {config_datatype(spec.datatype)}",
            f"  dims: {dims}{reshape}",
            "} ]",
        ]
    return lines


def _parameter(key: str, value: int) -> list[str]:
    return [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}']


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _copy_model(model: Path, folder: Path) -> None:
    content = checked_content(model)
    folder.mkdir(parents=True)
    shutil.copyfile(model, folder / "model.onnx")
    for file in external_files(model, content):
        target = folder / file.relative_to(model.parent)
        if target.name == "model.onnx" and target.parent == folder:
            raise SessionError(
                "its external data is in a file named model.onnx, the name of Triton's model",
                "Rename the data file: load and save the model with onnx.",
                model=model,
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
