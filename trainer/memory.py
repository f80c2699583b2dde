"""Sizes that no machine like this one can hold, refused before they are allocated.

Linux promises more memory than it has and then ends the process without a word.
"""

import os

from torch import nn


def require_memory(nbytes: int, what: str) -> None:
    """Raise ValueError when ``what`` takes more bytes than this machine has."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if nbytes > total:
        raise ValueError(
            f"{what} would take {nbytes / 2**30:,.0f} GiB, this machine has {total / 2**30:,.0f}"
        )


def model_bytes(model: nn.Module) -> int:
    """Count the bytes of parameters and buffers, of a model on the meta device, too."""
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
