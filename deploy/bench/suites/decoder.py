"""Tokens per second of a language model with a cache, one sequence, decoded greedily."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...._base.atomic import output_folder
from ...cpus import MAX_THREADS
from ..engines.decoder import Decoder
from ..measure.pinning import pinned
from ..measure.statistics import Spread
from ..measure.timing import Progress
from ..results.plain import RAW, to_plain
from ..results.result import Recorder, Result
from .decoder_models import FORMS, DecoderConfig, DecoderFiles
from .specs import check_choices


@dataclass(frozen=True)
class BenchDecoderSpec:
    """A made-up model, measured dense and pruned.

    Attributes:
        config: sizes of the model.
        sparsities: of its projections; dense engines are measured with the weights of the last.
        engines: some of FORMS.
        past: tokens in the cache at the start of every turn.
        tokens: decoded in a turn.
        rounds: interleaved; an engine's figure of a round is the mean of its turn's tokens.
        budget: seconds after which the rounds end.
        threads: of every session.
        pin: to as many CPUs as there are threads.

    """

    config: DecoderConfig = field(default_factory=DecoderConfig)
    sparsities: tuple[float, ...] = (0.8, 0.9)
    engines: tuple[str, ...] = FORMS
    past: int = 64
    tokens: int = 4
    rounds: int = 31
    budget: float | None = None
    threads: int = 1
    pin: bool = True

    def __post_init__(self) -> None:
        check_choices("engines", self.engines, FORMS)
        if "dense" not in self.engines:
            raise ValueError("engines lack dense, which the others are compared with")
        if not self.sparsities or not all(0 < one < 1 for one in self.sparsities):
            raise ValueError(f"sparsities are {self.sparsities}; they must be in (0, 1)")
        for name in ("past", "tokens", "rounds", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.threads > MAX_THREADS:
            raise ValueError(f"threads is {self.threads}; it must be at most {MAX_THREADS}")

    @property
    def cases(self) -> list[tuple[str, float]]:
        """List what is measured: engines, and the sparsity of the weights."""
        dense = [(name, self.sparsities[-1]) for name in self.engines if name.startswith("dense")]
        sparse = [name for name in self.engines if not name.startswith("dense")]
        return [*dense, *((name, sparsity) for sparsity in self.sparsities for name in sparse)]


@dataclass(frozen=True)
class DecoderCase:
    """One engine on weights of a sparsity.

    Attributes:
        engine: its name.
        sparsity: of the projections.
        file_bytes: model and data.
        token: seconds for one token, over the rounds; on one thread CPU time, which other
            processes lengthen less.
        rate: tokens per second, likewise.
        prompt: seconds for the first ``past`` tokens, once.
        speedup: over dense in the same round.
        logits_error: largest difference from torch's logits for the same tokens, as a share of
            their largest.
        same_tokens: how many of torch's tokens follow its prompt before the first other one.

    """

    engine: str
    sparsity: float
    file_bytes: int
    token: Spread
    rate: Spread
    prompt: float
    speedup: Spread
    logits_error: float
    same_tokens: int
    rounds_seconds: tuple[float, ...] = field(default=(), metadata=RAW)


def bench_decoder(
    spec: BenchDecoderSpec, files: Path, *, progress: Progress | None = None
) -> Result[DecoderCase]:
    """Measure all engines of the spec in this process, in interleaved rounds.

    Args:
        spec: what to measure.
        files: folder for the models' files; those that are there from before are taken.
        progress: told what is done, and the share.

    """
    say = progress or (lambda what, done: None)  # noqa: ARG005
    output_folder(files)
    made: dict[float, DecoderFiles] = {}
    for sparsity in spec.sparsities:
        folder = DecoderFiles(spec.config, sparsity, files, spec.threads, lambda what: say(what, 0))
        for engine, wanted in spec.cases:
            if wanted == sparsity:
                folder.path_of(engine)
        made[sparsity] = folder
        _ = folder.reference
        folder.forget()
    recorder = Recorder()
    with pinned(spec.threads, pin=spec.pin):
        runs = [_Run.of(engine, made[sparsity], spec) for engine, sparsity in spec.cases]
        begin = time.perf_counter()
        for number in range(spec.rounds):
            if number >= 5 and spec.budget and time.perf_counter() - begin > spec.budget:
                break
            say(f"round {number + 1} of {spec.rounds}", number / spec.rounds)
            for run in runs if number % 2 == 0 else reversed(runs):
                run.turn(spec.tokens)
    dense = next(run for run in runs if run.engine == "dense")
    cases = tuple(run.case(dense.seconds) for run in runs)
    size = f"{spec.config.weights / 1e9:.2f} billion weights"
    facts = {"weights": spec.config.weights, "sparse_weights": spec.config.sparse_weights}
    title = f"Decoding with {size}, batch 1"
    return recorder.result("decoder", title, to_plain(spec), None, cases, **facts)


@dataclass
class _Run:
    """An engine on its way through the rounds."""

    engine: str
    sparsity: float
    file_bytes: int
    decoder: Decoder
    prompt: float
    logits_error: float
    same_tokens: int
    token: int
    mark: tuple[dict[str, Any], int]
    clock: Callable[[], float]
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, engine: str, files: DecoderFiles, spec: BenchDecoderSpec) -> _Run:
        path = files.path_of(engine)
        decoder = Decoder(path, spec.threads, library=engine.startswith("condensed"))
        error, same = _compare(decoder, files.reference)
        prompt = np.random.default_rng(0).integers(spec.config.vocabulary, size=spec.past).tolist()
        # On one thread a session runs in the thread that calls it.
        clock = time.thread_time if spec.threads == 1 else time.perf_counter
        begin = clock()
        token = decoder.start(prompt)
        seconds = clock() - begin
        size = sum(one.stat().st_size for one in path.parent.glob(f"{path.name}*"))
        mark = decoder.mark()
        decoder.decode(token, spec.tokens)
        return cls(engine, files.sparsity, size, decoder, seconds, error, same, token, mark, clock)

    def turn(self, count: int) -> None:
        """Decode tokens after the same past as in every turn."""
        self.decoder.go_back(self.mark)
        self.decoder.decode(self.token, 1)
        self.decoder.go_back(self.mark)
        begin = self.clock()
        self.decoder.decode(self.token, count)
        self.seconds.append((self.clock() - begin) / count)

    def case(self, dense: Sequence[float]) -> DecoderCase:
        return DecoderCase(
            self.engine,
            self.sparsity,
            self.file_bytes,
            Spread.of(self.seconds),
            Spread.of([1 / seconds for seconds in self.seconds]),
            self.prompt,
            Spread.of([slow / own for slow, own in zip(dense, self.seconds, strict=True)]),
            self.logits_error,
            self.same_tokens,
            tuple(self.seconds),
        )


def _compare(decoder: Decoder, reference: dict[str, np.ndarray]) -> tuple[float, int]:
    """Feed torch's own tokens; compare the logits, and what greedy decoding would have chosen."""
    tokens, logits = reference["tokens"].tolist(), reference["logits"]
    same, agrees, worst = 0, True, 0.0
    token = decoder.start(reference["prompt"][0].tolist())
    for number, (wanted, expected) in enumerate(zip(tokens, logits, strict=True)):
        if number:
            (token,) = decoder.decode(tokens[number - 1], 1)
        agrees = agrees and token == wanted
        same += agrees
        worst = max(worst, float(np.abs(decoder.logits - expected).max() / np.abs(expected).max()))
    return worst, same
