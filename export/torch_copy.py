"""A plain float32 copy of whatever model a user has; the model itself stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune, remove_weight_norm
from torch.nn.utils.weight_norm import WeightNorm

from .errors import ExportError

_WIDENED = (torch.float16, torch.bfloat16)
_SPARSE = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)


@dataclass(frozen=True)
class Copied:
    """A copy that can be exported.

    Attributes:
        model: in eval mode, on the CPU, float32, without wrappers and reparametrizations.
        masks: the user's masks under the names of its parameters.
        widened: whether parameters were float16 or bfloat16.
        notes: what a user should know of it.

    """

    model: nn.Module
    masks: Mapping[str, Tensor] | None
    widened: bool
    notes: tuple[str, ...]


def eval_copy(model: nn.Module, masks: Mapping[str, Tensor] | None = None) -> Copied:
    """Copy a model to the CPU in eval mode. The original keeps its mode, device and buffers.

    torch.compile and DistributedDataParallel are unwrapped. Pruning and other reparametrizations
    become the weight that they give. Sparse tensors become dense, half precision becomes float32;
    both are exact. Other parameters are shared with the model where they lie on the CPU: an export
    only reads them, and a second copy of a large model may not fit.

    Raises:
        ExportError: a tensor that cannot be exported, by name, or a model that cannot be copied.

    """
    model = _unwrap(model)
    _require_python(model)
    memo: dict[int, object] = {}
    dtypes, layouts = set(), []
    own = {id(parameter) for parameter in _reparametrized(model)}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _require_exportable(name, tensor)
        dtypes.add(tensor.dtype)
        if tensor.layout != torch.strided:
            layouts.append(name)
        memo[id(tensor)] = _plain(tensor, own)
    for tensor in _computed(model):
        memo[id(tensor)] = tensor.detach().clone()
    try:
        copied = copy.deepcopy(model, memo).eval()
    except Exception as error:
        raise ExportError(f"the model cannot be copied: {error}") from error
    _drop_compilation(copied)
    _make_permanent(copied)
    widened = dtypes & set(_WIDENED)
    notes = [
        f"{str(dtype).removeprefix('torch.')} parameters were widened to float32; values_dtype or "
        f"precision {str(dtype).removeprefix('torch.')} stores them in that type, without loss"
        for dtype in sorted(widened, key=str)
    ]
    if layouts:
        notes.append(f"sparse tensors were read as dense ones: {', '.join(layouts)}")
    known = dict(copied.named_parameters(remove_duplicate=False))
    renamed = masks and {
        name if name in known else _plain_name(name): torch.as_tensor(mask)
        for name, mask in masks.items()
    }
    return Copied(copied, renamed, bool(widened), tuple(notes))


def _unwrap(model: nn.Module) -> nn.Module:
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(original := getattr(model, "_orig_mod", None), nn.Module):
            model = original
        else:
            return model


def _require_python(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"its module {name}" if name else "the model"
            raise ExportError(
                f"{what} is a {type(module).__name__} of torch.jit, which torch.export cannot "
                "read. Export the Python module that it was made from, with "
                "load_state_dict(scripted.state_dict()); or write it with torch.onnx.export(model, "
                'inputs, "model.onnx", dynamo=False) and convert that file'
            )


def _plain_name(name: str) -> str:
    """Name a parameter as the copy does."""
    name = name.replace("_orig_mod.", "").removeprefix("module.")
    owner, _, rest = name.partition("parametrizations.")
    if rest:
        return owner + rest.partition(".")[0]
    return name.removesuffix("_orig")


def _require_exportable(name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        raise ExportError(f"{name} is not initialized; run the model once before the export")
    if tensor.device.type == "meta":
        raise ExportError(f"{name} lies on the meta device; load its values before the export")
    if tensor.layout not in (torch.strided, *_SPARSE):
        raise ExportError(
            f"{name} has the layout {tensor.layout}; convert it with .to_dense() before the "
            "export, its zeros are found again"
        )
    floating = tensor.is_floating_point() or tensor.is_complex()
    if floating and tensor.dtype not in (torch.float32, *_WIDENED):
        raise ExportError(
            f"{name} is {str(tensor.dtype).removeprefix('torch.')}; models of float32, float16 "
            "and bfloat16 can be exported, call model.float() on a copy first"
        )


def _plain(tensor: Tensor, own: set[int]) -> Tensor:
    """Return the copy's tensor for a parameter or buffer."""
    plain = tensor.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    if plain.dtype in _WIDENED:
        plain = plain.float()
    plain = plain.cpu()
    same = tensor.layout == torch.strided and plain.data_ptr() == tensor.data_ptr()
    if not isinstance(tensor, nn.Parameter):
        return plain.clone() if same else plain
    if same and id(tensor) not in own:
        return tensor
    return nn.Parameter(plain.clone() if same else plain, requires_grad=False)


def _reparametrized(model: nn.Module) -> Iterator[Tensor]:
    """Yield parameters that are overwritten when their reparametrization becomes permanent."""
    for module in model.modules():
        hooked = any(
            isinstance(hook, (prune.BasePruningMethod, WeightNorm))
            for hook in module._forward_pre_hooks.values()
        )
        if hooked or isinstance(module, parametrize.ParametrizationList):
            yield from module.parameters(recurse=False)


def _computed(model: nn.Module) -> Iterator[Tensor]:
    """Yield tensors that modules hold beside their parameters, which deepcopy refuses."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                yield value


def _drop_compilation(model: nn.Module) -> None:
    for module in model.modules():
        module._compiled_call_impl = None
        for key, child in list(module._modules.items()):
            if child is not None:
                module._modules[key] = _unwrap(child)


def _make_permanent(model: nn.Module) -> None:
    for module in list(model.modules()):
        for hook in list(module._forward_pre_hooks.values()):
            if isinstance(hook, prune.BasePruningMethod):
                # torch has no types for this module.
                prune.remove(module, hook._tensor_name)  # type: ignore[no-untyped-call]
            elif isinstance(hook, WeightNorm):
                remove_weight_norm(module, hook.name)
        if parametrize.is_parametrized(module):
            _drop_parametrizations(module)


def _drop_parametrizations(module: nn.Module) -> None:
    """Replace parametrized tensors by plain parameters.

    torch's own function takes the property off the class, which the user's module has as well.
    """
    names = module.get_submodule("parametrizations")._modules
    plain = {name: getattr(module, name).detach().clone() for name in names}
    del module._modules["parametrizations"]
    module.__class__ = type(module).__bases__[0]
    for name, tensor in plain.items():
        module.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
