"""The bindings take more than three arguments by keyword: positions are too easily confused."""

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest

from fanin import ort_ops
from fanin.ort_ops import _native

# Two of these modules are not in every build.
MODULES = ["_native", "_cuda_emulation", "_cuda"]
STUB = Path(__file__).resolve().parents[2] / "ort_ops" / "_native.pyi"


def parameters(signature: str) -> list[str]:
    """Names in order from ``f(self: T, x: A[B, C], *, y: int = 3) -> D``, without self."""
    parts, depth = [""], 0
    for letter in signature[signature.index("(") + 1 : signature.rindex(") ->")]:
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    names = [part.split(":")[0].split("=")[0].strip() for part in parts]
    return [name for name in names if name not in ("self", "/", "")]


def signatures(module) -> dict[str, list[str]]:
    """Every function and method that takes an argument."""
    found = {}
    for owner in [module, *(value for _, value in inspect.getmembers(module, inspect.isclass))]:
        for name, value in vars(owner).items():
            text = (getattr(value, "__doc__", None) or "").partition("\n")[0]
            if callable(value) and text.startswith(f"{name}(") and parameters(text):
                found[f"{owner.__name__}.{name}"] = parameters(text)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_more_than_three_arguments_are_keyword_only(name):
    module = pytest.importorskip(f"fanin.ort_ops.{name}", reason="not in this build")
    found = signatures(module)
    assert found
    for function, names in found.items():
        if len([name for name in names if name != "*"]) > 3:
            assert "*" in names[:2], function


def test_the_stub_has_the_same_signatures():
    tree = ast.parse(STUB.read_text())
    stubs = {f"{_native.__name__}.{f.name}": f for f in tree.body if isinstance(f, ast.FunctionDef)}
    for owner in tree.body:
        if isinstance(owner, ast.ClassDef):
            methods = [part for part in owner.body if isinstance(part, ast.FunctionDef)]
            stubs |= {f"{owner.name}.{method.name}": method for method in methods}
    for function, names in signatures(_native).items():
        arguments = stubs[function].args
        said = [a.arg for a in arguments.args if a.arg != "self"]
        by_name = [a.arg for a in arguments.kwonlyargs]
        assert said + (["*", *by_name] if by_name else []) == names, function


def test_positional_numbers_are_refused():
    layer = {
        "values": np.ones((1, 1), np.float32),
        "indices": np.zeros((1, 1), np.int32),
        "rows": np.zeros(1, np.int32),
        "bias": np.zeros(1, np.float32),
    }
    conv = _native.PackedConv(**layer, in_channels=1, out_channels=1, kernel_shape=(1, 1))
    x = np.ones((1, 1, 1, 1), np.float32)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        conv.run(x, None, 0.0, 6.0, 8)
    assert conv.run(x, clip_max=0.5) == 0.5


def test_every_compiled_module_is_checked():
    folders = [Path(folder) for folder in ort_ops.__path__]
    built = {path.name.split(".")[0] for folder in folders for path in folder.glob("_*.so")}
    assert built <= set(MODULES)
