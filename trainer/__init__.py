"""Dynamic sparse training: SRigL for any ``torch.nn.Module``, recipes, and run folders.

Public are the names below and those of ``data``, ``models``, ``analysis`` and ``integrations``; the
other modules are internal.
"""

from .._base.distributions import InfeasibleSparsityError
from .config_table import ConfigError
from .data import DataError
from .fake_quantization import FakeQuantization, fake_quantize_
from .initialization import InitializationOptions
from .layer_choice import LayerOptions
from .loop import TrainResult, train
from .methods import (
    AST,
    DSR,
    GMP,
    MEST,
    METHODS,
    SET,
    SNFS,
    SRSTE,
    Chase,
    DeepR,
    Dense,
    RigL,
    SparseMethod,
    SRigL,
    Static,
    TopKAST,
)
from .optimizer_state import OPTIMIZER_STATE, OptimizerStateError
from .pruning import Pruned, prune_
from .recipe import (
    TrainConfig,
    config_to_toml,
    extend,
    load_recipe,
    override,
    parse_config,
    recipe_names,
)
from .run_folder import Run, RunFolderError, load_run
from .schedule import ScheduleOptions
from .sparsifier import Sparsifier
from .summary import LayerSummary, Summary
from .sweep import run_sweep
from .topology import TopologyUpdate
from .training_run import TrainingError
from .weights_file import save_weights

__all__ = [
    "AST",
    "DSR",
    "GMP",
    "MEST",
    "METHODS",
    "OPTIMIZER_STATE",
    "SET",
    "SNFS",
    "SRSTE",
    "Chase",
    "ConfigError",
    "DataError",
    "DeepR",
    "Dense",
    "FakeQuantization",
    "InfeasibleSparsityError",
    "InitializationOptions",
    "LayerOptions",
    "LayerSummary",
    "OptimizerStateError",
    "Pruned",
    "RigL",
    "Run",
    "RunFolderError",
    "SRigL",
    "ScheduleOptions",
    "SparseMethod",
    "Sparsifier",
    "Static",
    "Summary",
    "TopKAST",
    "TopologyUpdate",
    "TrainConfig",
    "TrainResult",
    "TrainingError",
    "config_to_toml",
    "extend",
    "fake_quantize_",
    "load_recipe",
    "load_run",
    "override",
    "parse_config",
    "prune_",
    "recipe_names",
    "run_sweep",
    "save_weights",
    "train",
]
