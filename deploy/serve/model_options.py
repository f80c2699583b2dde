"""What the configuration of one model changes of the server's settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..._base.names import near_matches
from ..errors import SessionError
from .datatypes import config_datatype
from .settings import ServeSettings, SettingsError
from .signature import Signature, TensorSpec
from .versions import Version

CONFIG_FILE = "config.pbtxt"
ALL_VERSIONS = 1000  # as many as --versions may be


@dataclass(frozen=True)
class ModelOptions:
    """What a model's configuration changes; None leaves it to the server's settings.

    Attributes:
        max_rows: Most rows of a request.
        batching: Whether requests are joined into runs of up to ``max_rows``.
        batch_delay: Seconds that a request may wait for others of its batch.
        concurrency: Most runs at the same time.
        threads: Threads of each session.
        versions: How many of the newest versions are served.
        chosen: Names of the only versions that are served; empty for all.
        tensors: What the configuration says of inputs and outputs, by (kind, name).
        ignored: Fields without effect.

    """

    max_rows: int | None = None
    batching: bool = False
    batch_delay: float | None = None
    concurrency: int | None = None
    threads: int | None = None
    versions: int | None = None
    chosen: frozenset[str] = frozenset()
    tensors: tuple[tuple[str, str, str, tuple[int, ...] | None], ...] = ()
    ignored: tuple[str, ...] = ()

    def applied_to(self, settings: ServeSettings) -> ServeSettings:
        """Return the server's settings with this model's options; SettingsError out of range."""
        changes: dict[str, Any] = {
            name: value
            for name in ("batch_delay", "concurrency", "threads", "versions")
            if (value := getattr(self, name)) is not None
        }
        if self.max_rows is not None:
            if self.max_rows > settings.max_dimension:
                raise SettingsError(
                    f"max_batch_size is {self.max_rows}, but --max-dimension is "
                    f"{settings.max_dimension}"
                )
            changes["max_batch"] = self.max_rows if self.batching else 1
        return replace(settings, **changes) if changes else settings

    def version_policy(self, settings: ServeSettings) -> dict[str, Any]:
        """Return the policy in effect, as ModelConfig has it."""
        if self.chosen:
            return {"specific": {"versions": sorted(map(int, self.chosen))}}
        if settings.versions == ALL_VERSIONS:
            return {"all": {}}
        return {"latest": {"num_versions": settings.versions}}

    def selected(self, found: list[Version]) -> list[Version]:
        """Return the versions that the policy allows."""
        return [one for one in found if not self.chosen or one.name in self.chosen]

    def require_fit(self, signature: Signature, model: Path) -> None:
        """Raise SessionError if the configuration describes other inputs or outputs."""
        specs = {("input", spec.name): spec for spec in signature.inputs}
        specs |= {("output", spec.name): spec for spec in signature.outputs}
        for kind, name, datatype, dims in self.tensors:
            spec = specs.get((kind, name))
            if spec is None:
                names = [known for its_kind, known in specs if its_kind == kind]
                raise _misfit(
                    f"the model has no {kind} {name!r}.{near_matches(name, names)}", model
                )
            if datatype and config_datatype(spec.datatype) != datatype:
                said = config_datatype(spec.datatype)
                raise _misfit(
                    f"{kind} {name!r} is {datatype} there, but {said} in the model", model
                )
            if dims is not None and not self._fits(spec, dims):
                raise _misfit(
                    f"{kind} {name!r} has dims {list(dims)} there, but the model has "
                    f"{list(spec.shape)}",
                    model,
                )

    def _fits(self, spec: TensorSpec, dims: tuple[int, ...]) -> bool:
        if not spec.shape:
            return True  # a scalar, or of unknown rank
        wanted = spec.shape[1:] if self.max_rows is not None else spec.shape
        return len(dims) == len(wanted) and all(
            size in (known, -1) or not isinstance(known, int)
            for size, known in zip(dims, wanted, strict=True)
        )


DEFAULTS = ModelOptions()


def _misfit(problem: str, model: Path) -> SessionError:
    return SessionError(
        f"its {CONFIG_FILE} does not fit it: {problem}", "Correct or remove it.", model=model
    )
