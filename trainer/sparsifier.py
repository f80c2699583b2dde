"""Attaches a sparse training method to a model and its optimizer."""

import math
import warnings
import weakref
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .distributions import layer_densities, weight_budget
from .gradient_window import GradientWindow
from .initialization import sparse_init
from .layers import check_trainable, prunable_weights, resolve_names, unwrapped
from .methods import Dense, LayerInputs, Method
from .optimizer_state import reset_optimizer_state
from .schedule import UpdateSchedule
from .seeds import derived_generator
from .summary import LayerSummary, Summary
from .update import UpdateStats

STATE_VERSION = 1
_attached: weakref.WeakSet[Optimizer] = weakref.WeakSet()


@dataclass(frozen=True)
class TopologyUpdate:
    """What ``Sparsifier.step`` changed: statistics by parameter name, and layers left alone."""

    step: int
    drop_fraction: float
    layers: dict[str, UpdateStats]
    skipped: tuple[str, ...]


@dataclass
class _SparseLayer:
    name: str
    weight: nn.Parameter
    density: float
    budget: int
    may_ablate: bool
    mask: Tensor
    explored: Tensor
    # The mask in the weight's type: multiplying by it costs a fifth of masked_fill_ (0.7 against
    # 4 ms for 768×3072 on two cores), and this happens twice in every step.
    keep: Tensor = field(init=False)
    window: GradientWindow = field(default_factory=GradientWindow)

    def __post_init__(self) -> None:
        self.set_mask(self.mask)

    def set_mask(self, mask: Tensor) -> None:
        self.mask, self.keep = mask, mask.to(self.weight.dtype)
        self.explored |= mask


