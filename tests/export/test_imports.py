from __future__ import annotations

import subprocess
import sys

import pytest

from .._waiting import PATIENCE


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return done.stdout


def test_package_and_its_format_need_numpy_alone():
    code = """
import sys
for name in ("torch", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "safetensors"):
    sys.modules[name] = None
import fanin.export, numpy
fanin.export.CondensedWeight.from_dense(numpy.eye(2, dtype=numpy.float32))
print("done")
"""
    assert python(code) == "done\n"


@pytest.mark.parametrize(
    ("missing", "name", "extra"), [("torch", "export", "train"), ("onnx", "inspect", "export")]
)
def test_missing_package_is_named_with_the_extra_that_brings_it(missing, name, extra):
    code = f"""
import sys
sys.modules[{missing!r}] = None
import fanin.export
try:
    fanin.export.{name}
except ModuleNotFoundError as error:
    print(error)
"""
    expected = f"fanin.export.{name} needs {missing}; run: pip install 'fanin[{extra}]'\n"
    assert python(code) == expected


def test_op_models_and_inspection_do_not_import_torch():
    code = """
import sys
sys.modules["torch"] = None
import fanin.export.onnx_op, fanin.export.onnx_inspect, fanin.export.passes.fuse_activation
print("done")
"""
    assert python(code) == "done\n"


def test_unknown_name_is_an_attribute_error():
    import fanin.export

    with pytest.raises(AttributeError, match="has no attribute 'exprot'"):
        _ = fanin.export.exprot
    assert "export" in dir(fanin.export)


def test_process_that_registered_the_schema_ends():
    # onnx 1.19 hangs here when the schema is still registered.
    assert python("import fanin.export as e; e.register_schemas(); print('done')") == "done\n"
