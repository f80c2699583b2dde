"""What happens to sparse layers from a backward pass to the optimizer's step and the update."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from .alternation import Alternation
from .gradient_hooks import hook_gradients
from .loaded_weights import LoadedWeights
from .methods import SRSTE, Dense, DenseToSparse, DropFractions, SparseMethod, TopKAST
from .optimizer_state import check_optimizer_state
from .processes import Processes
from .schedule import UpdateSchedule
from .shared_windows import average_windows, commit_windows
from .sparse_layer import SparseLayer, check_present
from .step_hooks import Closure, StepHooks
from .straight_through import check_finite, expose_dense_weights, project_to_mask, take_weight
from .topology import TopologyUpdate, TopologyUpdater
from .weight_moves import WeightMoves


@dataclass(frozen=True)
class Updates:
    """Which method updates the topology, and when."""

    method: SparseMethod
    schedule: UpdateSchedule

    def observe(self, step: int) -> bool:
        """Return whether gradients of optimizer step ``step`` enter an update."""
        if not self.method.uses_gradient:
            return False
        if self.method.gradient_momentum is not None:
            return True
        return self.schedule.in_gradient_window(step)


class TrainingCycle:
    """Hooks that keep layers sparse while they train, and the updates between steps.

    Args:
        method: the method.
        schedule: when it updates the topology; None: never.
        layers: the sparse layers by parameter name, that is, of the sparsest sub-net.
        alternation: the sub-nets; None: there is one network.
        loaded: the weights that are loaded into the model.
        optimizers: the optimizer and those that it wraps, outermost first.
        processes: the data-parallel processes.
        seed: seed of random growth.
        scaler: the gradient scaler in use.

    Attributes:
        step_count: optimizer steps so far.
        stepped: whether the last of them was not followed by ``finish_step`` yet.
        synchronized: whether all processes have the same gradients in their windows.

    """

    def __init__(
        self,
        method: SparseMethod | SRSTE | TopKAST | Dense,
        schedule: UpdateSchedule | None,
        layers: Mapping[str, SparseLayer],
        alternation: Alternation | None,
        loaded: LoadedWeights,
        optimizers: Sequence[Optimizer],
        processes: Processes,
        seed: int,
        scaler: GradScaler | None,
    ) -> None:
        self.method, self._schedule, self._layers = method, schedule, layers
        self._alternation, self._loaded = alternation, loaded
        self._optimizers, self._processes = optimizers, processes
        self._seed, self._scaler = seed, scaler
        self.step_count, self.stepped, self.synchronized = 0, False, True
        self._state_checked, self._weights_checked = False, False
        self._newly_loaded = False
        self._moves: WeightMoves | None = None
        self._exposed = False  # whether the model holds its dense weights
        self._waiting = False  # whether the step in progress has still to call its closure
        self._corrected: set[str] = set()  # layers whose gradient has what the method adds to it

    def attach(self, model: nn.Module) -> None:
        """Add the hooks: to the model, and to the innermost optimizer, whose steps move weights."""
        self._model = weakref.ref(model)
        self._step_hooks = StepHooks(
            self._optimizers[-1], self._before_step, self._evaluate, self._after_step
        )
        self._model_hooks = hook_gradients(
            model, self._layers.values(), self._in_model, self._after_backward
        )
        self._model_hooks += self._loaded.watch(model)
        if self._alternation is not None:
            self._model_hooks.append(self._alternation.attach(model))

    def detach(self) -> None:
        """Remove all hooks."""
        self._step_hooks.remove()
        for handle in self._model_hooks:
            handle.remove()

    def finish_step(self) -> TopologyUpdate | None:
        """Update the topology if an update is due (see ``Sparsifier.step``)."""
        stepped, self.stepped = self.stepped, False
        self._step_hooks.expect_new_step()
        self._hide_after_error()
        if self._alternation is not None:
            self._alternation.release()
        if len(self._optimizers) > 1:  # a wrapper may move weights after the optimizer's step
            for layer in self._layers.values():
                self._in_model(layer).mask_weight()
        updates = self._updates
        if not (stepped and updates and updates.schedule.is_update_step(self.step_count)):
            return None
        return self._update_topology(updates)

    def synchronize(self) -> None:
        """Average the gradient windows over the processes; every process must call it."""
        updates = self._updates
        if self._processes.count == 1 or self.synchronized or updates is None:
            return
        for layer in self._every_layer:
            layer.window.discard_pending()
        average_windows(self._every_layer, updates.method, self._processes)
        self.synchronized = True

    def _after_backward(self, layer: SparseLayer) -> None:
        layer = self._in_model(layer)
        if self._exposed and self._step_hooks.within_step:
            raise RuntimeError(
                f"with method {self.method.name!r}, the model holds its dense weights during "
                "optimizer.step(), and a backward pass used them; call backward() before step(), "
                "or in a closure that step() is given, and sparsifier.step() after a step that "
                "failed"
            )
        self._corrected.discard(layer.name)
        if isinstance(self.method, DenseToSparse):
            layer.mask_dense_gradient()
            return
        if self._alternation is not None:
            self._alternation.passed = self._alternation.held
        gradient = layer.local_gradient
        if gradient is not None and self._observes():
            scale = 1.0 if self._scaler is None else self._scaler.get_scale()
            layer.window.observe(gradient, layer.mask, scale)
        layer.mask_gradient()

    def _before_step(self, has_closure: bool) -> None:
        if self._loaded.pending or not self._weights_checked:
            check_present(self._model(), self._layers.values())
            self._weights_checked = True
        self._newly_loaded = self._loaded.settle()
        if isinstance(self.method, SparseMethod) and self.method.moves_weights:
            self._moves = WeightMoves(self.method, self._layers, self._optimizers[-1], self._seed)
        self._hide_after_error()
        self._corrected.clear()
        self._waiting = has_closure
        self._expose(correct=not has_closure)

    def _evaluate(self, closure: Closure) -> Any:
        """Call a closure of the optimizer's step: it sees sparse weights, the step dense ones."""
        self._conceal()
        result = closure()
        self._waiting = False
        self._expose(correct=True)
        return result

    def _expose(self, *, correct: bool) -> None:
        """Let the model hold the dense weights, if there are any, for the optimizer.

        Args:
            correct: add to gradients what the method adds, unless they have it. Those of before a
                closure do not get it, since the closure may zero them or add to them.

        """
        names = set(self._layers) - self._corrected if correct else set()
        if isinstance(self.method, DenseToSparse):
            for name, layer in self._layers.items():
                expose_dense_weights(
                    layer, self._optimizers[-1], self.method, penalize=name in names
                )
        elif self._alternation is not None:
            self._alternation.expose(names)
        self._corrected |= names
        self._exposed = self._has_dense

    def _conceal(self) -> None:
        """Let the model hold sparse weights, for a pass within the step."""
        if not self._has_dense:
            for layer in self._layers.values():
                layer.mask_weight()  # LBFGS follows gradients of before an update
        elif self._exposed and isinstance(self.method, DenseToSparse):
            for layer in self._layers.values():
                project_to_mask(layer, self.method, choose=False)
        elif self._exposed and self._alternation is not None:
            self._alternation.conceal(self._alternation.shown)
        self._exposed = False

    def _hide_after_error(self) -> None:
        """Let the model hold sparse weights again after a step that ended by an error."""
        if self._exposed and self._alternation is not None:
            self._alternation.hold(self._alternation.shown)
        elif self._exposed:
            for layer in self._layers.values():
                take_weight(layer)
                layer.mask_weight()
        self._exposed = False

    @torch.no_grad()
    def _after_step(self) -> None:
        method, moves = self.method, self._moves
        self._moves = None
        if self._has_dense and (self._waiting or not self._exposed):
            raise RuntimeError(
                f"with method {method.name!r}, dense weights train, and the method adds to their "
                "gradients when a closure ends, but the optimizer did not call the closure that "
                "its step() was given, or went on after it failed; call step() without it"
            )
        self._exposed = False
        if self._alternation is not None:
            self._alternation.conceal(self._alternation.shown)
        choose = False
        if isinstance(method, DenseToSparse):
            step = self.step_count + 1
            choose = step % method.mask_every == 0 or self._newly_loaded
            if choose:
                check_finite(self._layers.values(), step)
        for layer in self._layers.values():
            if isinstance(method, DenseToSparse):
                project_to_mask(layer, method, choose=choose)
            elif self._alternation is None:
                layer.mask_weight()
        # A gradient scaler calls the step of a fused optimizer even after an overflow; the
        # optimizer then changes nothing.
        found = [getattr(optimizer, "found_inf", None) for optimizer in self._optimizers]
        if any(overflow is not None and overflow.item() > 0 for overflow in found):
            return
        updates = self._updates
        if self.stepped and updates and updates.schedule.is_update_step(self.step_count):
            raise RuntimeError(
                f"the topology update of step {self.step_count} was missed: call "
                "sparsifier.step() after every optimizer.step()"
            )
        if updates and not self._state_checked:  # most optimizers have no state before their step
            for layer in self._layers.values():
                for optimizer in self._optimizers:
                    check_optimizer_state(optimizer, layer.weight)
            self._state_checked = True
        if moves is not None:
            moves.apply(self.step_count + 1)
        observed = self._observes()
        self.synchronized = self.synchronized and not observed
        self.step_count, self.stepped = self.step_count + 1, True
        if observed:
            for layers in self._subnets:
                commit_windows(layers.values(), self._processes)
        if self._alternation is not None:
            self._alternation.commit(self.step_count)

    def _update_topology(self, updates: Updates) -> TopologyUpdate:
        schedule, step = updates.schedule, self.step_count
        fraction, following = schedule.drop_fraction(step), schedule.next_update(step)
        fractions = DropFractions(
            fraction,
            schedule.drop_fraction(following) if following else 0.0,
            step / schedule.end_step if following else 1.0,
        )
        self.synchronized = True
        if self._alternation is not None:
            self._alternation.show(self._alternation.shown)
        for layers in self._subnets:
            update = TopologyUpdater(
                updates.method, layers, self._optimizers, self._processes, self._seed
            )
            changes = update(step, fractions)
        if self._alternation is not None:
            self._alternation.project()
        return changes

    def _in_model(self, layer: SparseLayer) -> SparseLayer:
        """Return the layer that the model holds now: that of a sub-net, if there are any."""
        return layer if self._alternation is None else self._alternation.held_layer(layer)

    @property
    def _has_dense(self) -> bool:
        """Whether dense weights train behind the sparse ones."""
        return isinstance(self.method, DenseToSparse) or self._alternation is not None

    @property
    def _subnets(self) -> Sequence[Mapping[str, SparseLayer]]:
        """The layers of each sub-net, the sparsest one last; without sub-nets, of the model."""
        return [self._layers] if self._alternation is None else self._alternation.subnets

    @property
    def _every_layer(self) -> list[SparseLayer]:
        return [layer for layers in self._subnets for layer in layers.values()]

    def _observes(self) -> bool:
        """Return whether gradients of the step in progress enter an update."""
        updates = self._updates
        return updates is not None and updates.observe(self.step_count + 1)

    @property
    def _updates(self) -> Updates | None:
        if self._schedule is None or not isinstance(self.method, SparseMethod):
            return None
        return Updates(self.method, self._schedule)
