"""The report of a language model's tokens per second."""

from __future__ import annotations

from ..report.blocks import busy_note, conditions, figure_title
from ..report.document import Document, Notes, Table, Text
from ..report.figure import Axis, Figure, Panel, Series, names_axis
from ..report.text import seconds_text, short, short_ratio_text
from ..results.result import Result
from .decoder import DecoderCase
from .decoder_models import ANSWER


def decoder_document(result: Result[DecoderCase]) -> Document:
    """Report on the engines; the figure shows tokens per second."""
    headings = (
        "engine",
        "projections",
        "tokens/s [quartiles]",
        "speed-up [range]",
        "ms/token",
        f"prompt of {result.spec['past']}",
        "file",
        "logits' error",
        "tokens as torch's",
    )
    table = Table(headings, [_row(one) for one in result.cases], title=result.title)
    sparse, weights = result.facts["sparse_weights"], result.facts["weights"]
    rounds = result.cases[0].token.count
    clock = " (CPU time of the thread)" if result.spec["threads"] == 1 else ""
    blocks = [
        table,
        Notes(busy_note(result.machine)),
        Text(
            f"{sparse / 1e6:.0f} of {weights / 1e6:.0f} million weights are projections of "
            "attention and MLP, which are sparse; embedding and output projection are dense, in 8 "
            "or 4 bits where the engine's name says so and the projections are. "
            f"{rounds} rounds in one process, in which the engines take turns: each goes back to "
            f"the same {result.spec['past']} tokens in its cache, decodes one token untimed and "
            f"{result.spec['tokens']} timed ones{clock}. *dense-int8*: quantize_dynamic of ONNX "
            "Runtime, one scale for each output. *dense-int4*: its MatMulNBits, blocks of 32, "
            "activations in 8 bits. *condensed-int8*: `fanin export` of dense-int8."
        ),
        Text(
            f"Errors are those of {ANSWER} tokens that torch decodes in float32, fed one by one: "
            "the largest difference of a logit, as a share of the largest logit, and how many of "
            "torch's tokens an engine chooses before the first other one. With made-up weights, "
            "all logits are close to each other, so that quantized models soon choose another "
            "token; that says nothing about trained ones."
        ),
        *conditions(result),
    ]
    return Document(result.title, blocks, [table], _figure(result))


def _row(one: DecoderCase) -> list[str]:
    rate = one.rate
    return [
        one.engine,
        f"{one.sparsity:.0%} sparse" if one.engine.startswith("condensed") else "dense",
        f"{short(rate.median)} [{short(rate.q1)}–{short(rate.q3)}]",
        short_ratio_text(one.speedup),
        short(1e3 * one.token.median),
        seconds_text(one.prompt),
        f"{one.file_bytes / 1e6:.0f} MB",
        f"{one.logits_error:.1e}",
        f"{one.same_tokens} of {ANSWER}",
    ]


def _figure(result: Result[DecoderCase]) -> Figure:
    names = [
        f"{one.engine}\n{one.sparsity:.0%}" if one.engine.startswith("condensed") else one.engine
        for one in result.cases
    ]
    places = [(float(place), one.rate) for place, one in enumerate(result.cases)]
    series = Series.of_spreads("tokens/s", "bars", places)
    panel = Panel([series], names_axis(names), Axis("tokens/s"))
    return Figure(figure_title(result), [panel])
