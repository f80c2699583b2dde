"""Other runtimes that compute a sparse layer, each in a process of its own."""

from .csr_forms import csr_engines
from .deepsparse_forms import deepsparse_engines

__all__ = ["csr_engines", "deepsparse_engines"]
