"""What both protocols answer besides inference: health, metadata, statistics, the repository."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ... import __version__
from .errors import RequestError
from .model_config import model_config
from .statistics import read_statistics

if TYPE_CHECKING:
    from .state import ServerState

_EXTENSIONS = ("binary_tensor_data", "model_repository", "model_configuration", "statistics")

SHARED_MEMORY = (
    "shared memory is not supported: send tensors in the request, as binary data or raw contents"
)


class Operations:
    """The operations of one process, as plain values; errors are RequestErrors."""

    def __init__(self, state: ServerState):
        self._state = state

    def server_metadata(self) -> dict[str, Any]:
        """Return the server's name, version and extensions."""
        return {"name": "fanin", "version": __version__, "extensions": list(_EXTENSIONS)}

    def why_not_ready(self) -> str | None:
        """Return why the server is not ready, or None.

        It starts only with all of its models; later, one that fails has a readiness of its own, and
        must not take the others out of a load balancer.
        """
        if self._state.draining:
            return "the server is shutting down"
        return None

    def why_model_not_ready(self, model: str, version: str | None = None) -> str | None:
        """Return why the model, or the version, is not served; 404 for a name unknown here."""
        if not self._state.repository.versions(model):
            return f"model '{model}' is not loaded"
        self._state.repository.find(model, version)
        return None

    def model_metadata(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Return the protocol's model metadata."""
        found = self._state.repository.find(model, version)
        return found.metadata(self._state.repository.versions(found.name))

    def model_config(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Return Triton's model configuration for a served version."""
        return model_config(self._state.repository.find(model, version))

    async def statistics(
        self, model: str | None = None, version: str | None = None
    ) -> dict[str, Any]:
        """Return the statistics of a version, of all versions of a model, or of all models."""
        repository = self._state.repository
        if model is not None:
            repository.find(model, version)  # the error for a name that is not served
        chosen = [
            (served.name, served.version.name)
            for served in repository.serving()
            if model in (None, served.name) and version in (None, served.version.name)
        ]
        families = await asyncio.to_thread(self._state.metrics.statistics_families)
        return {"model_stats": read_statistics(families, chosen)}

    def index(self, only_ready: bool) -> list[dict[str, Any]]:
        """Return the rows of the repository index."""
        rows = self._state.repository.index()
        return [row for row in rows if row["state"] == "READY"] if only_ready else rows

    async def load(self, model: str, parameters: Mapping[str, Any]) -> None:
        """Load what is on disk now."""
        await self._change(self._state.repository.load, model, parameters)

    async def unload(self, model: str, parameters: Mapping[str, Any]) -> None:
        """Finish the model's pending requests and free it."""
        await self._change(self._state.repository.unload, model, parameters)

    async def _change(
        self, action: Callable[[str], None], model: str, parameters: Mapping[str, Any]
    ) -> None:
        for name, value in parameters.items():
            if value and (name == "config" or name.startswith("file:")):
                raise RequestError(
                    f"the parameter '{name[:100]}' is not supported: the server loads models only "
                    "from the files that it was started with"
                )
        if self._state.settings.workers > 1:
            raise RequestError(
                "with several workers, models are loaded and unloaded only by changing their files"
            )
        await asyncio.get_running_loop().run_in_executor(self._state.loads, action, model)
