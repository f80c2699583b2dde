"""Weights that FSDP2 (``fully_shard``) shards: local parts, and whole tensors gathered from them.

A sparse layer's mask, gradients and optimizer state are sharded as its weight is. Whatever looks at
a whole layer gathers it, works as in one process, and keeps the local part of the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from .processes import Processes


@dataclass(frozen=True)
class Sharding:
    """How a weight is spread over the processes of a mesh.

    Attributes:
        mesh: the ``DeviceMesh``.
        placements: one per dimension of the mesh: ``Shard`` or ``Replicate``.
        shape: shape of the whole weight.
        stride: strides of the whole weight.

    """

    mesh: Any
    placements: tuple[Any, ...]
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "Sharding | None":
        """Return the sharding of a DTensor; None for any other tensor."""
        if not is_distributed(tensor):
            return None
        sharded: Any = tensor
        return cls(sharded.device_mesh, sharded.placements, tensor.shape, tensor.stride())

    def distributed(self, part: Tensor) -> Tensor:
        """Return the DTensor with this local part, without copying it."""
        # A tensor is distributed only if this module, which takes a second, is loaded already.
        from torch.distributed.tensor import DTensor

        distributed: Tensor = DTensor.from_local(
            part, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )
        return distributed

    def whole(self, part: Tensor) -> Tensor:
        """Gather the local parts of all processes, which must all call it."""
        gathered: Tensor = cast(Any, self.distributed(part)).full_tensor()
        return gathered

    def part(self, whole: Tensor) -> Tensor:
        """Return a copy of this process's part of a tensor that all processes hold."""
        from torch.distributed.tensor import distribute_tensor

        whole = whole.detach().to(self.mesh.device_type)
        sharded = distribute_tensor(whole, self.mesh, self.placements, src_data_rank=None)
        return local_part(sharded).clone()


def is_distributed(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor."""
    return hasattr(tensor, "device_mesh")


def local_part(tensor: Tensor) -> Tensor:
    """Return the local part of a DTensor, and any other tensor itself, both detached."""
    if not is_distributed(tensor):
        return tensor.detach()
    with torch.no_grad():
        local: Tensor = cast(Any, tensor).to_local()
    return local


def whole_tensor(tensor: Tensor) -> Tensor:
    """Gather a DTensor, and return any other tensor itself, both detached; all must call it."""
    sharding = Sharding.of(tensor)
    return tensor.detach() if sharding is None else sharding.whole(local_part(tensor))


def part_like(weight: Tensor, whole: Tensor) -> Tensor:
    """Return the part of a whole tensor that this process holds of ``weight``, on its device."""
    sharding = Sharding.of(weight)
    return whole.to(weight.device) if sharding is None else sharding.part(whole)


def is_fully_sharded(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` was applied to this very module."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def original_type(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module before ``fully_shard`` derived one from it."""
    kinds = type(module).__mro__
    if not is_fully_sharded(module):
        return kinds[0]
    # class FSDPLinear(FSDPModule, Linear)
    position = next(i for i, kind in enumerate(kinds) if kind.__name__ == "FSDPModule")
    return kinds[position + 1]


def check_shardings(
    model: nn.Module, weights: Mapping[str, nn.Parameter], processes: Processes
) -> None:
    """Refuse weights that are sharded otherwise than by FSDP2 over all the processes.

    Args:
        model: the model.
        weights: those of its weights that are to be sparse, by parameter name.
        processes: the data-parallel processes.

    Raises:
        ValueError: names the weight.

    """
    by_fsdp = any(is_fully_sharded(module) for module in model.modules())
    for name, weight in weights.items():
        sharding = Sharding.of(weight)
        if sharding is None:
            continue
        kinds = [type(placement).__name__ for placement in sharding.placements]
        if not by_fsdp or kinds.count("Shard") > 1 or {*kinds} - {"Shard", "Replicate"}:
            raise ValueError(
                f"{name!r} cannot be sparse: it is a DTensor with placements "
                f"{sharding.placements}, as of tensor parallelism, and only fully_shard over one "
                "dimension of a mesh (with or without replicas) is supported. Add it to "
                "dense_layers."
            )
        if weight.device.type != sharding.mesh.device_type:
            raise ValueError(
                f"{name!r} cannot be sparse: it is offloaded to the CPU, where its gradient may "
                "arrive after it is masked; call fully_shard without CPUOffloadPolicy. Or add the "
                "layer to dense_layers."
            )
        if sharding.mesh.size() != processes.count:
            raise ValueError(
                f"{name!r} is spread over {sharding.mesh.size()} processes, but the Sparsifier has "
                f"{processes.count}; pass process_group= with the processes of the mesh"
            )
