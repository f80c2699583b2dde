"""Checks that refuse allocations larger than the memory of this machine.

Linux grants more memory than it has and kills the process later without a message.
"""

import os

from torch import nn


def require_memory(nbytes: int, what: str) -> None:
    """Raise ValueError if ``what`` takes more bytes than this machine has."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if nbytes > total:
        raise ValueError(
            f"{what} would take {nbytes / 2**30:,.0f} GiB, but this machine has "
            f"{total / 2**30:,.0f}"
        )


def model_bytes(model: nn.Module) -> int:
    """Return the size of parameters and buffers in bytes, also of a model on the meta device."""
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
