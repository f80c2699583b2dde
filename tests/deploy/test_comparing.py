"""fanin bench compare: two results side by side."""

import json

import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy.bench import BenchLayerSpec, ResultFileError, bench_layer, compare_results


@pytest.fixture(scope="module")
def result():
    """Measure a small layer once; the tests change its numbers."""
    return bench_layer(
        BenchLayerSpec(24, 10, (0.8,), batches=(1, 2), rounds=3, turn=1e-3)
    ).to_dict()


@pytest.fixture
def save(result, tmp_path):
    def write(name, spreads, **changes):
        data = {**json.loads(json.dumps(result)), **changes}
        for case, (q1, median, q3) in zip(data["cases"], spreads, strict=False):
            (comparison,) = case["comparisons"]
            comparison["op_ratio"] = None
            comparison["run_ratio"] |= {"q1": q1, "median": median, "q3": q3}
        data["cases"] = data["cases"][: len(spreads)]
        folder = tmp_path / name
        folder.mkdir()
        (folder / "results.json").write_text(json.dumps(data))
        return folder

    return write


@pytest.mark.parametrize(
    ("new", "verdict"),
    [((4.5, 5, 5.5), "faster"), ((1, 1.5, 1.9), "slower"), ((3.9, 4.1, 5), "within noise")],
)
def test_what_lies_beyond_the_quartiles_of_both_is_a_change(save, new, verdict):
    compared = compare_results(save("old", [(2, 3, 4)]), save("new", [new]))
    (change,) = compared.changes
    assert (change.verdict, change.of) == (verdict, "run")
    assert change.ratio == pytest.approx(new[1] / 3)
    assert compared.conditions == ()


def test_cases_that_one_result_lacks_are_named(save):
    compared = compare_results(save("old", [(2, 3, 4)] * 2), save("new", [(2, 3, 4)]))
    assert compared.unmatched == ("only in the old result: 80 % sparse, batch 2, condensed",)


def test_other_conditions_are_named(save, result):
    other = {**result["machine"], "cpu": "another CPU"}
    compared = compare_results(save("old", [(2, 3, 4)]), save("new", [(2, 3, 4)], machine=other))
    assert compared.conditions == (f"cpu: {result['machine']['cpu']} → another CPU",)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "not JSON"), ("[]", "not a result of"), ('{"kind": "layer"}', "schema_version None")],
)
def test_other_files_are_refused_by_name(save, tmp_path, content, said):
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(ResultFileError, match=rf"odd\.json.*{said}"):
        compare_results(save("old", [(2, 3, 4)]), tmp_path / "odd.json")


def test_results_of_different_benchmarks_are_refused(save):
    with pytest.raises(ResultFileError, match=r"bench layer.*bench model"):
        compare_results(save("old", [(2, 3, 4)]), save("new", [(2, 3, 4)], kind="model"))


def test_the_command_prints_the_table_and_fails_on_request(save):
    arguments = ["bench", "compare", str(save("old", [(2, 3, 4)])), str(save("new", [(1, 1, 1)]))]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0
    assert "slower" in told.output
    assert CliRunner().invoke(app, [*arguments, "--fail-if-slower"]).exit_code == 1
    missing = CliRunner().invoke(app, ["bench", "compare", arguments[2], "nowhere"])
    assert missing.exit_code == 1
    assert "nowhere" in missing.output
