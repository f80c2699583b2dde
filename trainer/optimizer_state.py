"""Clearing the optimizer state of weights that were removed or grown."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@torch.no_grad()
def reset_optimizer_state(optimizer: Optimizer, parameter: nn.Parameter, where: Tensor) -> None:
    """Zero every per-element buffer of a parameter at some positions.

    Per-element buffers are the state tensors of the parameter's shape: momentum_buffer (SGD);
    exp_avg, exp_avg_sq, max_exp_avg_sq (Adam, AdamW); square_avg, grad_avg (RMSprop); sum
    (Adagrad).

    Args:
        optimizer: the optimizer.
        parameter: the parameter.
        where: bool of the parameter's shape, true at the positions to zero.

    """
    for value in optimizer.state.get(parameter, {}).values():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            value.masked_fill_(where, 0)
