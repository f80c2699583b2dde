"""The dispatch table: the kernels that are packed for each batch, and forcing one."""

import itertools
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from fanin.ort_ops import _native, cuda_kernel_table

WEIGHTS = {"float32": "", "float16": "f16w-", "bfloat16": "bf16w-"}
CPUINFO = Path("/proc/cpuinfo")
ISA_ORDER = [
    "scalar",
    "avx2",
    "avxvnni",
    "avx512f",
    "avx512bw",
    "avx512vnni",
    "avx512vbmi",
    "avx512bf16",
    "neon",
    "dotprod",
]


def pack(in_features=256, out_features=64, fan_in=32, dtype=np.float32, **options):
    rng = np.random.default_rng(0)
    columns = np.sort(np.argsort(rng.random((out_features, in_features)), 1)[:, :fan_in], 1)
    return _native.PackedGemm(
        values=rng.standard_normal(columns.shape).astype(dtype),
        indices=columns.astype(np.uint16),
        rows=np.arange(out_features, dtype=np.int32),
        bias=np.zeros(out_features, np.float32),
        in_features=in_features,
        out_features=out_features,
        **options,
    )


def test_names_are_unique_and_end_with_their_isa():
    rows = _native.kernel_table()
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        start = "bf16-" if row.compute == "bfloat16" else f"f32-{WEIGHTS[row.weights]}"
        assert row.name.startswith(f"{start}gemm-")
        assert row.name.endswith(row.isa)
        assert row.supported == (row.isa in _native.supported_isas())


def test_a_kernel_that_does_not_suit_the_cpu_is_packed_only_if_forced():
    rows = _native.kernel_table()
    unsuited = {row.name for row in rows if not row.suits_cpu}
    for isa in _native.supported_isas():
        for batch in (1, 3, 64):
            (info,) = pack(isa=isa, min_batch=batch, max_batch=batch).info()
            assert info.kernel not in unsuited
    for row in rows:
        if row.supported and row.name in unsuited:
            dtype = ml_dtypes.bfloat16 if row.compute == "bfloat16" else np.float32
            (info,) = pack(kernel=row.name, dtype=dtype, compute=row.compute).info()
            assert info.kernel == row.name


@pytest.mark.skipif(not CPUINFO.exists(), reason="needs /proc/cpuinfo")
def test_intel_cpus_with_float16_arithmetic_broadcast_weights_from_memory_and_make_no_pairs():
    rows = {row.name: row for row in _native.kernel_table()}
    panel = rows.get("f32-gemm-panel32loads-avx512f") or pytest.skip("not an x86 CPU")
    words = set(CPUINFO.read_text().split())
    assert panel.suits_cpu == ({"GenuineIntel", "avx512_fp16"} <= words)
    assert rows["bf16-gemm-pairs32-avx512bf16"].suits_cpu == (not panel.suits_cpu)
    if panel.suits_cpu:
        (info,) = pack(min_batch=64, max_batch=64).info()
        assert info.kernel == panel.name


@pytest.mark.parametrize("op", ["CondensedGemm", "CondensedConv"])
@pytest.mark.parametrize("activations", WEIGHTS)
def test_the_cuda_rows_of_a_type_cover_all_batches(op, activations):
    every = [row for row in cuda_kernel_table() if (row.op, row.activations) == (op, activations)]
    rows = [row for row in every if row.proven]
    assert (rows[0].min_batch, rows[-1].max_batch) == (1, None)
    for before, after in itertools.pairwise(rows):
        assert after.min_batch == before.max_batch + 1
    dtype = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[activations]
    for row in every:
        assert row.tf32 == (row.activations == "float32" and row.layout == "expand")
        prefix = "tf32" if row.tf32 else dtype
        assert row.name.startswith(f"{prefix}-{op.removeprefix('Condensed').lower()}-{row.layout}")


def test_supported_isas_are_ascending_and_start_with_scalar():
    isas = _native.supported_isas()
    assert isas[0] == "scalar"
    assert isas == [isa for isa in ISA_ORDER if isa in isas]


@pytest.mark.parametrize("isa", _native.supported_isas())
@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 1.0])
def test_every_batch_has_one_kernel_at_any_density(isa, density):
    gemm = pack(in_features=2000, out_features=3, fan_in=round(2000 * density), isa=isa)
    infos = gemm.info()
    assert infos[0].min_batch == 1
    assert infos[-1].max_batch is None
    for before, after in itertools.pairwise(infos):
        assert after.min_batch == before.max_batch + 1
    allowed = ISA_ORDER[: ISA_ORDER.index(isa) + 1]
    assert all(info.kernel.rsplit("-", 1)[1] in allowed for info in infos)


