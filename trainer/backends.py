"""Backend switches of a recipe: memory format, TF32 and cuDNN's search."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .config_table import ConfigError
from .recipe import TrainingConfig


@contextmanager
def backend_switches(config: TrainingConfig, device: torch.device) -> Iterator[None]:
    """Set torch's global switches as a recipe asks for, and put them back afterwards.

    Warns about switches that do nothing on the device.
    """
    asked = {"tf32": config.tf32, "cudnn_benchmark": config.cudnn_benchmark}
    idle = [f"training.{name}" for name, wanted in asked.items() if wanted]
    if device.type != "cuda" and idle:
        warnings.warn(
            f"no effect on the device {device.type!r}, only on CUDA: {', '.join(idle)}",
            RuntimeWarning,
            stacklevel=3,
        )
    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    cudnn.allow_tf32, cudnn.benchmark = config.tf32, config.cudnn_benchmark
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        cudnn.allow_tf32, cudnn.benchmark = before


def with_channels_last(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Store the convolution weights of a model with channels last.

    Args:
        model: the model.
        shape: of one input.

    Raises:
        ConfigError: inputs are no images.

    """
    if len(shape) != 3:
        raise ConfigError(
            f"training.channels_last is for images [channels, height, width], and inputs have the "
            f"shape {list(shape)}; remove that key"
        )
    return model.to(memory_format=torch.channels_last)


def in_memory_format(inputs: Tensor, config: TrainingConfig) -> Tensor:
    """Return inputs in the memory format that a recipe asks for."""
    if not config.channels_last:
        return inputs
    return inputs.contiguous(memory_format=torch.channels_last)
