"""A served model as Triton's ModelConfig describes one: what clients read to form requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .datatypes import config_datatype
from .signature import TensorSpec

if TYPE_CHECKING:
    from .loaded_model import LoadedModel


def model_config(model: LoadedModel) -> dict[str, Any]:
    """Return the fields of ModelConfig that say how this server runs a model.

    As in Triton, ``max_batch_size`` above 0 means that the first dimension is the batch and absent
    from ``dims``; it is 0 where the server knows of no batch.
    """
    settings, signature = model.settings, model.signature
    rows = signature.max_rows or (settings.max_batch if signature.batched else 0)
    config: dict[str, Any] = {
        "name": model.name,
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": model.version_policy,
        "max_batch_size": rows,
        "input": [_tensor(spec, bool(rows)) for spec in signature.inputs],
        "output": [_tensor(spec, bool(rows)) for spec in signature.outputs],
        "instance_group": [{"name": model.name, "kind": "KIND_CPU", "count": settings.runs}],
        "default_model_filename": model.version.path.name,
        "parameters": {
            "intra_op_thread_count": {"string_value": str(settings.session_threads)},
        },
    }
    if signature.batched:
        delay = round(settings.batch_delay * 1e6)
        config["dynamic_batching"] = {"max_queue_delay_microseconds": delay}
    return config


def _tensor(spec: TensorSpec, batch_first: bool) -> dict[str, Any]:
    sizes = [size if isinstance(size, int) else -1 for size in spec.shape]
    return {
        "name": spec.name,
        "data_type": config_datatype(spec.datatype),
        "dims": sizes[1:] if batch_first else sizes,
    }
