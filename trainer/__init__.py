"""Dynamic sparse training: SRigL for any ``torch.nn.Module``, recipes, and run folders."""

from .config_table import ConfigError
from .idx_files import DataError
from .loop import TrainingError, TrainResult, train
from .methods import Dense, SRigL
from .recipe import TrainConfig, load_recipe, recipe_names
from .run_folder import Run, RunFolderError, load_run
from .sparsifier import Sparsifier

__all__ = [
    "ConfigError",
    "DataError",
    "Dense",
    "Run",
    "RunFolderError",
    "SRigL",
    "Sparsifier",
    "TrainConfig",
    "TrainResult",
    "TrainingError",
    "load_recipe",
    "load_run",
    "recipe_names",
    "train",
]
