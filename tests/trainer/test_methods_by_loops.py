"""Every method's update against a second implementation: plain loops over lists of positions."""

import math

import numpy as np
import pytest
import torch

from fanin.trainer import DSR, GMP, MEST, SET, SNFS, SRSTE, Chase, DeepR, RigL, Static, TopKAST
from fanin.trainer.gradient_window import GradientWindow
from fanin.trainer.initialization import initial_mask
from fanin.trainer.methods import DropFractions, LayerInputs
from fanin.trainer.sparse_layer import SparseLayer
from fanin.trainer.straight_through import expose_dense_weights, project_to_mask

ROUNDS = 150  # of one to three layers each, so about 300 layers for every method


def random_model(rng, *, protected=True):
    """Layers as dicts of nested lists: w, g, noise, mask, budget and whether neurons may go."""
    layers = {}
    for name in "abc"[: int(rng.integers(1, 4))]:
        neurons, inputs = int(rng.integers(1, 9)), int(rng.integers(2, 13))
        size = neurons * inputs
        may_ablate = not protected or bool(rng.integers(0, 2))
        budget = int(rng.integers(neurons if not may_ablate else 1, size + 1))
        mask = np.zeros(size, bool)
        mask[rng.permutation(size)[:budget]] = True
        mask = mask.reshape(neurons, inputs)
        if not may_ablate:
            order = rng.permutation(inputs)
            mask = np.zeros((neurons, inputs), bool)
            mask[:, order[0]] = True
            free = np.flatnonzero(~mask.ravel())
            mask.ravel()[rng.permutation(free)[: budget - neurons]] = True
        # Few distinct values, so that ties are common.
        values = rng.choice([0.25, 0.5, 1.0, 2.0, 3.5], size=(neurons, inputs))
        sign = rng.choice([-1.0, 1.0], size=(neurons, inputs))
        layers[name] = {
            "w": np.where(mask, values * sign, 0.0).tolist(),
            "g": rng.choice([-4.0, -2.0, -0.5, 0.0, 1.0, 3.0], size=(neurons, inputs)).tolist(),
            "noise": rng.random((neurons, inputs)).astype(np.float32).tolist(),
            "mask": mask.tolist(),
            "budget": budget,
            "may_ablate": may_ablate,
        }
    return layers


def as_inputs(layers):
    return {
        name: LayerInputs(
            torch.tensor(layer["w"]),
            torch.tensor(layer["mask"]),
            torch.tensor(layer["g"]),
            layer["budget"],
            layer["may_ablate"],
            lambda layer=layer: torch.tensor(layer["noise"]),
        )
        for name, layer in layers.items()
    }


def positions(layer):
    return [(i, j) for i in range(len(layer["w"])) for j in range(len(layer["w"][0]))]


def highest(places, score, count):
    return sorted(places, key=lambda p: (-score(p), p))[:count]


def replaced(layer, drop, grow, drop_count, budget):
    """The positions of an unstructured layer after dropping and growing."""
    active = [p for p in positions(layer) if layer["mask"][p[0]][p[1]]]
    first = set()
    if not layer["may_ablate"]:
        for i in range(len(layer["w"])):
            first |= set(highest([p for p in active if p[0] == i], drop, 1))
    order = sorted(active, key=lambda p: (p not in first, 0 if p in first else -drop(p), p))
    kept = set(order[: len(active) - drop_count])
    rest = [p for p in positions(layer) if p not in kept]
    wanted = set()
    if not layer["may_ablate"]:
        for i in range(len(layer["w"])):
            if not any(p[0] == i for p in kept):
                wanted |= set(highest([p for p in rest if p[0] == i], grow, 1))
    order = sorted(rest, key=lambda p: (p not in wanted, 0 if p in wanted else -grow(p), p))
    return kept | set(order[: budget - len(kept)])


def at(layer, key):
    return lambda p: layer[key][p[0]][p[1]]


def size_of(layer, key):
    return lambda p: abs(layer[key][p[0]][p[1]])


def active_count(layer):
    return sum(map(sum, layer["mask"]))


