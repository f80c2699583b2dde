"""The run folder: the files of a training run.

``config.toml``, ``metrics.jsonl``, ``training_state.pt`` (checkpoint), with ``keep = "best"`` the
best weights so far in ``best.safetensors``, and, when training is complete, ``weights.safetensors``
with every parameter and buffer by name, and for each sparse weight ``<parameter>.mask`` (uint8, 1 =
active).
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .._base.atomic import is_scratch, output_folder, output_path, write_file
from .._base.checksums import find_damage
from .._base.local_paths import is_folder, refuse_address
from .._base.texts import read_text
from .config_table import ConfigError
from .data import describe
from .layer_choice import LayerChoice, choose_layers
from .memory import model_bytes, require_memory
from .methods import Dense
from .metrics import Record, read_metrics
from .recipe import TrainConfig, config_to_toml, parse_config
from .weights_file import FORMAT, FORMAT_VERSION, MASK_SUFFIX, checksum, save_weights

CONFIG, METRICS, STATE, BEST, WEIGHTS = (
    "config.toml",
    "metrics.jsonl",
    "training_state.pt",
    "best.safetensors",
    "weights.safetensors",
)
FILES = (CONFIG, METRICS, STATE, WEIGHTS)  # of a finished run


class RunFolderError(Exception):
    """A run folder is missing, unfinished, damaged or unusable; the message says what to do."""


@dataclass(frozen=True)
class Run:
    """A finished run, on the CPU.

    Attributes:
        path: run folder.
        model: in evaluation mode; masked weights are 0.
        masks: bool tensors by qualified parameter name; empty for dense training.
        config: its configuration.
        example_input: random float32 batch of two samples.
        metrics: records of metrics.jsonl.

    """

    path: Path
    model: nn.Module
    masks: dict[str, Tensor]
    config: TrainConfig
    example_input: Tensor
    metrics: list[Record]


def build_model(config: TrainConfig) -> nn.Module:
    """Build the untrained model of a configuration.

    Raises:
        ConfigError: its sizes are inconsistent or exceed the memory of this machine.

    """
    shape, classes = describe(config.data)
    try:
        require_memory(2 * 4 * prod(shape), "a batch of two")
        with torch.device("meta"):
            require_memory(model_bytes(config.model.build(shape, classes)), "its weights")
        return config.model.build(shape, classes)
    except (ValueError, TypeError, RuntimeError) as error:  # torch's, if sizes overflow
        raise ConfigError(f"in [model]: {str(error).splitlines()[0]}") from error


def load_run(path: str | os.PathLike[str]) -> Run:
    """Load a finished run.

    Args:
        path: run folder.

    Raises:
        RunFolderError: the folder is missing, not a run folder, unfinished, damaged or
            inconsistent.
        RemotePathError: it is an address of an object store or server.

    """
    refuse_address(path)
    folder = Path(path)
    config = read_config(folder)
    if not os.path.isfile(folder / WEIGHTS):
        raise RunFolderError(
            f"run {folder} is unfinished: it has no {WEIGHTS}. Finish it with "
            f"`fanin train --resume --out {folder}`"
        )
    tensors = read_weights(folder / WEIGHTS)
    model = _build_saved_model(folder, config)
    state = {name: tensor for name, tensor in tensors.items() if not name.endswith(MASK_SUFFIX)}
    masks = masks_of(folder / WEIGHTS, tensors)
    _check_tensors(folder / WEIGHTS, model, state, masks)
    _check_complete(folder, config, model, masks)
    model.load_state_dict(state)
    shape = (2, *describe(config.data)[0])
    example = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    try:
        metrics = read_metrics(folder / METRICS)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"run {folder} has no readable {METRICS}: {error}") from error
    return Run(folder, model.eval(), masks, config, example, metrics)


def _build_saved_model(folder: Path, config: TrainConfig) -> nn.Module:
    try:
        return build_model(config)
    except ConfigError as error:
        raise RunFolderError(f"{CONFIG} of run {folder} is not usable: {error}") from error


def read_config(folder: Path) -> TrainConfig:
    """Read the configuration of a run.

    Raises:
        RunFolderError: there is none, or it is wrong.

    """
    try:
        found = is_folder(folder)
    except OSError as error:
        raise RunFolderError(f"run folder {folder} cannot be read: {error.strerror}") from error
    if not found:
        raise RunFolderError(f"there is no run folder {folder}; check the path")
    try:
        return parse_config(read_text(folder / CONFIG), str(folder / CONFIG))
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder} is not a run folder: it has no {CONFIG}") from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{CONFIG} of run {folder} is not usable: {error}") from error


@contextmanager
def open_run(folder: Path, config: TrainConfig, *, resume: bool) -> Iterator[None]:
    """Create a run folder, or check that one can be resumed, and lock it for this process.

    A new folder stays empty, so that a run that fails before training can be started again.

    Args:
        folder: run folder.
        config: configuration of the run.
        resume: continue an existing run.

    Raises:
        RunFolderError: the folder is in use, cannot be written, exists already (or, with
            ``resume``, does not), or belongs to another configuration.

    """
    if resume:
        _check_resumable(folder, config)
    elif os.path.isdir(folder) and any(not is_scratch(p.name) for p in folder.iterdir()):
        raise RunFolderError(
            f"{folder} exists and is not empty. Continue its run with --resume, or choose another "
            "output folder"
        )
    try:
        output_folder(folder)
        for name in (*FILES, BEST):
            output_path(folder / name)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise RunFolderError(f"cannot write to {folder}: {error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(f"another process is training into {folder}") from error
        yield
    finally:
        os.close(descriptor)


def is_finished(folder: Path) -> bool:
    """Return whether a run is complete."""
    return os.path.isfile(folder / WEIGHTS)


def write_config(folder: Path, config: TrainConfig) -> None:
    """Write the configuration; this makes the folder a run folder."""
    write_file(folder / CONFIG, config_to_toml(config))


def write_weights(folder: Path, model: nn.Module, masks: dict[str, Tensor]) -> None:
    """Write the final weights and masks; this finishes the run."""
    save_weights(folder / WEIGHTS, model, masks)


def write_best_weights(folder: Path, model: nn.Module, masks: dict[str, Tensor]) -> None:
    """Write the best weights so far, with their masks."""
    save_weights(folder / BEST, model, masks)


def keep_best_weights(folder: Path) -> None:
    """Make the best weights the final ones; this finishes the run.

    Raises:
        RunFolderError: they are missing or damaged.

    """
    read_weights(folder / BEST)
    os.replace(folder / BEST, folder / WEIGHTS)


def _check_resumable(folder: Path, config: TrainConfig) -> None:
    saved = read_config(folder)
    if saved == config:
        return
    before, now = config_to_toml(saved).splitlines(), config_to_toml(config).splitlines()
    changed = [line for line in now if line not in before] or [
        line for line in before if line not in now
    ]
    raise RunFolderError(
        f"run {folder} was started with another configuration; the differences are: "
        f"{'; '.join(changed)}. Resume it with its own {CONFIG}, or choose another output folder"
    )


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read all tensors of weights.safetensors, verifying their checksums.

    Raises:
        RunFolderError: the file is damaged, or of the wrong kind or version.

    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise RunFolderError(
                    f"{path} was not written by fanin train (its format is not {FORMAT})"
                )
            if metadata.get("format_version") != FORMAT_VERSION:
                raise RunFolderError(
                    f"{path} has format version {metadata.get('format_version')}; this version of "
                    f"fanin reads {FORMAT_VERSION}. Install a newer one"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error
    damage = find_damage(metadata, tensors, lambda name: checksum(tensors[name]))
    if damage:
        raise _damaged(path, damage)
    return tensors


def _damaged(path: Path, reason: object) -> RunFolderError:
    return RunFolderError(
        f"{path} is damaged ({reason}). Delete it and finish the run again with "
        f"`fanin train --resume --out {path.parent}`"
    )


def masks_of(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the masks among the tensors of weights.safetensors, bool by parameter name.

    Raises:
        RunFolderError: a mask holds something else than zeros and ones.

    """
    masks = {}
    for name, tensor in tensors.items():
        if not name.endswith(MASK_SUFFIX):
            continue
        if tensor.dtype != torch.uint8 or bool((tensor > 1).any()):
            found = f"{tensor.dtype}"
            if tensor.dtype == torch.uint8:
                found += f" up to {tensor.max().item()}"
            raise RunFolderError(f"{path}: {name} must hold uint8 zeros and ones, found {found}")
        masks[name.removesuffix(MASK_SUFFIX)] = tensor.bool()
    return masks


