"""Language models with a cache: of transformers, and files as other exporters write them."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

HIDDEN, HEADS, KV_HEADS, HEAD, MLP, VOCABULARY, POSITIONS = 32, 2, 1, 16, 48, 64, 40

SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def prune(weight: torch.Tensor, keep: int) -> None:
    """Keep the largest entries of every row."""
    kept = weight.abs().topk(keep, dim=1).indices
    weight.mul_(torch.zeros_like(weight).scatter_(1, kept, 1.0))


def causal_model(style: str, layers: int = 1, *, tied: bool = True):
    """A small model of transformers whose projections have 4 weights in each row."""
    import transformers

    torch.manual_seed(0)
    if style == "gpt2":
        config = transformers.GPT2Config(
            n_embd=HIDDEN,
            n_layer=layers,
            n_head=HEADS,
            vocab_size=VOCABULARY,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=2,
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        kind = {"llama": "Llama", "qwen2": "Qwen2"}[style]
        config = getattr(transformers, f"{kind}Config")(
            **SIZES, num_hidden_layers=layers, tie_word_embeddings=tied
        )
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and (".layers." in name or ".h." in name):
                # transformers' Conv1D has [in, out].
                prune(weight.T if style == "gpt2" else weight, keep=4)
                weight.mul_(20)  # or the layers add next to nothing to the embedding
    return model.eval()


def decode_torch(model, prompt: torch.Tensor, count: int) -> tuple[list[int], np.ndarray]:
    """Decode greedily in float64; returns tokens and the logits that chose them."""
    import copy

    import transformers

    exact = copy.deepcopy(model).double()
    cache, ids, tokens, logits = transformers.DynamicCache(), prompt, [], []
    with torch.no_grad():
        for _ in range(count):
            result = exact(input_ids=ids, past_key_values=cache, use_cache=True)
            logits.append(result.logits[0, -1].numpy())
            ids = result.logits[:, -1:].argmax(-1)
            tokens.append(int(ids))
    return tokens, np.stack(logits)


def decode_file(session, prompt: np.ndarray, count: int) -> tuple[list[int], np.ndarray]:
    """Decode greedily with a session: a prefill, then one token at a time."""
    outputs = [port.name for port in session.get_outputs()]
    names = {port.name for port in session.get_inputs()}
    cache = {
        port.name: np.zeros((1, port.shape[1], 0, HEAD), np.float32)
        for port in session.get_inputs()
        if port.name.startswith("past_key_values.")
    }
    ids, length, tokens, logits = prompt, 0, [], []
    for _ in range(count):
        feeds = {"input_ids": ids, "attention_mask": np.ones((1, length + ids.shape[1]), np.int64)}
        if "position_ids" in names:
            feeds["position_ids"] = length + np.arange(ids.shape[1])[None]
        length += ids.shape[1]
        given = dict(zip(outputs, session.run(outputs, {**feeds, **cache}), strict=True))
        cache = {name: given[name.replace("past_key_values", "present")] for name in cache}
        logits.append(given["logits"][0, -1])
        ids = given["logits"][:, -1:].argmax(-1)
        tokens.append(int(ids[0, 0]))
    return tokens, np.stack(logits)


class _Weights:
    """Initializers of a file."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.made: list[onnx.TensorProto] = []

    def add(self, name: str, array: np.ndarray) -> str:
        self.made.append(numpy_helper.from_array(array, name))
        return name

    def dense(self, name: str, *shape: int) -> str:
        return self.add(name, self.rng.standard_normal(shape).astype(np.float32))

    def sparse(self, name: str, rows: int, columns: int) -> str:
        """Add a weight as MatMul reads it, 4 entries in each column."""
        places = np.argsort(self.rng.random((rows, columns)), axis=0) < 4
        values = 0.5 * self.rng.standard_normal((rows, columns))
        return self.add(name, np.where(places, values, 0).astype(np.float32))


def _port(name: str, kind: int, *sizes: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, sizes)


