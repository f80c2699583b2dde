"""Analyses of runs, sweeps and the paper: tables, JSON and figures."""

from .of_run import analyse_run
from .of_sweep import analyse_sweep
from .paper import analyse_paper
from .result import Analysis

__all__ = ["Analysis", "analyse_paper", "analyse_run", "analyse_sweep"]