def _check_complete(
    folder: Path, config: TrainConfig, model: nn.Module, masks: dict[str, Tensor]
) -> None:
    """Refuse a folder without the masks that its configuration requires."""
    expected = sparse_parameter_names(config, model)
    if expected != set(masks):
        missing, extra = sorted(expected - set(masks)), sorted(set(masks) - expected)
        raise RunFolderError(
            f"{folder / WEIGHTS} does not hold the masks that {CONFIG} requires: "
            f"missing {missing or 'none'}, unexpected {extra or 'none'}"
        )


def sparse_parameter_names(config: TrainConfig, model: nn.Module) -> set[str]:
    """Return the parameters of ``model`` that a configuration makes sparse."""
    if isinstance(config.method, Dense):
        return set()
    return set(layer_choice(config, model).sparse)


def layer_choice(config: TrainConfig, model: nn.Module) -> LayerChoice:
    """Return the layers and densities that follow from a configuration.

    Raises:
        ValueError: the configuration is of dense training.

    """
    method = config.method
    if isinstance(method, Dense):
        raise ValueError("dense training has no sparse layers")
    layers = config.sparsifier.layers
    return choose_layers(model, None, method.sparsity, method.mask_structure(), layers)


def _check_tensors(
    path: Path, model: nn.Module, state: dict[str, Tensor], masks: dict[str, Tensor]
) -> None:
    expected = model.state_dict()
    if expected.keys() != state.keys():
        names = ", ".join(sorted(expected.keys() ^ state.keys()))
        raise RunFolderError(f"{path} and the model of {CONFIG} have different tensors: {names}")
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape:
            raise RunFolderError(
                f"{path}: {name} has shape {list(state[name].shape)}, the model of {CONFIG} "
                f"{list(tensor.shape)}"
            )
        if state[name].dtype != tensor.dtype:
            raise RunFolderError(
                f"{path}: {name} is {state[name].dtype}, the model of {CONFIG} {tensor.dtype}; "
                "converting it would change its values"
            )
    for name, mask in masks.items():
        if name not in state or mask.shape != state[name].shape:
            raise RunFolderError(f"{path}: the mask of {name} fits no parameter of the model")
        if bool(state[name][~mask].any()):
            raise RunFolderError(f"{path}: {name} is not 0 off its mask")
