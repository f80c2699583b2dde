"""Sub-nets that train in turn (AST): which one the model holds, and what is a sub-net's own.

The parameters hold one sub-net: that of the turn from a forward pass in training mode, with
gradients, to the optimizer's step, during the step the dense weights that all share, and otherwise
the one that is shown.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .._base.distributions import weight_budget
from .gradient_window import GradientWindow
from .loaded_weights import LoadedWeights
from .methods.alternating import AST, corrected
from .model_hooks import ModelHook
from .schedule import ScheduleOptions
from .sharding import is_distributed
from .sparse_layer import LayerState, SparseLayer
from .straight_through import take_weight

Layers = Mapping[str, SparseLayer]
_DAMAGED = "sparsifier state is damaged: it lacks the other sub-nets"


class AlternationState(TypedDict):
    """What a sparsifier's state has for AST; the lists are by sub-net, without the sparsest one."""

    subnets: list[dict[str, LayerState]]
    statistics: list[list[Tensor]]
    previous: dict[str, Tensor]


class Alternation:
    """The sub-nets of a model.

    Args:
        model: the model.
        method: the method.
        sparsest: layers of the sub-net that is shown, with the shared dense weights.
        densities: those of the other sub-nets by layer, in the order of ``method.others``.
        loaded: the weights that are loaded into the model.

    """

    def __init__(
        self,
        model: nn.Module,
        method: AST,
        sparsest: Layers,
        densities: Sequence[Mapping[str, float]],
        loaded: LoadedWeights,
    ) -> None:
        self.method, self.turn, self._loaded = method, 0, loaded
        others = [
            {name: _twin(layer, targets[name]) for name, layer in sparsest.items()}
            for targets in densities
        ]
        self.subnets: tuple[Layers, ...] = (*others, sparsest)
        self.held = self.shown = len(others)
        loaded.current = self.held_layer
        self.passed: int | None = None  # the sub-net of the last backward pass
        self._buffers = [
            buffer
            for module in model.modules()
            if isinstance(getattr(module, "running_mean", None), Tensor)
            for buffer in module.buffers(recurse=False)
        ]
        self._statistics = [[b.clone() for b in self._buffers] for _ in self.subnets]
        self._previous: dict[str, Tensor] = {}
        self._pending: dict[str, Tensor] = {}

    def held_layer(self, layer: SparseLayer) -> SparseLayer:
        """Return the layer of the sub-net that the model holds."""
        return self.subnets[self.held][layer.name]

    @torch.no_grad()
    def hold(self, index: int) -> None:
        """Put a sub-net into the model, after the dense weights have what the model holds."""
        self._loaded.take_dense()
        for layer in self.subnets[self.held].values():
            take_weight(layer)
        self.project(index)

    def release(self) -> None:
        """Hold the sub-net that is shown again, if no optimizer step came after the last passes."""
        if self.held != self.shown:
            self.hold(self.shown)

    def check_shown(self) -> None:
        """Refuse to save or load a state while another sub-net than the sparsest one is shown.

        Raises:
            RuntimeError: it is.

        """
        if self.shown != len(self.subnets) - 1:
            raise RuntimeError(
                "the model is another sub-net than its sparsest one, and the sparsifier's state "
                "goes with that; leave the `with sparsifier.subnet(…)` block first"
            )

    def show(self, index: int) -> None:
        """Make this the sub-net that the model holds outside of training passes."""
        self.shown = index
        self.hold(index)

    def index_of(self, sparsity: float) -> int:
        """Return the position of the sub-net with this target sparsity.

        Raises:
            ValueError: there is none.

        """
        sparsities = [*self.method.others, self.method.sparsity]
        if sparsity not in sparsities:
            raise ValueError(f"there is no sub-net of sparsity {sparsity}, only {sparsities}")
        return sparsities.index(sparsity)

    @torch.no_grad()
    def expose(self, names: Collection[str]) -> None:
        """Expose the dense weights to the optimizer, and correct the gradients of some layers.

        Raises:
            RuntimeError: the gradients are not those of the sub-net whose turn it is.

        """
        if names and self.passed not in (None, self.turn):
            raise RuntimeError(
                "method 'ast' switches sub-nets when the model that its Sparsifier was given is "
                "called in training mode, and no such call came before this optimizer step; call "
                "model(inputs) after model.train()"
            )
        self.hold(self.turn)
        for name, layer in self.subnets[self.turn].items():
            gradient = layer.local_gradient
            if gradient is not None and name in names:
                self._pending[name] = gradient.clone()
                if self.method.gradient_correction and name in self._previous:
                    gradient.copy_(corrected(gradient, self._previous[name]))
            layer.local_weight.copy_(layer.dense_weight)

    @torch.no_grad()
    def conceal(self, index: int) -> None:
        """Store the dense weights that the optimizer left, and hold this sub-net."""
        for layer in self.subnets[self.held].values():
            layer.dense_weight.copy_(layer.local_weight)
        self.project(index)

    def commit(self, step: int) -> None:
        """Go on to the next turn: ``step`` steps have taken place."""
        self._previous, self._pending = self._pending, {}
        self.turn, self.passed = step % self.method.turns, None

    def attach(self, model: nn.Module) -> RemovableHandle:
        """Switch sub-nets before forward passes of the model, and return the hook's handle."""
        return model.register_forward_pre_hook(ModelHook(partial(_switch, self)))

    def state_dict(self) -> AlternationState:
        """Return copies of what the sub-nets do not share; the model must hold the one shown."""
        subnets = []
        for subnet in self.subnets[:-1]:
            states = {name: layer.state_dict() for name, layer in subnet.items()}
            for state in states.values():
                state.pop("dense", None)
            subnets.append(states)
        return {
            "subnets": subnets,
            "statistics": [[b.clone() for b in kept] for kept in self._statistics[:-1]],
            "previous": {name: gradient.clone() for name, gradient in self._previous.items()},
        }

    def check(self, state: object) -> None:
        """Validate what ``load_state_dict`` is to restore.

        Raises:
            ValueError: it is damaged or belongs to another model.

        """
        if not isinstance(state, Mapping):
            raise ValueError(_DAMAGED)  # damaged states are ValueErrors
        known = {name: layer.mask.shape for name, layer in self.subnets[-1].items()}
        try:
            found = [
                {name: (one["budget"], one["mask"].shape) for name, one in subnet.items()}
                for subnet in state["subnets"]
            ]
            layers = [one for subnet in state["subnets"] for one in subnet.values()]
            dtypes = {one[key].dtype for one in layers for key in ("mask", "explored")}
            statistics = [[value.shape for value in kept] for kept in state["statistics"]]
            strangers = {n: g for n, g in state["previous"].items() if known.get(n) != g.shape}
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(_DAMAGED) from error
        if dtypes - {torch.bool}:
            raise ValueError("sparsifier state is damaged: a mask of a sub-net is not bool")
        expected = [
            {name: (layer.budget, layer.mask.shape) for name, layer in subnet.items()}
            for subnet in self.subnets[:-1]
        ]
        shapes = [[buffer.shape for buffer in self._buffers]] * len(expected)
        if found != expected or statistics != shapes or strangers:
            raise ValueError("sparsifier state does not fit the model: its sub-nets are others")

    @torch.no_grad()
    def load_state_dict(self, state: AlternationState, step: int) -> None:
        """Restore what ``state_dict`` returned, after the layers of the sparsest sub-net."""
        sparsest = self.subnets[-1]
        for subnet, states in zip(self.subnets[:-1], state["subnets"], strict=True):
            for name, layer in subnet.items():
                shared = sparsest[name].dense_weight
                layer.load_state_dict({**states[name], "dense": shared})
                layer.dense = shared
        for kept, saved in zip(self._statistics[:-1], state["statistics"], strict=True):
            for buffer, value in zip(kept, saved, strict=True):
                buffer.copy_(value)
        self._previous = {
            name: value.to(sparsest[name].weight.device, copy=True)
            for name, value in state["previous"].items()
        }
        self.held, self.turn = self.shown, step % self.method.turns
        self.project()

    @torch.no_grad()
    def project(self, index: int | None = None) -> None:
        """Put a sub-net into the model as the dense weights have it; None: the one shown."""
        index = self.shown if index is None else index
        for layer in self.subnets[index].values():
            layer.local_weight.copy_(layer.dense_weight)
            layer.mask_weight()
        if index != self.held:
            for now, kept, new in zip(
                self._buffers, self._statistics[self.held], self._statistics[index], strict=True
            ):
                kept.copy_(now)
                now.copy_(new)
        self.held = index


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch does not annotate it
def _switch(alternation: Alternation, module: nn.Module) -> None:
    trains = module.training and torch.is_grad_enabled()  # not one that counts batch statistics
    index = alternation.turn if trains else alternation.shown
    if index != alternation.held:
        alternation.hold(index)


