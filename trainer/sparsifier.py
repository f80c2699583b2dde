"""Attaches a sparse training method to a model and its optimizer."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import prod
from typing import Never

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from .._base.distributions import Distribution
from .alternation import Alternation, check_whole, in_turns
from .initial_layers import initial_layers
from .initialization import InitializationOptions
from .layer_choice import LayerOptions, all_dense, choose_layers
from .layers import count_other_weights, unwrap
from .loaded_weights import LoadedWeights
from .methods import AST, SRSTE, Dense, DenseToSparse, SparseMethod, TopKAST
from .processes import Processes
from .schedule import ScheduleOptions, UpdateSchedule
from .sharding import check_shardings
from .sparse_layer import SparseLayer
from .sparsifier_options import keywords_of, option_group, refuse_unknown
from .sparsifier_state import STATE_VERSION, SparsifierState, fitting_state
from .summary import Summary, dense_summary, mask_summary
from .topology import TopologyUpdate
from .training_cycle import TrainingCycle
from .wrapped_optimizers import check_trained_here, optimizer_chain

_attached: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_masked = WeakTensorKeyDictionary()  # weights that a Sparsifier masks


class Sparsifier:
    """Keeps a model sparse while it trains, and changes which weights are active.

    Call ``step()`` after each ``optimizer.step()`` and before ``zero_grad()``. Construction draws
    the masks, and new weights for sparse layers that are as torch made them; trained weights are
    kept (see ``InitializationOptions``). Load checkpoints of a sparse training afterwards.

    Args:
        model: the model, or a wrapper of it (torch.compile, DistributedDataParallel, …); it may be
            sharded by FSDP2 (``fully_shard``, before the optimizer is made).
        optimizer: the optimizer of the model's parameters, or a wrapper of it (Accelerate's, SAM,
            Lookahead, ZeroRedundancyOptimizer, …); it takes one ``Sparsifier`` at a time.
        method: ``SRigL(sparsity=0.9)``, ``Dense()`` or another of ``fanin.trainer.METHODS``.
        total_steps: optimizer steps of the whole training.
        update_every: shorthand for ``schedule=ScheduleOptions(update_every=…)``.
        distribution: shorthand for ``layers=LayerOptions(distribution=…)``.
        dense_layers: shorthand for ``layers=LayerOptions(dense_layers=…)``.
        layers: which layers are sparse, and how sparse.
        schedule: when the topology is updated; unused by methods without updates.
        initialization: initial masks and weights.
        seed: seed of masks, drawn weights and random growth; 0 or more.
        grad_scaler: the gradient scaler in use, so that gradients are averaged unscaled.
        process_group: the data-parallel processes; None: all of torch.distributed.
        state: a ``state_dict()`` to continue from, for a model and an optimizer that are already
            restored; no weights are drawn then.

    Raises:
        TypeError: an argument has the wrong type, is unknown, or is given twice.
        ValueError: a layer name is unknown, a weight cannot be sparse, a value is out of range, or
            no step would be an update.
        InfeasibleSparsityError: the layers cannot have the sparsity.

    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        method: SparseMethod | SRSTE | TopKAST | Dense,
        total_steps: int,
        update_every: int | None = None,
        distribution: Distribution | None = None,
        dense_layers: Sequence[str] | None = None,
        layers: LayerOptions | None = None,
        schedule: ScheduleOptions | None = None,
        initialization: InitializationOptions | None = None,
        seed: int = 0,
        grad_scaler: GradScaler | None = None,
        process_group: ProcessGroup | None = None,
        state: SparsifierState | None = None,
        **unknown: Never,
    ) -> None:
        optimizers = optimizer_chain(optimizer)
        if any(other in _attached for other in optimizers):
            raise ValueError("this optimizer already has a Sparsifier; call its detach() first")
        refuse_unknown(unknown, keywords_of(Sparsifier.__init__))
        if not isinstance(method, SparseMethod | DenseToSparse | Dense):
            raise TypeError(
                f"method must be an instance such as SRigL(sparsity=0.9), got {method!r}"
            )
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, got {seed!r}")
        shorthands = {"distribution": distribution, "dense_layers": dense_layers}
        layers = option_group("layers", LayerOptions, layers, shorthands)
        schedule = option_group(
            "schedule", ScheduleOptions, schedule, {"update_every": update_every}
        )
        start = option_group("initialization", InitializationOptions, initialization, {})
        model = unwrap(model)
        self._optimizers = optimizers
        self._processes = Processes.of(process_group)
        self._settings: dict[str, object] = {"method": method.name, **asdict(method)}
        updates: UpdateSchedule | None = None
        self._layers: dict[str, SparseLayer] = {}
        self._alternation: Alternation | None = None
        if isinstance(method, Dense):
            choice = all_dense(model, layers)
        else:
            structure = method.mask_structure()
            choice = choose_layers(model, optimizer, method.sparsity, structure, layers)
            if taken := [name for name in choice.sparse if choice.weights[name] in _masked]:
                raise ValueError(
                    f"{taken[0]!r} is already masked by another Sparsifier, and two would undo "
                    "each other's updates; call its detach() first"
                )
            sparse = {name: choice.weights[name] for name in choice.sparse}
            check_shardings(model, sparse, self._processes)
            if isinstance(method, AST):
                check_whole(sparse)
            if isinstance(method, AST | DenseToSparse):
                check_trained_here(optimizers[-1], sparse, method.name)
            self._settings |= {"seed": seed, "no_ablation": sorted(choice.protected)}
            if isinstance(method, SparseMethod) and method.updates:
                schedule = in_turns(schedule, method.turns)
                updates = UpdateSchedule(total_steps=total_steps, **asdict(schedule))
                self._settings |= asdict(updates)
            self._layers = initial_layers(
                model,
                choice,
                method,
                optimizers,
                start,
                restored=state is not None,
                seed=seed,
                processes=self._processes,
                stacklevel=2,
            )
        self._loaded = LoadedWeights(self._layers, self._processes)
        if isinstance(method, AST):
            densities = [
                choose_layers(model, optimizer, other, method.mask_structure(), layers).densities
                for other in method.others
            ]
            self._alternation = Alternation(model, method, self._layers, densities, self._loaded)
        self._cycle = TrainingCycle(
            method,
            updates,
            self._layers,
            self._alternation,
            self._loaded,
            optimizers,
            self._processes,
            seed,
            grad_scaler,
        )
        self._shapes, self._others = choice.shapes, count_other_weights(model, choice.weights)
        if state is not None:
            self.load_state_dict(state)
        self._cycle.attach(model)
        _attached.update(optimizers)
        for layer in self._layers.values():
            _masked[layer.weight] = True

    @property
    def method(self) -> SparseMethod | SRSTE | TopKAST | Dense:
        """The training method."""
        return self._cycle.method

    @property
    def masks(self) -> dict[str, Tensor]:
        """Bool masks of the sparse layers by qualified parameter name; do not modify them.

        Those of weights that FSDP2 shards are DTensors, sharded alike.
        """
        return {name: layer.distributed(layer.mask) for name, layer in self._layers.items()}

    @property
    def step_count(self) -> int:
        """Optimizer steps so far."""
        return self._cycle.step_count

    @property
    def itop_rate(self) -> float:
        """Fraction of the weights that have ever been active (ITOP rate, arXiv 2102.02887).

        Over all linear and convolution layers; dense layers count as fully explored. With sharded
        weights, every process must read it.
        """
        total = sum(prod(shape) for shape in self._shapes.values())
        unexplored = sum(
            int((~layer.whole(layer.explored)).sum()) for layer in self._layers.values()
        )
        return 1 - unexplored / total

    def summary(self) -> Summary:
        """Return target and actual density, active neurons and fan-in of every layer.

        With sharded weights, every process must call it.
        """
        rows = []
        for name, shape in self._shapes.items():
            layer = self._layers.get(name)
            if layer is None:
                rows.append(dense_summary(name, shape))
            else:
                mask = layer.turned(layer.whole(layer.mask))
                rows.append(mask_summary(name, mask, layer.density))
        return Summary(tuple(rows), self._others)

    def step(self) -> TopologyUpdate | None:
        """Update the topology if an update is due, else do nothing.

        Steps are counted by the optimizer, so a step that a gradient scaler skipped has no effect.

        Returns:
            What changed, or None.

        """
        return self._cycle.finish_step()

    def synchronize(self) -> None:
        """Average the gradient windows over the processes; call it before ``state_dict()``.

        Every process must call it. Does nothing with one process or empty windows.
        """
        self._cycle.synchronize()

    @contextmanager
    def subnet(self, sparsity: float) -> Iterator[dict[str, Tensor]]:
        """Let the model be another sub-net of ``AST``, to evaluate, save or export it.

        With several processes, the batch statistics are those that this process has counted; take
        those of rank 0.

        Args:
            sparsity: the method's ``sparsity`` or one of its ``others``.

        Yields:
            The masks of the sub-net by parameter name.

        Raises:
            TypeError: the method has no sub-nets.
            ValueError: none has this sparsity.

        """
        alternation = self._alternation
        if alternation is None:
            raise TypeError(f"method {self.method.name!r} trains one network, without sub-nets")
        before, index = alternation.shown, alternation.index_of(sparsity)
        alternation.show(index)
        try:
            yield {name: layer.mask for name, layer in alternation.subnets[index].items()}
        finally:
            alternation.show(before)

    def mask_(self, other: nn.Module) -> None:
        """Zero the masked weights of a copy of the model, such as an average of its weights.

        The copy may be whole or sharded, as the model may; if either is sharded, every process must
        call this.

        Raises:
            ValueError: ``other`` lacks a sparse weight or has it in a different shape.

        """
        parameters = dict(unwrap(other).named_parameters())
        for name, layer in self._layers.items():
            shape = layer.weight.shape
            if name not in parameters or parameters[name].shape != shape:
                found = list(parameters[name].shape) if name in parameters else "nothing"
                raise ValueError(
                    f"cannot mask this model: {name!r} must have shape {list(shape)}, found {found}"
                )
        for name, layer in self._layers.items():
            layer.mask_copy(parameters[name])

    def detach(self) -> None:
        """Remove all hooks; masks stay readable and the weights stay as they are."""
        self._cycle.detach()
        for optimizer in self._optimizers:
            _attached.discard(optimizer)
        for layer in self._layers.values():
            if layer.weight in _masked:
                del _masked[layer.weight]

    def state_dict(self) -> SparsifierState:
        """Return everything that resuming needs besides model and optimizer.

        Tensors are copies on the masks' devices; ``torch.load(weights_only=True)`` can load them.
        With several processes, the state of one process is that of all: call ``synchronize()`` on
        all of them first. The state of weights that FSDP2 shards is whole, and on the CPU; every
        process must call this then.

        Raises:
            RuntimeError: ``synchronize()`` was not called and gradients would be lost, or the model
                is another sub-net for now (``subnet``).

        """
        if self._processes.count > 1 and not self._cycle.synchronized:
            raise RuntimeError(
                "processes have averaged different gradients; call sparsifier.synchronize() on all "
                "of them before state_dict()"
            )
        if self._alternation is not None:
            self._alternation.check_shown()
            self._alternation.release()
        self._loaded.take_dense()
        state: SparsifierState = {
            "format_version": STATE_VERSION,
            "settings": dict(self._settings),
            "step": self._cycle.step_count,
            "update_pending": self._cycle.stepped,
            "layers": {name: layer.state_dict() for name, layer in self._layers.items()},
        }
        if self._alternation is not None:
            state["alternation"] = self._alternation.state_dict()
        return state

    def load_state_dict(self, state: SparsifierState) -> None:
        """Continue from the ``state_dict()`` of a sparsifier with the same arguments.

        Masks the model's weights. N:M masks of version 1 keep their groups, which in convolutions
        are not those of new masks.

        Raises:
            ValueError: the state is damaged or belongs to another model, method or schedule;
                nothing is changed then.
            RuntimeError: the model is another sub-net for now (``subnet``).

        """
        state, method, settings = fitting_state(state, self.method, self._settings, self._layers)
        if self._alternation is not None:
            self._alternation.check_shown()
            self._alternation.check(state.get("alternation"))
        self._cycle.method, self._settings = method, settings
        self._cycle.step_count, self._cycle.stepped = state["step"], state["update_pending"]
        for name, layer in self._layers.items():
            layer.load_state_dict(state["layers"][name])
        if self._alternation is not None:
            self._alternation.load_state_dict(state["alternation"], state["step"])
        self._loaded.forget()
