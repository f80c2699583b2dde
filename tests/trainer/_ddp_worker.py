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

from fanin.trainer import METHODS, Sparsifier

GLOBAL_BATCH = 32


def main(options):
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    torch.manual_seed(0 if options["same_model"] else rank)
    dtype = getattr(torch, options["dtype"])
    layers = nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 4)
    model = nn.Sequential(*layers).to(dtype)
    # Some channels have little to do, so that ablation happens.
    wrapped = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = dict(options["method"])
    sparsifier = Sparsifier(
        wrapped,
        optimizer,
        method=METHODS[method.pop("name")](**method),
        total_steps=40,
        update_every=5,
        gradient_window=3,
        seed=7 if options["same_model"] else rank,
    )
    start, state_path = 0, f"{options['out']}/state.pt"
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
        if step + 1 in options["checkpoints"]:
            sparsifier.synchronize()
            if rank == 0 and not options["resume"]:
                torch.save(
                    {
                        "step": step + 1,
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "sparsifier": sparsifier.state_dict(),
                    },
                    state_path,
                )
            if world > 1:
                dist.barrier()
        if step + 1 == options["die_at"]:
            os._exit(3)
    result = {"model": model.state_dict(), "masks": masks, "last": dict(sparsifier.masks)}
    torch.save(result, f"{options['out']}/{options['tag']}-{rank}.pt")
    if world > 1:
        dist.destroy_process_group()


main(json.loads(sys.argv[1]))
