"""Data-parallel processes that train one model: averaged gradients, masks from rank 0."""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """The processes that hold replicas of the model; a single one does not communicate.

    Attributes:
        group: torch.distributed group; None: the default group.
        count: number of processes.
        rank: rank of this process.

    """

    group: ProcessGroup | None
    count: int
    rank: int = 0

    @classmethod
    def of(cls, group: ProcessGroup | None) -> "Processes":
        """Return all processes of ``group``, or only this one without torch.distributed.

        Raises:
            ValueError: a group was given, but torch.distributed is not initialized.

        """
        if not (dist.is_available() and dist.is_initialized()):
            if group is not None:
                raise ValueError("process_group is given, but torch.distributed is not initialized")
            return cls(None, 1)
        return cls(group, dist.get_world_size(group), dist.get_rank(group))

    @property
    def is_first(self) -> bool:
        """Whether this process is rank 0, which writes the files."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Sum a tensor over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(tensor, group=self.group)

    def sum_values(self, values: Iterable[float], device: torch.device) -> list[float]:
        """Sum each value over all processes, using a tensor on ``device``."""
        if self.count == 1:
            return list(values)
        tensor = torch.tensor(list(values), dtype=torch.float64, device=device)
        self.sum_(tensor)
        return tensor.tolist()

    def broadcast_(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of rank 0, in place; supports bool and any memory layout."""
        if self.count == 1:
            return
        raw = tensor.detach().view(torch.uint8) if tensor.dtype == torch.bool else tensor.detach()
        buffer = raw.contiguous()
        dist.broadcast(buffer, src=self._first, group=self.group)
        if buffer is not raw:
            raw.copy_(buffer)

    def broadcast_object(self, value: T) -> T:
        """Return the ``value`` of rank 0, any picklable object."""
        if self.count == 1:
            return value
        objects = [value]
        dist.broadcast_object_list(objects, src=self._first, group=self.group)
        return objects[0]

    def all_hold_equal(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether all processes hold the same tensors, by a checksum of their bits."""
        if self.count == 1:
            return True
        checksum, device = 0, None
        for tensor in tensors:
            device = tensor.device
            plain = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
            checksum = zlib.crc32(plain.data, checksum)
        extremes = torch.tensor([checksum, -checksum], dtype=torch.int64, device=device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self.group)
        return int(extremes[0]) == -int(extremes[1])

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            dist.barrier(group=self.group)

    @property
    def _first(self) -> int:
        return 0 if self.group is None else dist.get_global_rank(self.group, 0)


def launched_by_torchrun() -> bool:
    """Return whether torchrun (torch.distributed.run) launched this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


@contextmanager
def distributed_processes(device: torch.device) -> Iterator[Processes]:
    """Connect the processes that torchrun launched, by NCCL on CUDA and by gloo on the CPU.

    Yields only this process if it was started alone. A torch.distributed that is already
    initialized is used as it is and left initialized.
    """
    if not launched_by_torchrun() or dist.is_initialized():
        yield Processes.of(None)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes.of(None)
    finally:
        dist.destroy_process_group()
