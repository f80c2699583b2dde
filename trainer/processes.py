"""Several processes that train one model: gradients averaged, masks from rank 0."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """The processes that hold replicas of the model; a single one needs no communication.

    ``group``: a torch.distributed group, None for the default one.
    """

    group: object | None
    count: int

    @classmethod
    def of(cls, group: object | None) -> "Processes":
        """All processes of ``group``, or only this one without torch.distributed."""
        if not (dist.is_available() and dist.is_initialized()):
            if group is not None:
                raise ValueError("a process_group was given, but torch.distributed is not set up")
            return cls(None, 1)
        return cls(group, dist.get_world_size(group))

    def sum_(self, tensor: Tensor) -> None:
        """Sum over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(tensor, group=self.group)

    def from_first_(self, tensor: Tensor) -> None:
        """Overwrite with the first process's values, in place; bool and any memory layout too."""
        if self.count == 1:
            return
        raw = tensor.detach().view(torch.uint8) if tensor.dtype == torch.bool else tensor.detach()
        buffer = raw.contiguous()
        first = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        dist.broadcast(buffer, src=first, group=self.group)
        if buffer is not raw:
            raw.copy_(buffer)
