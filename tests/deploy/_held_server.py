"""Server processes that wait for the test, so that what it does meanwhile is no race."""

from pathlib import Path

# Python runs a module of this name at its start, in the workers too.
_SITECUSTOMIZE = """
import os, time
from fanin.deploy.serve.loaded_model import LoadedModel

act = LoadedModel.{method}

def held(*arguments):
    while not os.path.exists({released!r}):
        time.sleep(0.01)
    return act(*arguments)

LoadedModel.{method} = held
"""


class Held:
    """Models run (``_run``) or load (``__init__``) once ``release`` has been called.

    ``environment`` is that of the server.
    """

    def __init__(self, folder: Path, method: str):
        self._released = folder / "released"
        scripts = folder / "held"
        scripts.mkdir()
        text = _SITECUSTOMIZE.format(method=method, released=str(self._released))
        (scripts / "sitecustomize.py").write_text(text)
        self.environment = {"PYTHONPATH": str(scripts)}

    def release(self) -> None:
        self._released.touch()

    def hold(self) -> None:
        """From now on, again."""
        self._released.unlink()
