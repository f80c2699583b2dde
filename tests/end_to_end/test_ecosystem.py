"""Language models and optimizers of other libraries: trained with the two lines, then exported.

After every step, pruned weights are zero; after every update, all neurons of a layer with weights
have equally many; the file computes what torch does.
"""

import numpy as np
import onnxruntime
import pytest
import torch

from fanin.export import export
from fanin.ort_ops import register
from fanin.trainer import InitializationOptions, LayerOptions, Sparsifier, SRigL

from ..trainer.test_wrapped_optimizers import Lookahead, Sam

WIDTH, VOCABULARY, STEPS, EVERY = 64, 96, 12, 3
MODELS = {"gpt2": 8, "llama": 14}  # with this many sparse layers


def model_of(name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shared = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
    if name == "gpt2":
        config = transformers.GPT2Config(
            n_embd=WIDTH, n_layer=2, n_head=4, n_positions=32, **shared,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False, **shared,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def loss_of(model, step):
    ids = torch.randint(VOCABULARY, (4, 16), generator=torch.Generator().manual_seed(step))
    return model(input_ids=ids, labels=ids).loss


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def of_library(module, make):
    def found(model):
        return make(pytest.importorskip(module), model)

    return found


def eight_bit(library, model):
    return library.AdamW8bit(model.parameters(), lr=1e-3)


def plain(model, optimizer, step):
    loss_of(model, step).backward()
    optimizer.step()


def two_steps(model, optimizer, step):
    loss_of(model, step).backward()
    optimizer.first_step()
    optimizer.zero_grad()
    loss_of(model, step).backward()
    optimizer.second_step()


def closure(model, optimizer, step):
    def again():
        loss = loss_of(model, step)
        loss.backward()
        return loss

    again()
    optimizer.step(again)


OPTIMIZERS = {
    "AdamW": (adam, plain),
    "SAM in two steps": (lambda m: Sam(m.parameters()), two_steps),
    "SAM with a closure": (lambda m: Sam(m.parameters()), closure),
    "Lookahead": (lambda m: Lookahead(adam(m), None), plain),
    "AdamW8bit of torchao": (of_library("torchao.optim", eight_bit), plain),
    "AdamW8bit of bitsandbytes": (of_library("bitsandbytes.optim", eight_bit), plain),
    "Lookahead of torch_optimizer": (
        of_library("torch_optimizer", lambda library, m: library.Lookahead(adam(m), k=3)),
        plain,
    ),
    "Lookahead of pytorch_optimizer": (
        of_library("pytorch_optimizer", lambda library, m: library.Lookahead(adam(m), k=3)),
        plain,
    ),
    "SAM of pytorch_optimizer": (
        of_library(
            "pytorch_optimizer",
            lambda library, m: library.SAM(m.parameters(), torch.optim.AdamW, lr=1e-3),
        ),
        closure,
    ),
}


def sparsifier_of(model, optimizer, steps=STEPS):
    return Sparsifier(
        model,
        optimizer,
        method=SRigL(sparsity=0.8, gamma_sal=0.5),
        total_steps=2 * steps,
        update_every=EVERY,
        layers=LayerOptions(dense_layers=["lm_head"], dense_in_budget=False, no_ablation=[]),
        initialization=InitializationOptions(keep_weights=False),
    )


def require_masks(model, sparsifier, input_first, *, updated):
    for name, mask in sparsifier.masks.items():
        assert bool((model.get_parameter(name)[~mask] == 0).all()), name
        if updated:
            fan_ins = mask.sum(0 if input_first else 1)
            assert len(set(fan_ins[fan_ins > 0].tolist())) == 1, name


def require_export(model, sparsifier, path):
    """Export with every sparse layer condensed, and compare with torch on other inputs."""
    example = {"input_ids": torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])}
    model.eval().config.use_cache = False
    report = export(
        model, example, path, masks=sparsifier.masks, policy="condensed", min_sparsity=0.1
    )
    condensed = [layer for layer in report.layers if layer.decision == "condensed"]
    assert len(condensed) == len(sparsifier.masks)
    options = onnxruntime.SessionOptions()
    register(options)
    session = onnxruntime.InferenceSession(report.path, options)
    ids = torch.randint(VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        expected = model.double()(input_ids=ids).logits.numpy()
    (port,) = session.get_inputs()
    actual = session.run(None, {port.name: ids.numpy()})[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.fixture
def eager():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small tensors gain nothing from more
    torch.compiler.set_stance("force_eager")  # torchao compiles its steps
    yield
    torch.compiler.set_stance("default")
    torch.set_num_threads(threads)


def train(model, optimizer, take_step, *, input_first):
    sparsifier = sparsifier_of(model, optimizer)
    first = {key: mask.clone() for key, mask in sparsifier.masks.items()}
    before, updates = loss_of(model, 0).item(), 0
    for step in range(STEPS):
        take_step(model, optimizer, step % 4)
        update = sparsifier.step()
        updates += update is not None
        require_masks(model, sparsifier, input_first, updated=update is not None)
        for parameter in model.parameters():
            parameter.grad = None
    assert (sparsifier.step_count, updates) == (STEPS, STEPS // EVERY)
    assert all(not torch.equal(mask, first[key]) for key, mask in sparsifier.masks.items())
    assert loss_of(model, 0).item() < before
    return sparsifier


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("eager")
def test_masks_hold_and_fan_in_is_constant_with_every_optimizer(name, optimizer):
    model = model_of(name)
    make, take_step = OPTIMIZERS[optimizer]
    train(model, make(model), take_step, input_first=name == "gpt2")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("eager")
def test_a_language_model_trains_in_two_lines_and_is_exported(name, tmp_path):
    model = model_of(name)
    sparsifier = train(model, adam(model), plain, input_first=name == "gpt2")
    assert len(sparsifier.masks) == MODELS[name]
    require_export(model, sparsifier, tmp_path / "model.onnx")


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("eager")
def test_accelerate_trains_in_two_lines(name, accumulate):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = model_of(name)
    wrapped, optimizer = accelerator.prepare(model, adam(model))
    sparsifier = sparsifier_of(wrapped, optimizer)
    updates = 0
    for step in range(STEPS * accumulate):
        with accelerator.accumulate(wrapped):
            accelerator.backward(loss_of(wrapped, step))
            optimizer.step()
            update = sparsifier.step()
            optimizer.zero_grad()
        updates += update is not None
        require_masks(model, sparsifier, name == "gpt2", updated=update is not None)
    assert (sparsifier.step_count, updates) == (STEPS, STEPS // EVERY)
