"""Dynamic sparse training: SRigL for any ``torch.nn.Module``, recipes, and run folders."""

from .config_table import ConfigError
from .data import DataError
from .distributions import InfeasibleSparsityError
from .loop import TrainResult, train
from .methods import DSR, MEST, METHODS, SET, SNFS, SRSTE, Dense, RigL, SRigL, Static
from .recipe import TrainConfig, load_recipe, recipe_names
from .run_folder import Run, RunFolderError, load_run
from .sparsifier import Sparsifier
from .training_run import TrainingError

__all__ = [
    "DSR",
    "MEST",
    "METHODS",
    "SET",
    "SNFS",
    "SRSTE",
    "ConfigError",
    "DataError",
    "Dense",
    "InfeasibleSparsityError",
    "RigL",
    "Run",
    "RunFolderError",
    "SRigL",
    "Sparsifier",
    "Static",
    "TrainConfig",
    "TrainResult",
    "TrainingError",
    "load_recipe",
    "load_run",
    "recipe_names",
    "train",
]
