"""One process of test_fsdp.py: trains small models, replicated or sharded, and saves results."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fanin.trainer import METHODS, LayerOptions, ScheduleOptions, Sparsifier

GLOBAL_BATCH, STEPS = 16, 14
WHOLE = StateDictOptions(full_state_dict=True)


class LocalMomentum(torch.optim.Optimizer):
    """Momentum in plain tensors, of this process's part of each weight."""

    @torch.no_grad()
    def step(self):
        for weight in self.param_groups[0]["params"]:
            gradient = local(weight.grad)
            buffer = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(gradient))
            local(weight).sub_(buffer.mul_(0.9).add_(gradient), alpha=0.1)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "local": lambda parameters: LocalMomentum(parameters, {}),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
}


class Conv1D(nn.Module):
    """As Hugging Face's, whose import takes seconds: neurons in dimension 1."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.2)

    def forward(self, inputs):
        return inputs @ self.weight


class Kinds(nn.Module):
    """A convolution, attention with its input projection, and weights [in, out]."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(4, 9, 3, padding=1)
        self.attention = nn.MultiheadAttention(9, 3, batch_first=True)
        self.turned = Conv1D(9, 7)
        self.head = nn.Linear(7, 3)

    def forward(self, inputs):
        hidden = torch.relu(self.convolution(inputs.view(-1, 4, 5))).transpose(1, 2)
        hidden = self.attention(hidden, hidden, hidden, need_weights=False)[0]
        return self.head(torch.relu(self.turned(hidden))).mean(1)


def perceptron():
    """Rows that two processes cannot share evenly, and a layer of which one of them has none."""
    hidden = nn.Sequential(nn.Linear(49, 25), nn.ReLU())
    return nn.Sequential(nn.Linear(20, 49), nn.ReLU(), hidden, nn.Linear(25, 1))


def parallel_model(options):
    torch.manual_seed(0)
    model = Kinds() if options.get("kinds") else perceptron()
    model = model.to(getattr(torch, options.get("dtype", "float64")))
    if options["parallel"] == "ddp":
        return DistributedDataParallel(model)
    given = dict(options.get("shard", {}))
    if "mesh" in given:
        names = "replicate", "shard"
        given["mesh"] = init_device_mesh("cpu", tuple(given["mesh"]), mesh_dim_names=names)
    if given.pop("mixed", False):
        given["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for module in list(model.children())[:-1]:
        if any(True for _ in module.parameters()):
            fully_shard(module, **given)
    return fully_shard(model, **given)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach().clone()


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def backward(model, seed, dtype, scaler):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(GLOBAL_BATCH, 20, generator=generator, dtype=torch.float64).to(dtype)
    targets = inputs[:, :3].sum(1, keepdim=True).sin()
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    scaler.scale((model(inputs[mine]) - targets[mine]).square().mean()).backward()


@torch.no_grad()
def masks_hold(model, optimizer, sparsifier):
    """Whether this process's parts are zero off the masks.

    Parts of the weights, and unless dense weights train behind them, of gradients and moments.
    """
    parameters = {n.removeprefix("module."): p for n, p in model.named_parameters()}
    for name, mask in sparsifier.masks.items():
        weight = parameters[name]
        tensors = [weight]
        if not sparsifier.method.dense_to_sparse:
            state = optimizer.state.get(weight, {})
            tensors += [v for v in state.values() if v.shape == weight.shape]
            tensors += [] if weight.grad is None else [weight.grad]
        if any(bool(local(tensor)[~local(mask)].any()) for tensor in tensors):
            return False
    return True


def overflow(gradient):
    """Make a gradient of "0.weight" infinite in the rows that rank 1 has if it is sharded."""
    rows = gradient[25:] if len(gradient) == 49 else gradient[: 24 * dist.get_rank()]
    rows[rows != 0] = torch.inf


def load(path, model, optimizer, sparsifier):
    saved = torch.load(path, weights_only=True)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=saved["model"],
        optim_state_dict=saved["optimizer"],
        options=WHOLE,
    )
    sparsifier.load_state_dict(saved["sparsifier"])
    return saved["step"]


def save(path, model, optimizer, sparsifier, step):
    sparsifier.synchronize()
    weights, moments = get_state_dict(model, optimizer, options=WHOLE)
    state = {"model": weights, "optimizer": moments, "sparsifier": sparsifier.state_dict()}
    if dist.get_rank() == 0:
        torch.save(state | {"step": step}, path)
    dist.barrier()


def run(options):
    """Train by ``options``; returns whole tensors."""
    dtype = getattr(torch, options.get("dtype", "float64"))
    model = parallel_model(options)
    optimizer = OPTIMIZERS[options.get("optimizer", "sgd")](model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=options.get("scaled", False))
    method = dict(options["method"])
    layers = {"no_ablation": [], "distribution": "uniform", **options.get("layers", {})}
    sparsifier = Sparsifier(
        model,
        optimizer,
        method=METHODS[method.pop("name")](**method),
        total_steps=40,
        layers=LayerOptions(**layers),
        grad_scaler=scaler,
        schedule=ScheduleOptions(update_every=4, gradient_window=options.get("window", 2)),
        seed=7 + dist.get_rank() * options.get("seeds_differ", False),
    )
    result = {"masks": [], "holds": True, "start": 0}
    if path := options.get("resume"):
        result["start"] = load(path, model, optimizer, sparsifier)
    for step in range(result["start"], STEPS):
        for part in range(options.get("accumulate", 1)):
            if options.get("unsynchronized"):
                model.set_requires_gradient_sync(part == options["accumulate"] - 1)
            backward(model, 10 * step + part, dtype, scaler)
        if (zeroed := options.get("looked_at")) is not None:  # only the second pass is used
            optimizer.zero_grad(set_to_none=zeroed == "none")
            backward(model, 10 * step + 5, dtype, scaler)
        if step == options.get("overflow"):
            overflow(sparsifier._layers["0.weight"].window._pending)  # no optimizer sees it
        if step == 0 and options.get("scaled"):
            overflow(local(next(model.parameters()).grad))
        if clip := options.get("clip"):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        if sparsifier.step() is not None:
            result["masks"].append({n: whole(m) for n, m in sparsifier.masks.items()})
        result["holds"] &= masks_hold(model, optimizer, sparsifier)
        optimizer.zero_grad()
        if step + 1 == options.get("checkpoint"):
            save(options["path"], model, optimizer, sparsifier, step + 1)
    result["itop"], result["summary"] = sparsifier.itop_rate, str(sparsifier.summary())
    result["last"] = {n: whole(m) for n, m in sparsifier.masks.items()}
    result["local"] = {n: list(local(m).shape) for n, m in sparsifier.masks.items()}
    result["model"], result["optimizer"] = get_state_dict(model, optimizer, options=WHOLE)
    sparsifier.detach()
    return result


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    for tag, options in torch.load(folder / "scenarios.pt").items():
        torch.save(run(options), folder / f"{tag}-{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # A thread of torch's that wants the interpreter while it ends aborts the process, now and then.
    sys.stderr.flush()
    os._exit(0)