def _cache_ports(what: str, length: str, size: int | str) -> list[onnx.ValueInfoProto]:
    names = (f"{what}.0.key", f"{what}.0.value")
    return [_port(one, TensorProto.FLOAT, "batch_size", KV_HEADS, length, size) for one in names]


def genai_model() -> onnx.ModelProto:
    """One layer as onnxruntime-genai's builder writes it, with its contrib ops and its quirks.

    The head size is a name, the constant's value is noted with another rank than it has, and the
    norm that starts the layer is called an operator of the standard domain.
    """
    weights = _Weights()
    packed = (HEADS + 2 * KV_HEADS) * HEAD
    angles = np.outer(np.arange(POSITIONS), 10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2)))
    weights.add("cos_cache", np.cos(angles).astype(np.float32))
    weights.add("sin_cache", np.sin(angles).astype(np.float32))
    for name in ("first_norm", "second_norm", "last_norm"):
        weights.add(name, np.ones(HIDDEN, np.float32))
    one = numpy_helper.from_array(np.array([1], np.int64))
    contrib = {"domain": "com.microsoft"}
    norm = {"epsilon": 1e-5}
    past = ["past_key_values.0.key", "past_key_values.0.value"]

    def node(op: str, inputs: list[str], outputs: list[str], **attributes) -> onnx.NodeProto:
        return helper.make_node(op, inputs, outputs, name=f"/{outputs[0]}/{op}", **attributes)

    nodes = [
        node("Constant", [], ["one"], value=one),
        node("ReduceSum", ["attention_mask", "one"], ["lengths"], keepdims=0),
        node("Sub", ["lengths", "one"], ["last_places"]),
        node("Cast", ["last_places"], ["seqlens_k"], to=TensorProto.INT32),
        node("Shape", ["attention_mask"], ["mask_shape"], start=1, end=2),
        node("Cast", ["mask_shape"], ["total"], to=TensorProto.INT32),
        node("Gather", [weights.dense("embedding", VOCABULARY, HIDDEN), "input_ids"], ["x"]),
        node("SimplifiedLayerNormalization", ["x", "first_norm"], ["a"], axis=-1, **norm),
        node("MatMul", ["a", weights.sparse("qkv", HIDDEN, packed)], ["b"]),
        node(
            "GroupQueryAttention",
            ["b", "", "", *past, "seqlens_k", "total", "cos_cache", "sin_cache"],
            ["c", "present.0.key", "present.0.value"],
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=1,
            **contrib,
        ),
        node("MatMul", ["c", weights.sparse("o", HIDDEN, HIDDEN)], ["d"]),
        node(
            "SkipSimplifiedLayerNormalization",
            ["x", "d", "second_norm"],
            ["e", "", "", "sum"],
            **norm,
            **contrib,
        ),
        node("MatMul", ["e", weights.sparse("gate", HIDDEN, MLP)], ["f"]),
        node("MatMul", ["e", weights.sparse("up", HIDDEN, MLP)], ["g"]),
        node("Sigmoid", ["f"], ["h"]),
        node("Mul", ["f", "h"], ["i"]),
        node("Mul", ["i", "g"], ["j"]),
        node("MatMul", ["j", weights.sparse("down", MLP, HIDDEN)], ["k"]),
        node(
            "SkipSimplifiedLayerNormalization", ["sum", "k", "last_norm"], ["l"], **norm, **contrib
        ),
        node("MatMul", ["l", weights.dense("head", HIDDEN, VOCABULARY)], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "genai",
        [
            _port("input_ids", TensorProto.INT64, "batch_size", "sequence_length"),
            _port("attention_mask", TensorProto.INT64, "batch_size", "total_sequence_length"),
            *_cache_ports("past_key_values", "past_sequence_length", "kv_cache_dim"),
        ],
        [
            _port("logits", TensorProto.FLOAT, "batch_size", "sequence_length", VOCABULARY),
            *_cache_ports("present", "total_sequence_length", "kv_cache_dim"),
        ],
        weights.made,
        value_info=[_port("one", TensorProto.INT64)],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def optimum_model() -> onnx.ModelProto:
    """One layer of attention as optimum writes GPT-2, with a table of positions and the mask."""
    weights = _Weights()
    split = [HIDDEN, KV_HEADS * HEAD, KV_HEADS * HEAD]
    weights.add("sizes", np.array(split, np.int64))
    weights.add("q_shape", np.array([0, 0, KV_HEADS, HEADS // KV_HEADS * HEAD], np.int64))
    weights.add("k_shape", np.array([0, 0, KV_HEADS, HEAD], np.int64))
    weights.add("q_heads", np.array([0, KV_HEADS, -1, HEAD], np.int64))
    weights.add("o_shape", np.array([0, 0, -1], np.int64))
    weights.add("middle", np.array([1, 2], np.int64))
    weights.add("unmasked", np.array(1, np.int64))
    weights.add("masked", np.array(-1e9, np.float32))
    weights.dense("bias", sum(split))

    def node(op: str, inputs: list[str], outputs: list[str], **attributes) -> onnx.NodeProto:
        return helper.make_node(op, inputs, outputs, name=f"/{outputs[0]}/{op}", **attributes)

    heads = {"perm": [0, 2, 1, 3]}
    nodes = [
        node("Gather", [weights.dense("wte", VOCABULARY, HIDDEN), "input_ids"], ["t"]),
        node("Gather", [weights.dense("wpe", POSITIONS, HIDDEN), "position_ids"], ["p"]),
        node("Add", ["t", "p"], ["x"]),
        node("MatMul", ["x", weights.sparse("c_attn", HIDDEN, sum(split))], ["m"]),
        node("Add", ["m", "bias"], ["qkv"]),
        node("Split", ["qkv", "sizes"], ["q", "k", "v"], axis=2),
        # One query head for each head of the keys, twice as wide, is cut to the width of a key.
        node("Reshape", ["q", "q_shape"], ["q1"]),
        node("Transpose", ["q1"], ["q2"], **heads),
        node("Reshape", ["q2", "q_heads"], ["q3"]),
        node("Reshape", ["k", "k_shape"], ["k1"]),
        node("Transpose", ["k1"], ["k2"], **heads),
        node("Concat", ["past_key_values.0.key", "k2"], ["present.0.key"], axis=2),
        node("Reshape", ["v", "k_shape"], ["v1"]),
        node("Transpose", ["v1"], ["v2"], **heads),
        node("Concat", ["past_key_values.0.value", "v2"], ["present.0.value"], axis=2),
        node("Transpose", ["present.0.key"], ["k3"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q3", "k3"], ["scores"]),
        node("Unsqueeze", ["attention_mask", "middle"], ["mask"]),
        node("Equal", ["mask", "unmasked"], ["kept"]),
        node("Where", ["kept", "scores", "masked"], ["held"]),
        node("Softmax", ["held"], ["shares"]),
        node("MatMul", ["shares", "present.0.value"], ["o"]),
        node("Reshape", ["o", "q_back"], ["o1"]),
        node("Transpose", ["o1"], ["o2"], **heads),
        node("Reshape", ["o2", "o_shape"], ["o3"]),
        node("MatMul", ["o3", weights.sparse("c_proj", HIDDEN, HIDDEN)], ["y"]),
        node("MatMul", ["y", weights.dense("head", HIDDEN, VOCABULARY)], ["logits"]),
    ]
    weights.add("q_back", np.array([0, KV_HEADS, -1, HEADS // KV_HEADS * HEAD], np.int64))
    total = "past_sequence_length + sequence_length"
    graph = helper.make_graph(
        nodes,
        "optimum",
        [
            _port("input_ids", TensorProto.INT64, "batch_size", "sequence_length"),
            _port("attention_mask", TensorProto.INT64, "batch_size", total),
            _port("position_ids", TensorProto.INT64, "batch_size", "sequence_length"),
            *_cache_ports("past_key_values", "past_sequence_length", HEAD),
        ],
        [
            _port("logits", TensorProto.FLOAT, "batch_size", "sequence_length", VOCABULARY),
            *_cache_ports("present", total, HEAD),
        ],
        weights.made,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
