"""Weights and masks that a run starts from: those of another run."""

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from .._base.local_paths import is_file, is_folder
from .config_table import ConfigError
from .given_masks import misfit
from .methods import Dense
from .recipe import TrainConfig
from .run_folder import WEIGHTS, RunFolderError, layer_choice, masks_of, read_weights
from .weights_file import MASK_SUFFIX


@torch.no_grad()
def load_initial_weights(model: nn.Module, source: str) -> dict[str, Tensor]:
    """Copy the weights of a run into a model.

    Args:
        model: the model.
        source: run folder, or its weights.safetensors.

    Returns:
        The masks of the run, bool by parameter name; none if it is dense.

    Raises:
        ConfigError: the file is missing or damaged, or holds other tensors than the model.

    """
    path = Path(source)
    try:
        in_folder = is_folder(path)
        path = path / WEIGHTS if in_folder else path
        found = is_file(path)
    except OSError as error:
        raise ConfigError(
            f"training.initial_weights: {path} cannot be read: {error.strerror}"
        ) from error
    if not found and in_folder:
        raise ConfigError(
            f"training.initial_weights: {source} has no {WEIGHTS}, so it is no run folder, or that "
            "of a run that is unfinished"
        )
    if not found:
        raise ConfigError(
            f"training.initial_weights: there is no run folder or weights file {source}; set it to "
            "that of a finished run"
        )
    try:
        tensors = read_weights(path)
        masks = masks_of(path, tensors)
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
    return masks


def fitting_masks(
    masks: dict[str, Tensor], config: TrainConfig, model: nn.Module
) -> dict[str, Tensor] | None:
    """Return the masks of the run that training starts from, or None where it takes others.

    Warns where the method of a configuration could not have made them: then it starts from the
    largest weights.

    Args:
        masks: bool by parameter name; empty: none.
        config: configuration of the new run.
        model: its model.

    """
    method = config.method
    if not masks or isinstance(method, Dense) or method.starts_dense or method.dense_to_sparse:
        return None
    reason = misfit(masks, layer_choice(config, model), method)
    if reason is None:
        return masks
    warnings.warn(
        f"training.initial_weights: the masks of {config.training.initial_weights} are not kept, "
        f"since {reason}. Training starts from the largest weights instead",
        RuntimeWarning,
        stacklevel=3,
    )
    return None
