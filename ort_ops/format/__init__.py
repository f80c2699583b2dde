"""The condensed format: weights, files, geometry of convolutions (docs/formats.md)."""

from .condensed import CondensedWeight
from .conv_geometry import ConvGeometry
from .files import load_condensed, save_condensed

__all__ = ["CondensedWeight", "ConvGeometry", "load_condensed", "save_condensed"]
