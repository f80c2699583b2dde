"""fanin: constant fan-in sparse networks, from training to production latency."""

from importlib.metadata import version

__version__ = version("fanin")
