import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.trainer.selection import top_k, top_k_per_row


def by_sorting(scores, candidates, k):
    order = sorted((i for i, c in enumerate(candidates) if c), key=lambda i: (-scores[i], i))
    return sorted(order[:k])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_top_k_gives_ties_to_the_lowest_index(data):
    pairs = data.draw(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1))
    scores, candidates = [p[0] for p in pairs], [p[1] for p in pairs]
    k = data.draw(st.integers(0, sum(candidates)))
    chosen = top_k(torch.tensor(scores, dtype=torch.float32), k, torch.tensor(candidates))
    assert chosen.nonzero().flatten().tolist() == by_sorting(scores, candidates, k)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1), st.data())
def test_top_k_over_all_positions(scores, data):
    k = data.draw(st.integers(0, len(scores)))
    chosen = top_k(torch.tensor(scores, dtype=torch.float32), k)
    assert chosen.nonzero().flatten().tolist() == by_sorting(scores, [True] * len(scores), k)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**31), st.data())
def test_top_k_per_row_gives_ties_to_the_lowest_index(rows, columns, seed, data):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (rows, columns), generator=generator).float()
    among = torch.randint(0, 2, (rows, columns), generator=generator).bool()
    counts = [data.draw(st.integers(0, int(row.sum()))) for row in among]
    chosen = top_k_per_row(scores, torch.tensor(counts), among)
    for i, count in enumerate(counts):
        expected = by_sorting(scores[i].tolist(), among[i].tolist(), count)
        assert chosen[i].nonzero().flatten().tolist() == expected


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def scores_with_ties(kind, shape, dtype):
    generator = torch.Generator().manual_seed(3)
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "mostly zero":
        return (normal.abs() * (normal > 1.5)).to(dtype)
    if kind == "mostly the largest":
        return normal.clamp(max=-1.5).to(dtype)
    if kind == "zeros of both signs":
        return (normal.sign() * 0.0).to(dtype)
    return (normal * 4).round().to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "kind", ["mostly zero", "mostly the largest", "zeros of both signs", "few values"]
)
def test_ties_of_large_layers_go_to_the_lowest_index(kind, dtype):
    scores = scores_with_ties(kind, (40, 300), dtype)
    among = torch.rand(scores.shape, generator=torch.Generator().manual_seed(4)) < 0.3
    flat = scores.double().flatten().tolist()
    candidates = among.flatten().tolist()
    for k in (1, 700, sum(candidates) - 1, sum(candidates)):
        chosen = top_k(scores, k, among).flatten().nonzero().flatten()
        assert chosen.tolist() == by_sorting(flat, candidates, k)
    chosen = top_k(scores, 9000).flatten().nonzero().flatten()
    assert chosen.tolist() == by_sorting(flat, [True] * len(flat), 9000)

    counts = torch.arange(40) % (among.sum(1) + 1)
    rows = top_k_per_row(scores, counts, among)
    for row, count in enumerate(counts.tolist()):
        expected = by_sorting(scores[row].double().tolist(), among[row].tolist(), count)
        assert rows[row].nonzero().flatten().tolist() == expected


def test_selections_accept_scores_of_any_layout_and_with_a_graph():
    scores = torch.randn(30, 20, generator=torch.Generator().manual_seed(5)).requires_grad_().t()
    among = torch.ones_like(scores, dtype=torch.bool)
    dense = scores.detach().contiguous()
    assert torch.equal(top_k(scores, 100), top_k(dense, 100))
    counts = torch.full((20,), 7)
    assert torch.equal(top_k_per_row(scores, counts, among), top_k_per_row(dense, counts, among))
