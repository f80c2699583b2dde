import math

import pytest
import torch

from fanin._base.distributions import layer_densities, weight_budget
from fanin.trainer import load_recipe
from fanin.trainer.data import DataConfig, describe
from fanin.trainer.layers import prunable_weights
from fanin.trainer.models import CNN, MODELS, ResNet18, WideResNet
from fanin.trainer.run_folder import build_model, sparse_parameter_names

# Model: its data set, layers, weights.
PUBLISHED = {
    "resnet18": ("cifar10", 21, 11_164_352),
    "wide-resnet": ("cifar10", 23, 1_076_912),
    "resnet50": ("imagenet", 54, 25_502_912),
    "mobilenet-v3-large": ("imagenet", 64, 5_451_272),
}


def shapes_of(model):
    return {name: tuple(weight.shape) for name, weight in prunable_weights(model).items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_have_the_published_numbers_of_weights(name):
    data, layers, weights = PUBLISHED[name]
    with torch.device("meta"):
        model = MODELS[name]().build(*describe(DataConfig(data)))
    shapes = shapes_of(model)
    assert len(shapes) == layers
    assert sum(map(math.prod, shapes.values())) == weights


def test_erk_gives_the_published_fan_ins_of_the_resnet18_that_recipes_build():
    with torch.device("meta"):
        shapes = shapes_of(build_model(load_recipe("resnet18-cifar10-srigl99")))
    densities = layer_densities(shapes, 0.99, "erk")
    found = [weight_budget(shape, densities[n]) // shape[0] for n, shape in shapes.items()]
    assert found[:8] == [13, 25, 25, 25, 25, 18, 24, 18]
    assert found[-1] == 512


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (ResNet18(width=4), (3, 32, 32)),
        (WideResNet(depth=10, widen=1, dropout=0.1), (3, 32, 32)),
        (CNN(channels=(8, 16)), (1, 28, 28)),
        (MODELS["mobilenet-v3-small"](), (3, 64, 64)),
    ],
)
def test_models_map_images_to_logits_and_gradients_reach_every_weight(model, shape):
    torch.manual_seed(0)
    built = model.build(shape, 7)
    logits = built(torch.randn(4, *shape))
    assert logits.shape == (4, 7)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in built.parameters())


def test_vit_study_makes_the_input_projections_sparse_and_the_first_layer_dense():
    names = {}
    for recipe in ("vit-b-16-imagenet-srigl90", "vit-b-16-imagenet-srigl90-in-proj"):
        config = load_recipe(recipe)
        with torch.device("meta"):
            names[recipe] = sparse_parameter_names(config, build_model(config))
    plain, study = names.values()
    assert len(plain) == 1 + 12 * 3 + 1
    assert "conv_proj.weight" in plain - study
    assert len(study) == 12 * 4 + 1
    assert sum("in_proj_weight" in name for name in study) == 12


def test_models_that_do_not_fit_the_data_say_so():
    with pytest.raises(ValueError, match="needs images of 3 channels"):
        MODELS["resnet50"]().build((1, 28, 28), 10)
    with pytest.raises(ValueError, match="a multiple of 16"):
        MODELS["vit-b-16"]().build((3, 40, 40), 10)
    with pytest.raises(ValueError, match="depth must be"):
        WideResNet(depth=21)