def shared_out(total, shares, limits):
    """Whole numbers in proportion to shares: each round hands out whole parts, then single ones."""
    given = dict.fromkeys(shares, 0)
    while total > sum(given.values()):
        names = [n for n in shares if given[n] < limits[n]]
        left, weight = total - sum(given.values()), sum(shares[n] for n in names)
        part = {n: left * (shares[n] / weight if weight else 1 / len(names)) for n in names}
        whole = {n: min(int(part[n]), limits[n] - given[n]) for n in names}
        if any(whole.values()):
            for n in names:
                given[n] += whole[n]
        else:
            for n in sorted(names, key=lambda n: -part[n])[:left]:
                given[n] += 1
    return given


def fewest(layer):
    return 1 if layer["may_ablate"] else len(layer["w"])


def rigl(layers, f):
    return {
        n: replaced(
            x, size_of(x, "w"), size_of(x, "g"), int(f.current * active_count(x)), x["budget"]
        )
        for n, x in layers.items()
    }


def set_(layers, f):
    return {
        n: replaced(
            x, size_of(x, "w"), at(x, "noise"), int(f.current * active_count(x)), x["budget"]
        )
        for n, x in layers.items()
    }


def mest(layers, f):
    found = {}
    for n, x in layers.items():
        extra = min(int(f.following * x["budget"]), len(positions(x)) - x["budget"])
        drop = max(0, active_count(x) - x["budget"])
        score = lambda p, x=x: size_of(x, "w")(p) + 0.5 * size_of(x, "g")(p)  # noqa: E731
        found[n] = replaced(x, score, at(x, "noise"), drop, x["budget"] + extra)
    return found


def by_share(layers, dropped, shares, grow):
    kept = {n: active_count(x) - dropped[n] for n, x in layers.items()}
    total = sum(x["budget"] for x in layers.values()) - sum(kept.values())
    room = {n: len(positions(x)) - kept[n] for n, x in layers.items()}
    grown = shared_out(total, shares, room)
    return {
        n: replaced(x, size_of(x, "w"), grow(x), dropped[n], kept[n] + grown[n])
        for n, x in layers.items()
    }


def snfs(layers, f):
    dropped = {
        n: min(int(f.current * active_count(x)), active_count(x) - fewest(x))
        for n, x in layers.items()
    }
    shares = {}
    for n, x in layers.items():
        values = [size_of(x, "g")(p) for p in positions(x) if at(x, "mask")(p)]
        shares[n] = sum(values) / len(values)
    return by_share(layers, dropped, shares, lambda x: size_of(x, "g"))


def dsr(layers, f):
    everything = [
        (size_of(x, "w")(p), order, p, n)
        for order, (n, x) in enumerate(layers.items())
        for p in positions(x)
        if at(x, "mask")(p)
    ]
    dropped = dict.fromkeys(layers, 0)
    for _, _, _, n in sorted(everything, key=lambda e: e[:3])[: int(f.current * len(everything))]:
        dropped[n] += 1
    dropped = {n: min(d, active_count(layers[n]) - fewest(layers[n])) for n, d in dropped.items()}
    shares = {n: float(active_count(x) - dropped[n]) for n, x in layers.items()}
    return by_share(layers, dropped, shares, lambda x: at(x, "noise"))


def deepr(layers, f):  # noqa: ARG001
    found = {}
    for n, x in layers.items():
        dead = [p for p in positions(x) if at(x, "mask")(p) and at(x, "w")(p) == 0]
        drop = len(dead)
        if not x["may_ablate"]:
            for i in range(len(x["w"])):
                own = [p for p in positions(x) if p[0] == i and at(x, "mask")(p)]
                drop -= bool(own) and all(p in dead for p in own)
        found[n] = replaced(x, size_of(x, "w"), at(x, "noise"), drop, x["budget"])
    return found


