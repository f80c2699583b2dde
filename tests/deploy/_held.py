"""Models that wait for the test, so that what it does meanwhile is no race."""

import threading
from pathlib import Path

from .._waiting import PATIENCE

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


class HeldProcess:
    """In a server process, models run (``_run``) or load (``__init__``) only once released.

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


class HeldSession:
    """In this process, a session of 3 · x whose runs end only when the test releases them."""

    def __init__(self, state):
        """Take the place of the session of the model m."""
        self.begun = threading.Semaphore(0)
        self.released = threading.Event()
        state.repository.find("m")._session = self

    def run(self, _outputs, inputs):
        self.begun.release()
        assert self.released.wait(PATIENCE)
        return [3 * inputs["x"]]
