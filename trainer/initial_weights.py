"""Weights that a run starts from: those of another run."""

from pathlib import Path

import torch
from torch import nn

from .config_table import ConfigError
from .run_folder import WEIGHTS, RunFolderError, read_weights
from .weights_file import MASK_SUFFIX


@torch.no_grad()
def load_initial_weights(model: nn.Module, source: str) -> None:
    """Copy the weights of a run into a model; its masks are not taken, but zeros are.

    Args:
        model: the model.
        source: run folder, or its weights.safetensors.

    Raises:
        ConfigError: the file is missing or damaged, or holds other tensors than the model.

    """
    path = Path(source)
    path = path / WEIGHTS if path.is_dir() else path
    try:
        tensors = read_weights(path)
    except RunFolderError as error:
        raise ConfigError(f"training.initial_weights: {error}") from error
    saved = {name: t for name, t in tensors.items() if not name.endswith(MASK_SUFFIX)}
    state = model.state_dict()
    if missing := sorted(state.keys() ^ saved.keys()):
        raise ConfigError(
            f"training.initial_weights: {path} and the model differ in {', '.join(missing[:5])}"
            f"{' and others' if len(missing) > 5 else ''}; start from a run of the same [model]"
        )
    for name, tensor in state.items():
        if saved[name].shape != tensor.shape or saved[name].dtype != tensor.dtype:
            raise ConfigError(
                f"training.initial_weights: {name} is {saved[name].dtype} "
                f"{list(saved[name].shape)} in {path}, {tensor.dtype} {list(tensor.shape)} in the "
                "model; start from a run of the same [model]"
            )
    model.load_state_dict(saved)