class Sparsifier:
    """Keeps a model sparse while it trains, and changes which weights exist.

    Call ``step()`` after each ``optimizer.step()`` and before ``zero_grad()``. Construction
    draws the masks and, with ``initialize``, new weights of variance 2/fan-in for the sparse
    layers: load checkpoints afterwards, and pass ``initialize=False`` to keep trained weights.

    ``method``: ``SRigL(...)`` or ``Dense()``. ``total_steps``: optimizer steps of the whole
    training. ``distribution``: "erk" or "uniform". ``dense_layers``: layers to leave dense, by
    qualified name; ``dense_in_budget``: whether their weights count towards the sparsity.
    ``no_ablation``: layers whose neurons are never removed; None protects the model's last
    linear or convolution layer, a list (also an empty one) replaces that default. The other
    parameters are those of ``UpdateSchedule``.

    Raises ValueError for names that the model does not have, weights that cannot be sparse,
    schedules without an update, and (InfeasibleSparsityError) budgets that cannot be met;
    NotImplementedError under torch.distributed with several processes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        method: Method | Dense,
        total_steps: int,
        distribution: str = "erk",
        no_ablation: Iterable[str] | None = None,
        dense_layers: Iterable[str] = (),
        dense_in_budget: bool = True,
        update_every: int = 100,
        end_fraction: float = 0.75,
        alpha: float = 0.3,
        gradient_window: int = 1,
        seed: int = 0,
        initialize: bool = True,
    ) -> None:
        if optimizer in _attached:
            raise ValueError("this optimizer already has a Sparsifier; call its detach() first")
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise NotImplementedError(
                "training on several processes: each would see its own gradients and choose "
                "another topology; train in one process"
            )
        model = unwrapped(model)
        self.method = method
        self._optimizer, self._seed = optimizer, seed
        self._step, self._stepped = 0, False
        self._weights = prunable_weights(model)
        names = list(self._weights)
        dense = resolve_names("dense_layers", dense_layers, names)
        unablated = resolve_names(
            "no_ablation", names[-1:] if no_ablation is None else no_ablation, names
        )
        self._densities = dict.fromkeys(names, 1.0)
        self._layers: dict[str, _SparseLayer] = {}
        self._settings: dict[str, object] = {"method": method.name, **asdict(method)}
        self._schedule: UpdateSchedule | None = None
        if not isinstance(method, Dense):
            self._schedule = UpdateSchedule(
                total_steps, update_every, end_fraction, alpha, gradient_window
            )
            self._settings |= asdict(self._schedule) | {
                "seed": seed,
                "no_ablation": sorted(unablated),
            }
            shapes = {name: tuple(weight.shape) for name, weight in self._weights.items()}
            self._densities = layer_densities(
                shapes, method.sparsity, distribution, dense=dense, dense_in_budget=dense_in_budget
            )
            sparse = [name for name in names if self._densities[name] < 1]
            check_trainable(model, optimizer, self._weights, sparse)
            for name in sparse:
                self._layers[name] = self._new_layer(name, name not in unablated, initialize)
        self._handles = [optimizer.register_step_post_hook(self._after_optimizer_step)]
        self._handles += [
            layer.weight.register_post_accumulate_grad_hook(partial(self._after_backward, layer))
            for layer in self._layers.values()
        ]
        _attached.add(optimizer)

    @property
    def masks(self) -> dict[str, Tensor]:
        """Bool masks of the sparse layers by qualified parameter name; not to be written to."""
        return {name: layer.mask for name, layer in self._layers.items()}

    @property
    def step_count(self) -> int:
        """Optimizer steps seen so far."""
        return self._step

    @property
    def itop_rate(self) -> float:
        """Share of the weights that have been active at any time (ITOP, arXiv 2102.02887).

        Over all linear and convolution layers; dense layers count as explored.
        """
        total = sum(weight.numel() for weight in self._weights.values())
        unexplored = sum(int((~layer.explored).sum()) for layer in self._layers.values())
        return 1 - unexplored / total

    def summary(self) -> Summary:
        """Asked and achieved density, active neurons and fan-in of every layer."""
        return Summary(tuple(self._summarize(name) for name in self._weights))

    def step(self) -> TopologyUpdate | None:
        """Change the topology when an update is due, else do nothing.

        Does not count: the optimizer's own steps are counted, so one that a gradient scaler
        skipped has no effect. Returns what changed, or None.
        """
        stepped, self._stepped = self._stepped, False
        for layer in self._layers.values():
            layer.window.discard_pending()
        if not (stepped and self._schedule and self._schedule.is_update_step(self._step)):
            return None
        return self._update_topology(self._schedule.drop_fraction(self._step))

    def mask_(self, other: nn.Module) -> None:
        """Zero the masked weights of a copy of the model, such as an average of its weights.

        Raises ValueError when ``other`` lacks a sparse weight or has it in another shape.
        """
        parameters = dict(unwrapped(other).named_parameters())
        for name, layer in self._layers.items():
            if name not in parameters or parameters[name].shape != layer.mask.shape:
                found = list(parameters[name].shape) if name in parameters else "nothing"
                raise ValueError(
                    f"cannot mask this model: {name!r} should have shape "
                    f"{list(layer.mask.shape)}, found {found}"
                )
        with torch.no_grad():
            for name, layer in self._layers.items():
                parameters[name].masked_fill_(~layer.mask.to(parameters[name].device), 0)

    def detach(self) -> None:
        """Remove all hooks; masks stay readable and the weights stay as they are."""
        for handle in self._handles:
            handle.remove()
        _attached.discard(self._optimizer)

    def state_dict(self) -> dict[str, object]:
        """Everything that a resumed training needs besides model and optimizer.

        Copies, on the masks' devices; loadable with ``torch.load(weights_only=True)``.
        """
        return {
            "format_version": STATE_VERSION,
            "settings": dict(self._settings),
            "step": self._step,
            "update_pending": self._stepped,
            "layers": {
                name: {
                    "budget": layer.budget,
                    "mask": layer.mask.clone(),
                    "explored": layer.explored.clone(),
                    "window": layer.window.state_dict(),
                }
                for name, layer in self._layers.items()
            },
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from ``state_dict()`` of a sparsifier made with the same arguments.

        Masks the model's weights. Raises ValueError, changing nothing, when the state is of
        another model, method or schedule.
        """
        self._check_state(state)
        self._step, self._stepped = state["step"], state["update_pending"]
        for name, layer in self._layers.items():
            saved, device = state["layers"][name], layer.weight.device
            layer.explored = saved["explored"].to(device, copy=True)
            layer.set_mask(saved["mask"].to(device, copy=True))
            layer.window.load_state_dict(saved["window"], device)
            with torch.no_grad():
                layer.weight.masked_fill_(~layer.mask, 0)

    def _new_layer(self, name: str, may_ablate: bool, initialize: bool) -> _SparseLayer:
        weight, density = self._weights[name], self._densities[name]
        budget = weight_budget(tuple(weight.shape), density)
        mask = self.method.initial_mask(
            tuple(weight.shape), budget, derived_generator(self._seed, name, "mask")
        ).to(weight.device)
        layer = _SparseLayer(name, weight, density, budget, may_ablate, mask, mask.clone())
        with torch.no_grad():
            if initialize:
                weight.copy_(sparse_init(mask, derived_generator(self._seed, name, "weight")))
            weight.masked_fill_(~mask, 0)
        reset_optimizer_state(self._optimizer, weight, ~mask)
        return layer

    def _after_backward(self, layer: _SparseLayer, weight: nn.Parameter) -> None:
        if self._schedule.in_gradient_window(self._step + 1):
            layer.window.observe(weight.grad, layer.mask)
        weight.grad.mul_(layer.keep)

    @torch.no_grad()
    def _after_optimizer_step(self, *_: object) -> None:
        if self._stepped and self._schedule and self._schedule.is_update_step(self._step):
            raise RuntimeError(
                f"the topology update of step {self._step} was missed: call sparsifier.step() "
                "after every optimizer.step()"
            )
        self._step, self._stepped = self._step + 1, True
        for layer in self._layers.values():
            layer.weight.mul_(layer.keep)
            layer.window.commit()

    @torch.no_grad()
    def _update_topology(self, drop_fraction: float) -> TopologyUpdate:
        stats, skipped = {}, []
        for name, layer in self._layers.items():
            gradient = layer.window.average()
            layer.window.clear()
            if gradient is None:
                skipped.append(name)
                continue
            inputs = LayerInputs(
                weight=layer.weight,
                mask=layer.mask,
                gradient=gradient,
                budget=layer.budget,
                drop_fraction=drop_fraction,
                may_ablate=layer.may_ablate,
            )
            result = self.method.update(inputs)
            layer.weight.copy_(result.weight)
            layer.set_mask(result.mask)
            reset_optimizer_state(self._optimizer, layer.weight, ~result.mask | result.grown)
            if layer.weight.grad is not None:
                layer.weight.grad.masked_fill_(~result.mask, 0)
            stats[name] = result.stats
        if skipped:
            warnings.warn(
                f"step {self._step}: no finite gradient in the window for {', '.join(skipped)}; "
                "these layers keep their topology",
                RuntimeWarning,
                stacklevel=3,
            )
        return TopologyUpdate(self._step, drop_fraction, stats, tuple(skipped))

    def _summarize(self, name: str) -> LayerSummary:
        shape, layer = tuple(self._weights[name].shape), self._layers.get(name)
        if layer is None:
            return LayerSummary(name, shape, 1.0, 1.0, shape[0], math.prod(shape[1:]), False)
        counts = layer.mask.flatten(1).sum(1)
        density = int(counts.sum()) / layer.mask.numel()
        active, fan_in = int((counts > 0).sum()), int(counts.max())
        return LayerSummary(name, shape, layer.density, density, active, fan_in, True)

    def _check_state(self, state: dict[str, object]) -> None:
        if state.get("format_version") != STATE_VERSION:
            raise ValueError(
                f"sparsifier state has format {state.get('format_version')}, expected "
                f"{STATE_VERSION}"
            )
        saved = state["settings"]
        for key in sorted(saved.keys() | self._settings.keys()):
            if saved.get(key) != self._settings.get(key):
                raise ValueError(
                    f"sparsifier state was made with {key}={saved.get(key)!r}, this one has "
                    f"{key}={self._settings.get(key)!r}"
                )
        layers = state["layers"]
        for name in sorted(layers.keys() | self._layers.keys()):
            here = self._layers.get(name)
            expected = None if here is None else (here.budget, tuple(here.mask.shape))
            there = layers.get(name)
            found = None if there is None else (there["budget"], tuple(there["mask"].shape))
            if expected != found:
                raise ValueError(
                    f"sparsifier state does not fit the model at {name!r}: (budget, shape) is "
                    f"{found} in the state and {expected} here (None: not sparse)"
                )