def chase(layers, f, channels=0.4, least=0.2):
    gone = {n: {i for i, row in enumerate(x["mask"]) if not any(row)} for n, x in layers.items()}
    free = [n for n, x in layers.items() if x["may_ablate"]]
    wanted = int(channels * (1 - (1 - f.progress) ** 3) * sum(len(layers[n]["w"]) for n in free))
    wanted -= sum(len(gone[n]) for n in free)
    if wanted > 0:
        candidates = []
        for order, n in enumerate(free):
            x = layers[n]
            keep = max(1, round(least * len(x["w"])))
            means = [(sum(map(abs, row)) / len(row), i) for i, row in enumerate(x["w"])]
            alive = sorted(m for m in means if m[1] not in gone[n])
            candidates += [
                (mean, order, rank, n, i)
                for rank, (mean, i) in enumerate(alive[: max(0, len(alive) - keep)])
            ]
        for _, _, _, n, i in sorted(candidates)[:wanted]:
            gone[n].add(i)
    total = sum(x["budget"] for x in layers.values())
    usable = {n: [p for p in positions(x) if p[0] not in gone[n]] for n, x in layers.items()}

    def take(pools, score, count, minimum):
        best = {n: highest(pool, score(layers[n]), len(pool)) for n, pool in pools.items()}
        taken = {n: best[n][: minimum.get(n, 0)] for n in pools}
        rest = [
            (-score(layers[n])(p), order, rank, n, p)
            for order, n in enumerate(pools)
            for rank, p in enumerate(best[n])
            if p not in taken[n]
        ]
        for _, _, _, n, p in sorted(rest)[: max(0, count - sum(map(len, taken.values())))]:
            taken[n] = [*taken[n], p]
        return {n: len(t) for n, t in taken.items()}

    held = {n: [p for p in usable[n] if at(layers[n], "mask")(p)] for n in layers}
    minimum = {n: fewest(layers[n]) for n in layers}
    magnitude = lambda x: size_of(x, "w")  # noqa: E731
    gradient = lambda x: size_of(x, "g")  # noqa: E731
    kept = take(held, magnitude, total - int(f.current * total), minimum)
    stays = {n: highest(held[n], size_of(layers[n], "w"), kept[n]) for n in layers}
    grown = take(
        {n: [p for p in usable[n] if p not in stays[n]] for n in layers},
        gradient,
        min(total - sum(kept.values()), sum(len(usable[n]) - kept[n] for n in layers)),
        {},
    )
    found = {}
    for n, x in layers.items():
        drop = lambda p, x=x, n=n: -1 if p[0] in gone[n] else size_of(x, "w")(p)  # noqa: E731
        grow = lambda p, x=x, n=n: -1 if p[0] in gone[n] else size_of(x, "g")(p)  # noqa: E731
        found[n] = replaced(x, drop, grow, active_count(x) - kept[n], kept[n] + grown[n])
    return found


def gmp(layers, f):
    found = {}
    for n, x in layers.items():
        excess = int((len(positions(x)) - x["budget"]) * (1 - f.progress) ** 3)
        budget = min(active_count(x), x["budget"] + excess)
        found[n] = replaced(
            x,
            size_of(x, "w"),
            lambda _: 0.0,
            active_count(x) - budget,
            budget,
        )
    return found


METHODS = {
    "gmp": (GMP(0.5, structure="unstructured"), gmp),
    "rigl": (RigL(0.5), rigl),
    "set": (SET(0.5), set_),
    "mest": (MEST(0.5, gradient_weight=0.5), mest),
    "snfs": (SNFS(0.5), snfs),
    "dsr": (DSR(0.5), dsr),
    "deepr": (DeepR(0.5), deepr),
    "chase": (Chase(0.5), chase),
}


