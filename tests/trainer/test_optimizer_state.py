"""What optimizers remember of weights that were removed or grown."""

import pytest
import torch
from torch import nn

from fanin.trainer import OPTIMIZER_STATE, OptimizerStateError, Sparsifier, SRigL
from fanin.trainer.optimizer_state import reset_optimizer_state

RATE = 1e-3


def steps_after_growth(make_optimizer, updates=2, every=3):
    """Distances that grown and other active weights move in the step after each update."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = make_optimizer(model.parameters())
    sparsifier = Sparsifier(model, optimizer, method=SRigL(0.8), total_steps=40, update_every=every)
    weight, grown, found = model[0].weight, None, []
    for step in range(every * updates + 1):
        inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(step))
        mask, before = sparsifier.masks["0.weight"].clone(), weight.detach().clone()
        (model(inputs) - inputs[:, :8]).square().mean().backward()
        optimizer.step()
        if grown is not None:
            moved = (weight.detach() - before).abs()
            found.append((moved[grown].mean().item(), moved[mask & ~grown].mean().item()))
        grown = None
        if sparsifier.step() is not None:
            grown = sparsifier.masks["0.weight"] & ~mask
        optimizer.zero_grad()
        assert bool((weight[~sparsifier.masks["0.weight"]] == 0).all())
    assert len(found) == updates
    return found


@pytest.fixture
def eager():
    torch.compiler.set_stance("force_eager")  # torchao compiles its steps
    yield
    torch.compiler.set_stance("default")


@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
@pytest.mark.usefixtures("eager")
def test_quantized_state_of_torchao_is_reset_as_plain_state_is(kind):
    optim = pytest.importorskip("torchao.optim")
    make = getattr(optim, kind)
    sizes = {} if kind == "AdamWFp8" else {"block_size": 64}
    plain = steps_after_growth(lambda p: torch.optim.AdamW(p, lr=RATE))
    # Four bits have no code for 0 in the second moment, which makes the first steps shorter.
    tolerance = 0.7 if kind == "AdamW4bit" else 0.03
    for (grown, _), (expected, _) in zip(
        steps_after_growth(lambda p: make(p, lr=RATE, **sizes)), plain, strict=True
    ):
        assert grown == pytest.approx(expected, rel=tolerance)


def test_quantized_state_of_bitsandbytes_is_reset_as_plain_state_is():
    optim = pytest.importorskip("bitsandbytes.optim")
    plain = steps_after_growth(lambda p: torch.optim.AdamW(p, lr=RATE))
    quantized = steps_after_growth(lambda p: optim.AdamW8bit(p, lr=RATE))
    for (grown, _), (expected, _) in zip(quantized, plain, strict=True):
        assert grown == pytest.approx(expected, rel=0.03)


def test_codes_are_reset_to_the_code_of_zero():
    weight = nn.Parameter(torch.zeros(2, 3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    table = torch.tensor([-1.0, -0.5, 0.0, 1.0])
    codes = torch.tensor([[0, 1, 3], [3, 1, 0]], dtype=torch.uint8)
    both = torch.stack([codes, codes])  # AdEMAMix keeps two averages in one tensor
    optimizer.state[weight] = {"state1": codes, "qmap1": table, "state2": both, "qmap2": table}
    reset_optimizer_state(optimizer, weight, torch.tensor([[1, 0, 0], [0, 1, 1]]).bool())
    assert codes.tolist() == [[2, 1, 3], [3, 2, 2]]
    assert both.tolist() == [codes.tolist()] * 2


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda p: torch.optim.Rprop(p, lr=RATE), "step_size", RATE),
        (lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.25), "sum", 0.25),
        (lambda p: torch.optim.ASGD(p, lr=RATE), "ax", 0.0),
        (lambda p: torch.optim.Adamax(p, lr=RATE), "exp_inf", 0.0),
    ],
)
def test_state_gets_the_value_of_a_new_weight(make, name, value):
    weight = nn.Parameter(torch.ones(2, 3))
    optimizer = make([weight])
    weight.grad = torch.full((2, 3), 0.7)
    optimizer.step()
    before = optimizer.state[weight][name].clone()
    where = torch.tensor([[1, 0, 0], [0, 0, 1]]).bool()
    reset_optimizer_state(optimizer, weight, where)
    after = optimizer.state[weight][name]
    assert after[where].tolist() == pytest.approx([value, value])
    assert torch.equal(after[~where], before[~where])


def test_grown_weights_move_under_rprop():
    for grown, others in steps_after_growth(lambda p: torch.optim.Rprop(p, lr=RATE)):
        assert grown == pytest.approx(RATE, rel=1e-3)
        assert others > 0


class _Odd(torch.optim.SGD):
    """SGD that keeps one more tensor for each weight."""

    made = staticmethod(lambda p: torch.zeros_like(p))

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].setdefault("odd", self.made(parameter))
        return super().step(closure)


def test_state_of_unknown_meaning_is_refused_in_the_first_step(monkeypatch):
    with pytest.raises(OptimizerStateError, match=r"_Odd keeps 'odd' .*OPTIMIZER_STATE\['odd'\]"):
        steps_after_growth(lambda p: _Odd(p, lr=RATE))
    monkeypatch.setitem(OPTIMIZER_STATE, "odd", lambda _: 0.0)
    assert steps_after_growth(lambda p: _Odd(p, lr=RATE))
    codes = staticmethod(lambda p: torch.zeros_like(p, dtype=torch.uint8))
    monkeypatch.setattr(_Odd, "made", codes)
    with pytest.raises(OptimizerStateError, match=r"'odd' .* torch.uint8 without a table"):
        steps_after_growth(lambda p: _Odd(p, lr=RATE))


def test_state_that_belongs_to_no_single_weight_is_left_alone():
    weight = nn.Parameter(torch.ones(4, 6))
    optimizer = torch.optim.Adafactor([weight])
    weight.grad = torch.rand(4, 6)
    optimizer.step()
    before = {key: torch.as_tensor(v).clone() for key, v in optimizer.state[weight].items()}
    assert {"row_var", "col_var"} <= before.keys()
    reset_optimizer_state(optimizer, weight, torch.ones(4, 6).bool())
    assert all(
        torch.equal(torch.as_tensor(v), before[k]) for k, v in optimizer.state[weight].items()
    )
