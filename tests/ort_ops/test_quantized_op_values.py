"""Results of the ops on 8-bit integers in ONNX Runtime: bit for bit those of the definition."""

from __future__ import annotations

import math
import threading

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.ort_ops.contract import QUANTIZED_OPS

from ._models import open_session, run
from ._quantized import (
    DYNAMIC,
    EIGHT_BITS,
    GEOMETRIES,
    QLINEAR_CONV,
    QLINEAR_GEMM,
    TO_FLOAT,
    Node,
    random_node,
)

every_op = pytest.mark.parametrize("op", QUANTIZED_OPS)


def check(node: Node, fed=("X",), *, threads: int = 1, **build) -> None:
    session = open_session(node.build(fed=fed, **build), threads=threads)
    assert_exact(run(session, **node.feeds(*fed)), node)


def assert_exact(got: np.ndarray, node: Node) -> None:
    wanted = node.expected()
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(got, wanted)


@every_op
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_node_computes_the_definition(op: str, seed: int):
    check(random_node(op, seed))


@pytest.mark.parametrize("y_type", EIGHT_BITS)
@pytest.mark.parametrize("x_type", EIGHT_BITS)
@pytest.mark.parametrize("op", [QLINEAR_GEMM, QLINEAR_CONV])
def test_every_pair_of_types_is_served(op: str, x_type: type, y_type: type):
    for residual in (False, True):
        check(random_node(op, 1, x_type=x_type, y_type=y_type, residual=residual))


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_every_geometry_and_layout_is_served(geometry, channels_last: int):
    for seed in range(3):
        node = random_node(QLINEAR_CONV, seed, geometry=geometry, channels_last=channels_last)
        check(node, threads=2)


@pytest.mark.parametrize("batch", [1, 2, 7, 16, 65])
@pytest.mark.parametrize("op", [QLINEAR_GEMM, TO_FLOAT, DYNAMIC])
def test_every_batch_is_served_declared_or_not(op: str, batch: int):
    node = random_node(op, 2, leading=(batch,), in_features=131, outputs=67, fan_in=40)
    check(node)
    check(node, x_shape=node.x.shape)


@pytest.mark.parametrize("leading", [(), (2, 3), (0,), (3, 0)], ids=str)
@pytest.mark.parametrize("op", [QLINEAR_GEMM, TO_FLOAT, DYNAMIC])
def test_every_rank_and_an_empty_batch_are_served(op: str, leading: tuple[int, ...]):
    for residual in (False, bool(leading)):
        check(random_node(op, 3, leading=leading, residual=residual))


def test_an_empty_batch_of_images_is_served():
    node = random_node(QLINEAR_CONV, 3, residual=False)
    check(node.having(X=node.x[:0]))


@every_op
def test_ablated_layers_give_the_bias(op: str):
    node = random_node(op, 4)
    arrays = {name: node.arrays[name][:0] for name in ("values", "indices", "rows")}
    check(node.having(**arrays))


@every_op
def test_residuals_scales_and_zero_points_may_come_with_the_run(op: str):
    node = random_node(op, 5, residual=True)
    others = [name for name in node.arrays if name.endswith(("scale", "point"))]
    check(node, ("X", "residual", "bias", *others))
    for name in ("residual", "bias", *others):
        check(node, ("X", name))


@every_op
def test_weights_that_come_with_the_run_take_the_plain_kernel(op: str):
    for seed in range(5):
        check(random_node(op, seed), ("X", "values", "indices", "rows"))
        check(random_node(op, seed), ("X", "indices"))


@every_op
def test_the_result_is_that_of_any_number_of_threads(op: str):
    chosen = {"geometry": GEOMETRIES[0]} if op == QLINEAR_CONV else {"leading": (70,)}
    node = random_node(op, 6, **chosen)
    for threads in (1, 3, 64):
        check(node, threads=threads)


@every_op
def test_sessions_run_at_the_same_time(op: str):
    nodes = [random_node(op, seed) for seed in range(4)]
    sessions = [open_session(node.build(), threads=2) for node in nodes]
    results: dict[tuple[int, int], np.ndarray] = {}

    def serve(turn: int) -> None:
        for at, (session, node) in enumerate(zip(sessions, nodes, strict=True)):
            results[turn, at] = run(session, **node.feeds())

    workers = [threading.Thread(target=serve, args=(turn,)) for turn in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 16
    for (_, at), got in results.items():
        assert_exact(got, nodes[at])


@pytest.mark.parametrize("level", onnxruntime.GraphOptimizationLevel.__members__.values(), ids=str)
@every_op
def test_every_level_of_graph_optimization_keeps_the_node(op: str, level):
    node = random_node(op, 7)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = open_session(node.build(), options=options)
    assert_exact(run(session, **node.feeds()), node)


@pytest.mark.parametrize("op", [QLINEAR_GEMM, QLINEAR_CONV])
def test_results_beyond_the_type_saturate(op: str):
    node = random_node(op, 8, residual=False).having(clip_min=-math.inf, clip_max=math.inf)
    for y_scale in (1e-25, 1e-4, 1e4, 1e30):
        check(node.having(y_scale=np.float32(y_scale)))


def test_sums_are_exact_at_the_largest_fan_in():
    fan_in = 65_793
    node = random_node(
        TO_FLOAT, 9, in_features=fan_in, outputs=2, fan_in=1, leading=(1,), residual=False
    )
    columns = np.arange(fan_in, dtype=np.int32)[None]
    node = node.having(
        X=np.full((1, fan_in), 255, np.uint8),
        x_zero_point=np.uint8(0),
        values=np.full((1, fan_in), -128, np.int8),
        indices=columns,
        rows=np.zeros(1, np.int32),
    )
    check(node)


def test_the_sum_wraps_when_the_bias_leaves_int32():
    node = random_node(QLINEAR_GEMM, 10, residual=False)
    bias = np.full(19, 2**31 - 1, np.int32)
    check(node.having(bias=bias, clip_min=-math.inf, clip_max=math.inf))


@pytest.mark.parametrize("per_row", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-44, 0.0])
def test_unusual_activations_quantize_as_defined(value: float, per_row: int):
    node = random_node(DYNAMIC, 11, per_row=per_row, leading=(6,))
    x = node.x.copy()
    x[2, 5] = value
    x[2, 6] = -value
    check(node.having(X=x), threads=2)
    check(node.having(X=np.full_like(x, value)))


@pytest.mark.parametrize("per_row", [0, 1])
def test_ties_between_two_integers_round_to_the_even_one(per_row: int):
    # A scale of 1: low 0 and high 255.
    row = np.concatenate([[0, 255], np.arange(35) + 0.5]).astype(np.float32)
    node = random_node(DYNAMIC, 12, per_row=per_row, leading=(2,), residual=False)
    check(node.having(X=np.stack([row, row])))


@every_op
def test_the_runtime_knows_the_type_and_shape_of_y(op: str):
    for seed in range(4):
        node = random_node(op, seed)
        model = node.build(x_shape=node.x.shape)
        model.graph.output[0].type.Clear()
        (output,) = open_session(model).get_outputs()
        wanted = node.expected()
        assert output.shape == list(wanted.shape)
        assert output.type.replace("float", "float32") == f"tensor({wanted.dtype})"