def check_whole(weights: Mapping[str, nn.Parameter]) -> None:
    """Refuse weights that FSDP2 shards.

    Raises:
        ValueError: names one.

    """
    if sharded := [name for name, weight in weights.items() if is_distributed(weight)]:
        raise ValueError(
            f"{sharded[0]!r} is sharded over processes, and method 'ast' switches weights between "
            "passes, which gathered weights do not follow; use DistributedDataParallel or another "
            "method"
        )


def in_turns(schedule: ScheduleOptions, turns: int) -> ScheduleOptions:
    """Return a schedule whose gradient window has that many steps for each sub-net.

    Raises:
        ValueError: updates follow each other before each sub-net has trained.

    """
    if schedule.update_every < turns:
        raise ValueError(
            f"update_every is {schedule.update_every}, but {turns} sub-nets train in turn; it must "
            f"be at least {turns}"
        )
    window = min(schedule.gradient_window * turns, schedule.update_every)
    return replace(schedule, gradient_window=window)


def _twin(layer: SparseLayer, density: float) -> SparseLayer:
    """Make the layer of another sub-net: all weights active, and the same dense weights."""
    shape = tuple(layer.turned(layer.mask).shape)
    return SparseLayer(
        layer.name,
        layer.weight,
        density,
        weight_budget(shape, density),
        layer.may_ablate,
        torch.ones_like(layer.mask),
        GradientWindow(),
        layer.dense,
        layer.input_first,
    )
