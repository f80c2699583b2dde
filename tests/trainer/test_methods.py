import dataclasses

import pytest

from fanin.trainer import Dense, SRigL


@pytest.mark.parametrize("sparsity", [0, 1, -0.5, 1.5, float("nan")])
def test_sparsity_outside_0_and_1_is_refused(sparsity):
    with pytest.raises(ValueError, match="sparsity must be in"):
        SRigL(sparsity=sparsity)


@pytest.mark.parametrize("gamma_sal", [-0.1, float("nan"), float("inf"), 1.5])
def test_meaningless_gamma_is_refused(gamma_sal):
    with pytest.raises(ValueError, match="gamma_sal"):
        SRigL(sparsity=0.9, gamma_sal=gamma_sal)


def test_unknown_salient_growth_is_refused():
    with pytest.raises(ValueError, match="'all' or 'inactive', got 'some'"):
        SRigL(sparsity=0.9, salient_growth="some")


def test_methods_are_immutable_values():
    assert SRigL(sparsity=0.9) == SRigL(sparsity=0.9, gamma_sal=0.3)
    assert Dense() == Dense()
    with pytest.raises(dataclasses.FrozenInstanceError):
        SRigL(sparsity=0.9).sparsity = 0.5
