"""Several processes that train one model: gradients averaged, masks from rank 0."""

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
    """The processes that hold replicas of the model; a single one needs no communication.

    ``group``: a torch.distributed group, None for the default one. ``rank``: of this process in it.
    """

    group: ProcessGroup | None
    count: int
    rank: int = 0

    @classmethod
    def of(cls, group: ProcessGroup | None) -> "Processes":
        """All processes of ``group``, or only this one without torch.distributed."""
        if not (dist.is_available() and dist.is_initialized()):
            if group is not None:
                raise ValueError("a process_group was given, but torch.distributed is not set up")
            return cls(None, 1)
        return cls(group, dist.get_world_size(group), dist.get_rank(group))

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Sum over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(tensor, group=self.group)

    def sums(self, values: Iterable[float], device: torch.device) -> list[float]:
        """Sum each value over all processes; by way of tensors on ``device``."""
        if self.count == 1:
            return list(values)
        tensor = torch.tensor(list(values), dtype=torch.float64, device=device)
        self.sum_(tensor)
        return tensor.tolist()

    def from_first_(self, tensor: Tensor) -> None:
        """Overwrite with the first process's values, in place; bool and any memory layout too."""
        if self.count == 1:
            return
        raw = tensor.detach().view(torch.uint8) if tensor.dtype == torch.bool else tensor.detach()
        buffer = raw.contiguous()
        dist.broadcast(buffer, src=self._first, group=self.group)
        if buffer is not raw:
            raw.copy_(buffer)

    def first_says(self, value: T) -> T:
        """Return the first process's ``value``, a plain object, in all of them."""
        if self.count == 1:
            return value
        said = [value]
        dist.broadcast_object_list(said, src=self._first, group=self.group)
        return said[0]

    def hold_equal(self, tensors: Iterable[Tensor]) -> bool:
        """Whether all processes hold these tensors bit for bit, as far as a checksum can tell."""
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

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            dist.barrier(group=self.group)

    @property
    def _first(self) -> int:
        return 0 if self.group is None else dist.get_global_rank(self.group, 0)


def started_by_torchrun() -> bool:
    """Whether torchrun (torch.distributed.run) has started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """Connect the processes that torchrun has started, by NCCL on CUDA and by gloo else.

    Yields only this process when it was started alone. A torch.distributed that is set up
    already is used as it is, and left so.
    """
    if not started_by_torchrun() or dist.is_initialized():
        yield Processes.of(None)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes.of(None)
    finally:
        dist.destroy_process_group()
