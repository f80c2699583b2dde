"""Packed layouts in a process: equal layers are packed once, different ones never shared."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from fanin.ort_ops import _native
from fanin.ort_ops.reference import round_bfloat16

from ._models import Layer, assert_close
from ._own_weights import of_its_own

ROWS = [row for row in _native.kernel_table() if row.supported]
KERNELS = [row.name for row in ROWS]
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SMALL = Layer.random(700, 150, 60, active=140, padded=True)
# In four pieces, so that several threads pack it.
LARGE = Layer.random(600, 4096, 256, active=4090)


COMPUTE = {row.name: row.compute for row in ROWS}


def pack(layer: Layer, **options) -> _native.PackedGemm:
    return _native.PackedGemm(
        **layer.weights,
        in_features=layer.in_features,
        out_features=layer.out_features,
        compute=COMPUTE.get(options.get("kernel"), "float32"),
        **options,
    )


def of_type(layer: Layer, kernel: str) -> Layer:
    """The layer with a unique bias, and values of the type that the kernel's layout stores."""
    (stored,) = {row.weights for row in ROWS if row.name == kernel}
    return of_its_own(replace(layer, values=layer.values.astype(TYPES[stored])))


def shared(packed: _native.PackedGemm) -> list[bool]:
    return [info.shared for info in packed.info()]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_same_weights_are_packed_once_while_they_have_an_owner(kernel):
    layer = of_type(SMALL, kernel)
    x = layer.x(5)
    first = pack(layer, kernel=kernel)
    assert shared(first) == [False]
    alone = first.run(x)
    second = pack(layer, kernel=kernel)
    assert shared(second) == [True]
    assert first.info()[0].bytes == second.info()[0].bytes
    del first
    assert same_bits(second.run(x), alone)
    third = pack(layer, kernel=kernel)
    assert shared(third) == [True]
    del second, third
    assert shared(pack(layer, kernel=kernel)) == [False]


def one_bit_of(array: np.ndarray, at: int) -> np.ndarray:
    changed = array.copy()
    changed.reshape(-1).view(f"u{array.itemsize}")[at] ^= 1
    return changed


def variants(layer: Layer) -> dict[str, Layer]:
    """Layers of the same sizes with minimal differences."""
    last = layer.values.shape[0] - 1
    true = [np.flatnonzero(np.diff(row.astype(np.int64), prepend=-1))[-1] for row in layer.indices]
    moved = layer.indices.copy()  # the last weight of a row moved to another column
    row = next(i for i, j in enumerate(true) if moved[i, j] + 1 < layer.in_features)
    moved[row, true[row] :] += 1
    longer = layer.indices.copy()  # padding turned into a weight that is 0
    padded = next(
        i
        for i, j in enumerate(true)
        if j + 1 < longer.shape[1] and longer[i, j] + 1 < layer.in_features
    )
    longer[padded, true[padded] + 1 :] += 1
    elsewhere = layer.rows.copy()  # a row moved to the ablated output after it
    elsewhere[next(i for i in range(last) if layer.rows[i] + 1 < layer.rows[i + 1])] += 1
    swapped = layer.values.copy()
    swapped[[3, 4], 0] = swapped[[4, 3], 0]
    negative = layer.values.copy()
    negative[0, 0] = 0.0
    return {
        "first value": replace(layer, values=one_bit_of(layer.values, 0)),
        "value of the last row": replace(
            layer, values=one_bit_of(layer.values, last * layer.values.shape[1])
        ),
        "values swapped": replace(layer, values=swapped),
        "zero": replace(layer, values=negative),
        "column": replace(layer, indices=moved),
        "number of weights": replace(layer, indices=longer),
        "row": replace(layer, rows=elsewhere),
        "first bias": replace(layer, bias=one_bit_of(layer.bias, 0)),
        "last bias": replace(layer, bias=one_bit_of(layer.bias, layer.out_features - 1)),
    }


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_packed_layer_distinguishes_its_weights_from_others(kernel):
    layer = of_type(SMALL, kernel)
    layers = {"itself": layer, **variants(layer)}
    for name, layer in layers.items():
        packed = pack(layer, kernel=kernel)
        assert shared(packed) == [False]
        for other_name, other in layers.items():
            assert packed.holds(**other.weights) == (other_name == name), (name, other_name)


@pytest.mark.parametrize("kernel", KERNELS)
def test_clustered_rows_and_a_remainder_are_compared_too(kernel):
    """Rows that are packed in a different order, and weights outside the vector layout."""
    rng = np.random.default_rng(0)
    indices = np.empty((200, 40), np.int32)
    for i in range(200):
        near = (i * 37) % 200 * 10 + np.arange(60)
        far = rng.permutation(2060)[:3]
        indices[i] = np.sort(rng.permutation(np.union1d(near, far))[:40])
    base = Layer.random(2060, 200, 40)
    layer = of_type(replace(base, indices=indices), kernel)
    packed = pack(layer, kernel=kernel)
    assert packed.holds(**layer.weights)
    for at in rng.permutation(layer.values.size)[:300]:
        other = replace(layer, values=one_bit_of(layer.values, at))
        assert not packed.holds(**other.weights), np.unravel_index(at, layer.values.shape)


