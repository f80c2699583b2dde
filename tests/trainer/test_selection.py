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
