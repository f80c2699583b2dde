"""Models that are not ours, and training loops that are not ours."""

import copy
import runpy
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy

from fanin.trainer import AST, SRSTE, LayerOptions, RigL, Sparsifier, SRigL, TopKAST
from fanin.trainer.integrations.options import check_options

from ._options import grouped

STEPS = 12
EXAMPLES = Path(__file__).parents[2] / "examples"


def inputs_of(shape, step):
    return torch.randn(4, *shape, generator=torch.Generator().manual_seed(step))


def check(model, masks):
    parameters = dict(model.named_parameters())
    for name, mask in masks.items():
        counts = mask.flatten(1).sum(1)
        assert len(set(counts[counts > 0].tolist())) == 1
        assert bool((parameters[name][~mask] == 0).all())
        assert bool((parameters[name][mask] != 0).any())


def train_two_lines(model, loss, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sparsifier = Sparsifier(
        model, optimizer, method=SRigL(0.7), total_steps=STEPS, update_every=3, **options
    )
    first = {name: mask.clone() for name, mask in sparsifier.masks.items()}
    for step in range(STEPS):
        loss(model, step).backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()
    check(model, sparsifier.masks)
    assert any(not torch.equal(mask, first[name]) for name, mask in sparsifier.masks.items())
    return sparsifier


def image_loss(model, step):
    return cross_entropy(model(inputs_of((3, 64, 64), step)), torch.arange(4))


def test_two_lines_on_a_torchvision_model():
    sparsifier = train_two_lines(torchvision.models.mobilenet_v3_small(num_classes=4), image_loss)
    assert len(sparsifier.masks) > 20


def test_two_lines_on_a_timm_model():
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=4, depth=3)
    masks = train_two_lines(model, image_loss, dense_layers=["patch_embed.proj"]).masks
    assert "blocks.0.attn.qkv.weight" in masks


def bert(layers, width):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=12,
        intermediate_size=4 * width, vocab_size=300,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def text_loss(model, step):
    tokens = torch.randint(300, (4, 16), generator=torch.Generator().manual_seed(step))
    return model(input_ids=tokens, labels=torch.tensor([0, 1, 0, 1])).loss