@pytest.mark.parametrize("isa", _native.supported_isas())
@pytest.mark.parametrize("batch", [1, 4, 5, 8, 64, 197])
def test_a_static_batch_packs_one_layout_whose_row_includes_that_batch(isa, batch):
    (info,) = pack(isa=isa, min_batch=batch, max_batch=batch).info()
    assert (info.min_batch, info.max_batch) == (batch, batch)
    (row,) = [row for row in _native.kernel_table() if row.name == info.kernel]
    assert row.min_batch <= batch
    assert row.max_batch is None or batch <= row.max_batch


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_a_symbolic_batch_packs_at_most_two_layouts(isa):
    infos = pack(isa=isa).info()
    assert len(infos) == (1 if isa == "scalar" else 2)
    assert len({info.kernel for info in infos}) == len(infos)


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_forced_isa_runs_its_own_kernel_at_batch_1(isa):
    own = {row.isa for row in _native.kernel_table() if row.min_batch == 1}
    included = [i for i in ISA_ORDER[: ISA_ORDER.index(isa) + 1] if i in own]
    assert pack(isa=isa).info()[0].kernel.endswith(included[-1])


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_environment_forces_an_isa(isa, monkeypatch):
    monkeypatch.setenv("FANIN_ISA", isa)
    assert _native.select_isa() == isa
    assert [i.kernel for i in pack().info()] == [i.kernel for i in pack(isa=isa).info()]


@pytest.mark.parametrize("value", ["", "auto"])
def test_empty_or_auto_environment_means_the_best(value, monkeypatch):
    monkeypatch.setenv("FANIN_ISA", value)
    assert _native.select_isa() == _native.supported_isas()[-1]


def test_unknown_isa_is_refused_with_the_known_ones(monkeypatch):
    with pytest.raises(ValueError, match=r"ISA 'sse9' is unknown.*avx2.*this CPU supports scalar"):
        pack(isa="sse9")
    monkeypatch.setenv("FANIN_ISA", "AVX2")
    with pytest.raises(ValueError, match="FANIN_ISA 'AVX2' is unknown"):
        pack()


def test_an_isa_that_the_cpu_lacks_is_refused_with_the_supported_ones():
    missing = [isa for isa in ISA_ORDER if isa not in _native.supported_isas()]
    with pytest.raises(ValueError, match="is not supported by this CPU, which has scalar"):
        pack(isa=missing[0])


def test_unknown_kernel_is_refused_with_the_table():
    with pytest.raises(ValueError, match=r"kernel 'fast' is unknown; the table has (bf16|f32)-"):
        pack(kernel="fast")


def test_kernel_and_isa_together_are_refused():
    with pytest.raises(ValueError, match="either isa or kernel"):
        pack(kernel="f32-gemm-rows-scalar", isa="scalar")


@pytest.mark.parametrize(("low", "high"), [(0, 1), (5, 4), (-1, None)])
def test_impossible_batch_range_is_refused(low, high):
    with pytest.raises(ValueError, match="are not a range"):
        pack(min_batch=low, max_batch=high)


def test_packed_bytes_are_near_the_weights():
    gemm = pack(in_features=3072, out_features=768, fan_in=307)
    weights = 768 * 307
    for info in gemm.info():
        assert weights * 5 <= info.bytes <= weights * 5 * max(info.padding, 1.2) + 100_000


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_packing_cost_depends_on_weights_if_they_are_far_fewer_than_columns(isa):
    # Layouts that go over all columns would take minutes and gigabytes for 2^31 of them.
    in_features = 2**31 - 1
    gemm = _native.PackedGemm(
        values=np.ones((500, 2), np.float32),
        indices=np.tile(np.array([0, in_features - 1], np.int32), (500, 1)),
        rows=np.arange(500, dtype=np.int32),
        bias=np.zeros(500, np.float32),
        in_features=in_features,
        out_features=500,
        isa=isa,
    )
    (info,) = gemm.info()
    assert info.kernel == "f32-gemm-rows-scalar"
    assert info.bytes < 100_000


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_few_weights_read_columns_that_are_far_apart(isa):
    in_features = 300_000
    x = np.zeros((3, in_features), np.float32)
    x[:, [0, 65_535, 65_536, in_features - 1]] = [1, 10, 100, 1000]
    gemm = _native.PackedGemm(
        values=np.array([[1, 2, 3], [4, 5, 6]], np.float32),
        indices=np.array([[0, 65_536, in_features - 1], [1, 65_535, 65_536]], np.int32),
        rows=np.array([0, 2], np.int32),
        bias=np.array([0.5, 7.0, 0.0], np.float32),
        in_features=in_features,
        out_features=3,
        isa=isa,
    )
    np.testing.assert_array_equal(gemm.run(x), [[3201.5, 7.0, 650.0]] * 3)


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_rows_padded_beyond_the_number_of_inputs_are_accepted(isa):
    gemm = _native.PackedGemm(
        values=np.array([[1, 2, 0, 0, 0]], np.float32),
        indices=np.array([[0, 2, 2, 2, 2]], np.int32),
        rows=np.array([0], np.int32),
        bias=np.array([0.5], np.float32),
        in_features=3,
        out_features=1,
        isa=isa,
    )
    x = np.array([[1, np.inf, 10]], np.float32)
    for batch in (1, 6, 33):
        assert np.array_equal(gemm.run(np.tile(x, (batch, 1))), np.full((batch, 1), 21.5))


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_layer_without_rows_and_without_fan_in_is_accepted(isa):
    gemm = _native.PackedGemm(
        values=np.zeros((0, 0), np.float32),
        indices=np.zeros((0, 0), np.uint16),
        rows=np.zeros(0, np.int32),
        bias=np.array([1, 2], np.float32),
        in_features=3,
        out_features=2,
        isa=isa,
    )
    for batch in (1, 9):
        assert np.array_equal(gemm.run(np.ones((batch, 3), np.float32)), [[1, 2]] * batch)
