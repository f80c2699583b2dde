"""Analyses of runs, sweeps and the paper: tables, JSON and figures."""

from .paper import analyze_paper
from .result import Analysis
from .run import analyze_run
from .sweep import analyze_sweep

__all__ = ["Analysis", "analyze_paper", "analyze_run", "analyze_sweep"]
