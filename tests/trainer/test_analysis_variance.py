import pytest

from fanin.trainer.analysis.variance import TOPOLOGIES, output_norm_variance, simulate_output_norm

# n, k and the three values, of a simulation of 200,000 draws by others.
KNOWN = {
    (32, 1): (0.669, 0.635, 0.584),
    (32, 4): (0.2721, 0.2643, 0.2528),
    (64, 2): (0.2102, 0.2021, 0.1882),
    (64, 8): (0.1080, 0.1061, 0.1030),
}


def misprinted(n, k, topology):
    """The appendix's form, with 18·k/n in place of 18·n/k."""
    return output_norm_variance(n, k, topology) + 18 * (k / n - n / k) / (n * (n + 2))


@pytest.mark.parametrize("case", KNOWN)
def test_formulas_give_the_known_values(case):
    for topology, known in zip(TOPOLOGIES, KNOWN[case], strict=True):
        assert output_norm_variance(*case, topology) == pytest.approx(known, abs=6e-4)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(("n", "k"), [(16, 1), (16, 4), (32, 4)])
def test_simulation_agrees_with_the_formulas_and_refutes_the_misprint(n, k, topology):
    found = simulate_output_norm(n, k, topology, draws=20_000, seed=n + k)
    expected = output_norm_variance(n, k, topology)
    assert abs(found.variance - expected) < 3 * found.variance_error
    assert abs(found.variance - misprinted(n, k, topology)) > 10 * found.variance_error
    assert abs(found.mean - 1) < 4 * found.mean_error


def test_all_topologies_agree_when_every_weight_exists():
    values = [output_norm_variance(24, 24, topology) for topology in TOPOLOGIES]
    assert values == pytest.approx([values[0]] * 3)
    found = simulate_output_norm(24, 24, "constant-fan-in", draws=10_000)
    assert abs(found.variance - values[0]) < 4 * found.variance_error


@pytest.mark.parametrize("n", [8, 32, 128])
def test_constant_fan_in_varies_least_and_bernoulli_most(n):
    for k in range(1, n):
        bernoulli, per_layer, fan_in = (output_norm_variance(n, k, t) for t in TOPOLOGIES)
        assert fan_in < per_layer < bernoulli


def test_wrong_arguments_are_refused():
    for n, k in ((1, 1), (8, 0), (8, 9)):
        with pytest.raises(ValueError, match="must satisfy 1 ≤ k ≤ n"):
            output_norm_variance(n, k, "bernoulli")
    with pytest.raises(ValueError, match="topology must be one of"):
        output_norm_variance(8, 2, "random")
    with pytest.raises(ValueError, match="draws must be at least 2"):
        simulate_output_norm(8, 2, "bernoulli", draws=1)
