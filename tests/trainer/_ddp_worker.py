"""One process of test_ddp.py: trains a small model and saves what it ends with."""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from fanin.trainer import METHODS, ScheduleOptions, Sparsifier

GLOBAL_BATCH = 32


def run(options):
    """Train by ``options``; returns weights and the masks after each update."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if world > 1 else 0
    torch.manual_seed(0 if options["same_model"] else rank)
    dtype = getattr(torch, options["dtype"])
    layers = nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 4)
    model = nn.Sequential(*layers).to(dtype)
    wrapped = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = dict(options["method"])
    sparsifier = Sparsifier(
        wrapped,
        optimizer,
        method=METHODS[method.pop("name")](**method),
        total_steps=40,
        schedule=ScheduleOptions(update_every=5, gradient_window=3),
        seed=7 if options["same_model"] else rank,
    )
    start, state_path = 0, f"{options['out']}/{method['sparsity']}-state.pt"
    if options["resume"]:
        state = torch.load(state_path, weights_only=True)
        start = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        sparsifier.load_state_dict(state["sparsifier"])
    masks = []
    for step in range(start, options["steps"]):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(GLOBAL_BATCH, 20, generator=generator).to(dtype)
        labels = torch.randint(4, (GLOBAL_BATCH,), generator=generator)
        mine = slice(rank, None, world)
        cross_entropy(wrapped(inputs[mine]), labels[mine]).backward()
        optimizer.step()
        if sparsifier.step() is not None:
            masks.append({n: m.clone() for n, m in sparsifier.masks.items()})
        optimizer.zero_grad()
        if step + 1 == options["checkpoint"]:
            sparsifier.synchronize()
            parts = {"model": model, "optimizer": optimizer, "sparsifier": sparsifier}
            if rank == 0 and not options["resume"]:
                state = {name: part.state_dict() for name, part in parts.items()}
                torch.save(state | {"step": step + 1}, state_path)
        if step + 1 == options["die_at"]:
            dist.barrier()
            os._exit(3)
    sparsifier.detach()
    return {"model": model.state_dict(), "masks": masks, "last": dict(sparsifier.masks)}


def main(everything):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    for options in everything:
        torch.save(run(options), f"{options['out']}/{options['tag']}-{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