@pytest.mark.parametrize("name", METHODS)
def test_updates_equal_the_loop_implementation(name):
    method, by_loops = METHODS[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    changed = 0
    for round_ in range(ROUNDS):
        layers = random_model(rng)
        if name == "deepr":
            for layer in layers.values():
                zeros = rng.random((len(layer["w"]), len(layer["w"][0]))) < 0.4
                layer["w"] = np.where(zeros, 0.0, layer["w"]).tolist()
        if name == "gmp":  # starts with more weights than its budget
            for layer in layers.values():
                layer["budget"] = max(len(layer["w"]), layer["budget"] // 2)
                layer["budget"] = min(layer["budget"], active_count(layer))
        fractions = DropFractions(*rng.random(2) * 0.6, progress=float(rng.random()))
        inputs = as_inputs(layers)
        plans = method.plan(inputs, fractions)
        expected = by_loops(layers, fractions)
        for layer_name, layer in inputs.items():
            result = method.update(layer, plans[layer_name])
            found = {(int(i), int(j)) for i, j in result.mask.nonzero()}
            assert found == expected[layer_name], (round_, layer_name)
            changed += not torch.equal(result.mask, layer.mask)
            kept = layer.mask & result.mask
            assert torch.equal(result.weight, torch.where(kept, layer.weight, 0))
    assert changed > ROUNDS / 2


def test_static_masks_hold_the_budget_at_the_positions_of_the_largest_draws():
    for seed in range(300):
        rng = np.random.default_rng(seed)
        neurons, inputs = int(rng.integers(1, 9)), int(rng.integers(2, 13))
        budget = int(rng.integers(1, neurons * inputs + 1))
        structure = Static(0.5).mask_structure()
        mask = initial_mask(
            (neurons, inputs), budget, torch.Generator().manual_seed(seed), structure
        )
        draws = torch.rand(neurons, inputs, generator=torch.Generator().manual_seed(seed)).tolist()
        places = [(i, j) for i in range(neurons) for j in range(inputs)]
        expected = highest(places, lambda p, draws=draws: draws[p[0]][p[1]], budget)
        assert {(int(i), int(j)) for i, j in mask.nonzero()} == set(expected)


def dense_to_sparse_layer(rng, method, neurons, inputs, budget):
    values = rng.choice([-3.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0], size=(neurons, inputs))
    weight = torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))
    mask = torch.zeros(neurons, inputs, dtype=torch.bool)
    mask.view(-1)[:budget] = True
    layer = SparseLayer(
        "w", weight, 0.5, budget, True, mask, GradientWindow(), torch.empty_like(weight.detach())
    )
    project_to_mask(layer, method)
    return layer, values


def step_by_loops(values, mask, trained, gradient, decay, learning_rate, exploring):
    """One SGD step of the dense weights of a layer, as nested lists."""
    density = sum(map(sum, mask)) / (len(values) * len(values[0]))
    after = [list(row) for row in values]
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if trained[i][j]:
                penalty = exploring(value, mask[i][j], density) * decay
                after[i][j] = value - learning_rate * (gradient[i][j] + penalty)
    return after


