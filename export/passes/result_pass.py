"""Passes whose result says more than whether something changed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

import onnx_ir as ir

Result = TypeVar("Result", bound=ir.passes.PassResult)


class ResultPass(ir.passes.InPlacePass, Generic[Result]):
    """A pass in place that gives a result of a type of its own."""

    @abstractmethod
    def call(self, model: ir.Model) -> Result:
        """Change the model."""

    def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> Result:
        """Run :meth:`call` between the checks of onnx-ir."""
        # PassBase returns what call gave, under the type that all passes share.
        return cast(Result, super().__call__(model_or_result))


@dataclass
class FuseResult(ir.passes.PassResult):
    """A pass result that also lists what was fused.

    Attributes:
        fused: one line for every node that is gone.

    """

    fused: list[str] = field(default_factory=list)