@pytest.mark.parametrize("kernel", KERNELS)
def test_zeros_of_either_sign_and_nan_are_compared_bitwise(kernel):
    values = of_type(SMALL, kernel).values
    values[:3, 0] = [0.0, -0.0, np.nan]
    layer = of_its_own(replace(SMALL, values=values))
    packed = pack(layer, kernel=kernel)
    assert packed.holds(**layer.weights)
    flipped = values.copy()
    flipped[:2, 0] = [-0.0, 0.0]
    assert not packed.holds(**replace(layer, values=flipped).weights)
    assert shared(pack(layer, kernel=kernel)) == [True]


def mix(state: int, word: int) -> int:
    product = ((state ^ word) * 0x9E3779B97F4A7C15) % 2**64
    return product ^ (product >> 32)


def colliding(layer: Layer) -> Layer:
    """Other values with the same content hash: the fifth word of 8 bytes compensates the first."""
    for change in range(1, 10_000):
        values = layer.values.copy()
        words = values.reshape(-1).view(np.uint64)
        before = mix(0, int(words[0]))
        words[0] ^= np.uint64(change)
        words[4] ^= np.uint64(before ^ mix(0, int(words[0])))
        made = np.abs(values.reshape(-1)[8:10])
        if np.all((made > 1e-3) & (made < 1e3)):
            return replace(layer, values=values)
    raise AssertionError("no collision of moderate values")


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_layers_whose_hashes_collide_are_not_shared(isa):
    layer = of_its_own(Layer.random(200, 100, 20))
    other = colliding(layer)
    sizes = {"in_features": 200, "out_features": 100}
    assert _native.content_hash(**layer.weights, **sizes) == _native.content_hash(
        **other.weights, **sizes
    )
    x = layer.x(9)
    first, second = pack(layer, isa=isa), pack(other, isa=isa)
    assert not any(shared(second))
    assert_close(first.run(x), layer, x)
    assert_close(second.run(x), other, x)
    assert all(shared(pack(layer, isa=isa)))


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_a_static_batch_shares_the_layouts_of_a_symbolic_batch(isa):
    layer = of_its_own(SMALL)
    any_batch = pack(layer, isa=isa)
    names = {info.kernel for info in any_batch.info()}
    for batch in (1, 2, 64):
        (info,) = pack(layer, isa=isa, min_batch=batch, max_batch=batch).info()
        assert info.shared == (info.kernel in names)
    (one,) = pack(layer, isa=isa, min_batch=1, max_batch=1).info()
    assert one.shared


def test_instruction_sets_do_not_share():
    alike = of_its_own(SMALL)
    packed = {isa: pack(alike, isa=isa) for isa in _native.supported_isas()}
    by_kernel: dict[str, list[bool]] = {}
    for layer in packed.values():
        for info in layer.info():
            by_kernel.setdefault(info.kernel, []).append(info.shared)
    for flags in by_kernel.values():
        assert flags == [False] + [True] * (len(flags) - 1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_layer_packed_for_more_threads_takes_little_more_and_gives_the_same(kernel):
    layer = of_type(LARGE, kernel)
    x = round_bfloat16(layer.x(3))
    results, infos = [], []
    for threads in (1, 2, 5):
        packed = pack(layer, kernel=kernel, threads=threads)
        (info,) = packed.info()
        assert not info.shared
        assert packed.holds(**layer.weights)
        infos.append((info.bytes, info.padding, info.remainder))
        results.append(packed.run(x))
        del packed
    bytes_taken, padding, remainder = np.array(infos).T
    assert all(bytes_taken[1:] < 1.05 * bytes_taken[0])
    assert all(padding[1:] < 1.05 * padding[0])
    assert all(remainder == remainder[0])
    assert_close(results[0], replace(layer, values=layer.values.astype(np.float32)), x)
    assert all(same_bits(result, results[0]) for result in results)


def test_concurrent_requests_pack_once():
    layers = [of_its_own(LARGE), of_its_own(SMALL)]
    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            packed = list(pool.map(lambda i: pack(layers[i % 2], threads=2), range(16)))
        for start in range(2):
            flags = [shared(one) for one in packed[start::2]]
            for layout in zip(*flags, strict=True):
                assert sorted(layout) == [False] + [True] * 7
        del packed


def test_threads_that_share_and_free_in_any_order_get_the_right_results():
    layers = [Layer.random(100, 40, 9, seed=seed) for seed in range(3)]
    inputs = [layer.x(4) for layer in layers]
    expected = [pack(layer).run(x) for layer, x in zip(layers, inputs, strict=True)]

    def work(worker: int) -> bool:
        return all(
            same_bits(pack(layers[i % 3]).run(inputs[i % 3]), expected[i % 3])
            for i in range(worker, worker + 200)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@pytest.mark.parametrize("kernel", [row.name for row in ROWS if row.weights == "float32"])
@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_a_float32_layout_of_16_bit_weights_is_shared_and_distinguished(kernel, stored):
    layer = of_its_own(replace(SMALL, values=SMALL.values.astype(TYPES[stored])))
    packed = pack(layer, kernel=kernel)
    assert shared(pack(layer, kernel=kernel)) == [True]
    last = layer.values.shape[1] * (layer.values.shape[0] - 1)
    other = replace(layer, values=one_bit_of(layer.values, last))
    assert packed.holds(**layer.weights)
    assert not packed.holds(**other.weights)
    assert shared(pack(other, kernel=kernel)) == [False]


def test_layers_packed_for_other_threads_are_not_shared():
    # Blocks are cut for the number of threads; layers with the same number share a copy.
    layer = of_its_own(LARGE)
    kept = [pack(layer, min_batch=8, threads=threads) for threads in (2, 2, 5, 5)]
    assert [info.shared for packed in kept for info in packed.info()] == [False, True] * 2