@pytest.mark.parametrize("kind", ["sr-ste", "top-kast", "top-kast-fan-in"])
def test_dense_weights_behind_the_mask_move_as_in_the_loop_implementation(kind):
    rng = np.random.default_rng(5)
    moved = 0
    for _ in range(300):
        neurons, inputs = int(rng.integers(1, 7)), 4 * int(rng.integers(1, 4))
        size = neurons * inputs
        places = [(i, j) for i in range(neurons) for j in range(inputs)]
        if kind == "sr-ste":
            method, budget, backward = SRSTE("1:4", decay=0.1), size // 4, size
        else:
            structure = "constant-fan-in" if kind.endswith("fan-in") else "unstructured"
            method = TopKAST(0.8, backward_sparsity=0.5, decay=0.1, structure=structure)
            budget = int(rng.integers(neurons, max(neurons, size // 3) + 1))
            backward = round(min(1.0, budget / size * 0.5 / (1 - 0.8)) * size)

        def chosen(values, count, kind=kind, neurons=neurons, inputs=inputs, places=places):
            score = lambda p: abs(values[p[0]][p[1]])  # noqa: E731
            if kind == "top-kast":
                found = highest(places, score, count)
            else:
                width = 4 if kind == "sr-ste" else inputs
                each = count * width // (neurons * inputs)
                found = []
                for i in range(neurons):
                    for start in range(0, inputs, width):
                        group = [(i, j) for j in range(start, start + width)]
                        found += highest(group, score, each)
            return [[(i, j) in set(found) for j in range(inputs)] for i in range(neurons)]

        layer, values = dense_to_sparse_layer(rng, method, neurons, inputs, budget)
        values = values.tolist()
        mask, trained = chosen(values, budget), chosen(values, backward)
        if kind == "sr-ste":
            trained = [[True] * inputs for _ in range(neurons)]
        assert layer.mask.tolist() == mask
        for _ in range(3):
            gradient = rng.normal(size=(neurons, inputs))
            layer.weight.grad = torch.tensor(gradient)
            optimizer = torch.optim.SGD([layer.weight], lr=0.5)
            layer.mask_dense_gradient()
            expose_dense_weights(layer, optimizer, method, penalize=True)
            optimizer.step()
            project_to_mask(layer, method)
            if kind == "sr-ste":
                penalty = lambda value, active, density: 0.0 if active else value  # noqa: ARG005, E731
            else:
                penalty = lambda value, active, density: value if active else value / density  # noqa: E731
            values = step_by_loops(values, mask, trained, gradient, 0.1, 0.5, penalty)
            before = mask
            mask = chosen(values, budget)
            if kind != "sr-ste":
                trained = chosen(values, backward)
            assert layer.mask.tolist() == mask
            assert np.allclose(layer.dense_weight.numpy(), values, rtol=1e-12, atol=1e-12)
            sparse = np.where(mask, values, 0.0)
            assert np.allclose(layer.weight.detach().numpy(), sparse, rtol=1e-12, atol=1e-12)
            moved += mask != before
    assert moved > 100


def test_deepr_keeps_signs_and_zeroes_what_would_change_them():
    rng = np.random.default_rng(3)
    method = DeepR(0.5, l1=0.2, temperature=0.3)
    died = 0
    for seed in range(300):
        shape = int(rng.integers(1, 9)), int(rng.integers(1, 13))
        before = rng.choice([-1.0, 0.0, 0.5], size=shape)
        weight = before + rng.normal(size=shape)
        draws = torch.Generator().manual_seed(seed)
        first = torch.randn(shape, generator=draws, dtype=torch.float32).double().numpy()
        second = torch.randn(shape, generator=draws, dtype=torch.float32).double().numpy()
        moved = method.moved(
            torch.tensor(weight), torch.tensor(before), 0.1, torch.Generator().manual_seed(seed)
        ).numpy()
        for place in np.ndindex(shape):
            sign = math.copysign(1, before[place] or first[place])
            theta = weight[place] * sign - 0.1 * 0.2 + math.sqrt(2 * 0.1 * 0.3) * second[place]
            assert moved[place] == pytest.approx(sign * max(theta, 0.0), rel=1e-12, abs=1e-15)
            died += theta < 0
    assert died > 1000


def blocks_by_loops(weight, mask, gradient, blocks, columns, keep):
    """The positions of a layer in blocks after dropping all but ``keep`` of its columns."""

    def mean(values, block, column):
        return sum(abs(values[i][column]) for i in block) / len(block)

    pairs = [(b, j) for b, chosen in enumerate(columns) for j in chosen]
    kept = set(highest(pairs, lambda p: mean(weight, blocks[p[0]], p[1]), keep))
    expected = np.zeros_like(mask)
    for b, block in enumerate(blocks):
        own = [j for j in range(mask.shape[1]) if (b, j) in kept]
        rest = [j for j in range(mask.shape[1]) if j not in own]
        rest.sort(key=lambda j: (-mean(gradient, block, j), j))
        expected[np.ix_(list(block), own + rest[: len(columns[b]) - len(own)])] = True
    return expected


def test_blocks_exchange_inputs_as_in_the_loop_implementation():
    rng = np.random.default_rng(8)
    changed = 0
    for _ in range(300):
        neurons, inputs, size = (
            int(rng.integers(low, high)) for low, high in ((1, 11), (2, 13), (2, 6))
        )
        blocks = [range(start, min(start + size, neurons)) for start in range(0, neurons, size)]
        fan_in = int(rng.integers(1, inputs + 1))
        columns = [sorted(rng.permutation(inputs)[:fan_in].tolist()) for _ in blocks]
        mask = np.zeros((neurons, inputs), bool)
        for block, chosen in zip(blocks, columns, strict=True):
            mask[np.ix_(list(block), chosen)] = True
        # Multiples of 1/64, so that the sums over a block are exact in any order.
        weight = np.where(mask, rng.integers(-64, 65, (neurons, inputs)) / 64, 0.0)
        gradient = rng.integers(-64, 65, (neurons, inputs)) / 64
        fraction = float(rng.random())
        count = fan_in * len(blocks)
        expected = blocks_by_loops(
            weight, mask, gradient, blocks, columns, count - int(fraction * count)
        )
        method = RigL(0.5, structure=f"block-{size}")
        tensors = (torch.tensor(value) for value in (weight, mask, gradient))
        layer = LayerInputs(*tensors, neurons * fan_in, False, lambda: torch.zeros(1))
        plan = method.plan({"w": layer}, DropFractions(fraction, 0.0))["w"]
        assert method.update(layer, plan).mask.tolist() == expected.tolist()
        changed += bool((expected != mask).any())
    assert changed > 150
