"""weights.safetensors: dense weights and their masks.

Holds every parameter and buffer by name, and for each sparse weight ``<parameter>.mask`` (uint8, 1
= active).
"""

import os
from collections.abc import Mapping

import torch
from safetensors.torch import save
from torch import Tensor, nn

from .._base.atomic import write_file
from .._base.checksums import tensor_checksum, with_checksums
from .layers import unwrap
from .sharding import is_distributed

FORMAT, FORMAT_VERSION = "fanin.run", "1"
MASK_SUFFIX = ".mask"


def save_weights(
    path: str | os.PathLike[str], model: nn.Module, masks: Mapping[str, Tensor]
) -> None:
    """Write a model's weights and masks to a safetensors file, atomically.

    Tensors that share memory are written once per name.

    Args:
        path: file to write.
        model: the model, or a wrapper of it.
        masks: bool tensors by qualified parameter name, as ``Sparsifier.masks`` returns them.

    Raises:
        ValueError: a mask fits no parameter, a weight is not 0 off its mask, or FSDP2 shards the
            model.
        OSError: the file cannot be written.

    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in unwrap(model).state_dict().items():
        if is_distributed(tensor):
            raise ValueError(
                f"{name!r} is sharded over processes: load get_model_state_dict(model, "
                "options=StateDictOptions(full_state_dict=True)) into a model that is not, and "
                "gather the masks by mask.full_tensor() (docs/training.md)"
            )
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        tensors[name] = plain.clone() if storage in seen else plain
        seen.add(storage)
    for name, mask in masks.items():
        active = mask.cpu()
        if name not in tensors or tensors[name].shape != active.shape:
            raise ValueError(f"the mask of {name!r} fits no parameter of the model")
        if bool(tensors[name][~active].any()):
            raise ValueError(f"{name!r} is not 0 off its mask; zero those weights first")
        tensors[f"{name}{MASK_SUFFIX}"] = active.to(torch.uint8)
    checksums = {name: checksum(tensor) for name, tensor in tensors.items()}
    metadata = {"format": FORMAT, "format_version": FORMAT_VERSION}
    write_file(path, save(tensors, with_checksums(metadata, checksums)))


def checksum(tensor: Tensor) -> str:
    """Return the file's checksum of a CPU tensor."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return tensor_checksum(str(tensor.dtype).removeprefix("torch."), tensor.shape, data.data)