@pytest.mark.parametrize(
    ("layers", "width"), [(2, 96), pytest.param(12, 768, marks=pytest.mark.slow)]
)
def test_two_lines_on_a_hugging_face_bert(layers, width):
    masks = train_two_lines(bert(layers, width), text_loss, dense_layers=["classifier"]).masks
    assert f"bert.encoder.layer.{layers - 1}.output.dense.weight" in masks


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        tokens = torch.randint(300, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": index % 2}


def test_hugging_face_trainer_resumes_bit_for_bit(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from fanin.trainer.integrations.huggingface import SparsifierCallback

    def trainer():
        torch.manual_seed(0)
        callback = SparsifierCallback(SRigL(0.7), update_every=3, dense_layers=["classifier"])
        arguments = transformers.TrainingArguments(
            tmp_path / "out", per_device_train_batch_size=4, num_train_epochs=1, save_steps=5,
            report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=1e-3,
            gradient_accumulation_steps=1, seed=3,
        )  # fmt: skip
        made = transformers.Trainer(
            bert(1, 48), arguments, train_dataset=Texts(), callbacks=[callback]
        )
        return made, callback

    whole, callback = trainer()
    whole.train()
    assert callback.sparsifier.step_count == 12
    check(whole.model, callback.sparsifier.masks)
    resumed, again = trainer()
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-5"))
    assert again.sparsifier.step_count == 12
    for mine, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    for name, mask in callback.sparsifier.masks.items():
        assert torch.equal(mask, again.sparsifier.masks[name])


def test_the_best_checkpoint_of_hugging_face_comes_with_its_masks(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from fanin.trainer.integrations.huggingface import SparsifierCallback

    callback = SparsifierCallback(SRigL(0.7), update_every=3, dense_layers=["classifier"])
    arguments = transformers.TrainingArguments(
        tmp_path / "out", per_device_train_batch_size=4, num_train_epochs=1, save_steps=4,
        eval_strategy="steps", eval_steps=4, load_best_model_at_end=True, report_to=[],
        metric_for_best_model="step", greater_is_better=False, use_cpu=True, disable_tqdm=True,
        learning_rate=1e-3,
    )  # fmt: skip
    torch.manual_seed(0)
    trainer = transformers.Trainer(
        bert(1, 48), arguments, train_dataset=Texts(), eval_dataset=Texts(), callbacks=[callback],
        compute_metrics=lambda _: {"step": trainer.state.global_step},
    )  # fmt: skip
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    assert callback.sparsifier.step_count == 4
    check(trainer.model, callback.sparsifier.masks)
    weight = trainer.model.bert.encoder.layer[0].intermediate.dense.weight
    mask = callback.sparsifier.masks["bert.encoder.layer.0.intermediate.dense.weight"]
    assert bool((weight[mask] != 0).float().mean() > 0.9)


def lightning_module(lightning):
    """A module of Lightning, whose weights are the same at every call."""

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 4))

        def forward(self, inputs):
            return self.net(inputs)

        def training_step(self, batch, _):
            return cross_entropy(self(batch[0]), batch[1])

        def test_step(self, batch, number):  # noqa: ARG002
            self(batch[0])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Module()


def lightning_data():
    inputs = torch.randn(48, 20, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(inputs, torch.arange(48) % 4)
    return torch.utils.data.DataLoader(data, batch_size=4)


def test_lightning_trainer_resumes_bit_for_bit(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.callbacks import ModelCheckpoint

    from fanin.trainer.integrations.lightning import SparsifierCallback

    def fit(path=None):
        callback = SparsifierCallback(SRigL(0.7, gamma_sal=0.9), update_every=3)
        every_epoch = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        module = lightning_module(lightning)
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, callbacks=[callback, every_epoch],
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        loader = lightning_data()
        trainer.fit(module, loader, ckpt_path=path)
        return module, callback.sparsifier, trainer, loader

    whole, sparsifier, trainer, loader = fit()
    assert sparsifier.step_count == 24
    check(whole, sparsifier.masks)
    assert next(iter(sparsifier.masks)) == "net.0.weight"
    resumed, again, *_ = fit(tmp_path / "epoch=0.ckpt")
    assert again.step_count == 24
    for mine, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(mine, other)
    for name, mask in sparsifier.masks.items():
        assert torch.equal(mask, again.masks[name])
    # A checkpoint that is loaded after training brings its masks.
    trainer.test(whole, loader, ckpt_path=tmp_path / "epoch=0.ckpt", verbose=False)
    assert sparsifier.step_count == 12
    check(whole, sparsifier.masks)


@pytest.mark.parametrize("method", [SRSTE("2:4"), TopKAST(0.75), AST(0.75)])
def test_lightning_trains_dense_weights_behind_the_mask_as_a_loop_does(method):
    """Automatic optimization passes its forward and backward pass to the optimizer's step."""
    lightning = pytest.importorskip("lightning.pytorch")
    from fanin.trainer.integrations.lightning import SparsifierCallback

    loader = lightning_data()
    layers = LayerOptions(distribution="uniform", dense_in_budget=False)
    options = {"update_every": 3, "layers": layers}
    callback, trained = SparsifierCallback(method, **options), lightning_module(lightning)
    lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, callbacks=[callback],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    ).fit(trained, loader)  # fmt: skip

    module = lightning_module(lightning)
    optimizer = module.configure_optimizers()
    sparsifier = Sparsifier(module, optimizer, method=method, total_steps=24, **options)
    for _ in range(2):
        for each in loader:
            optimizer.zero_grad()
            module.training_step(each, 0).backward()
            optimizer.step()
            sparsifier.step()
    for mine, other in zip(trained.parameters(), module.parameters(), strict=True):
        assert torch.equal(mine, other)
    for name, mask in sparsifier.masks.items():
        assert torch.equal(mask, callback.sparsifier.masks[name])


def test_misspelled_options_of_callbacks_are_refused_at_once():
    assert check_options({"update_every": 3}) == {"update_every": 3}
    with pytest.raises(TypeError, match=r"no option 'update_evry'\. Did you mean 'update_every'"):
        check_options({"update_evry": 3})
    with pytest.raises(TypeError, match="no option 'total_steps'"):
        check_options({"total_steps": 3})
    with pytest.raises(TypeError, match=r"write schedule=ScheduleOptions\(alpha=…\)"):
        check_options({"alpha": 0.2})


def test_a_sparsifier_made_from_a_state_continues_without_touching_weights_and_optimizer():
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def train(model, optimizer, sparsifier, steps):
        for step in steps:
            cross_entropy(model(inputs_of((20,), step)), torch.arange(4)).backward()
            optimizer.step()
            sparsifier.step()
            optimizer.zero_grad()

    options = grouped(method=RigL(0.7), total_steps=40, update_every=4, gradient_window=3)
    model, optimizer = make()
    sparsifier = Sparsifier(model, optimizer, **options)
    train(model, optimizer, sparsifier, range(10))
    other, its_optimizer = make()
    other.load_state_dict(model.state_dict())
    its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again = Sparsifier(other, its_optimizer, state=sparsifier.state_dict(), **options)
    train(model, optimizer, sparsifier, range(10, 20))
    train(other, its_optimizer, again, range(10, 20))
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_the_timm_example_runs(capsys):
    pytest.importorskip("timm")
    runpy.run_path(str(EXAMPLES / "timm_vit.py"))
    assert "blocks.3.mlp.fc2.weight" in capsys.readouterr().out


def test_the_text_of_the_minilm_example_is_split_by_document():
    pytest.importorskip("transformers")
    example = runpy.run_path(str(EXAMPLES / "minilm_distill.py"))
    found = example["sentences_of"](
        "Return the *mean* of a sequence of numbers, as a float. See `x`.\n\n"
        "x = [1, 2, 3]; y = {4: 5}; z = f(x, y)[0] + 1\n\nIt raises an error when there is nothing."
    )
    assert found == [
        "Return the mean of a sequence of numbers, as a float.",
        "It raises an error when there is nothing.",
    ]
    sets = example["corpus"]()
    assert all(len(sets[name]) > 100 for name in ("train", "held-out"))
    assert not set(sets["train"]) & set(sets["held-out"])
