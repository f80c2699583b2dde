"""docs/languages.md: its commands and its Python work, and what it says of Node.js is so."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fanin import ort_ops
from fanin.deploy import open_session

from ._serving import REPOSITORY

GUIDE = (REPOSITORY / "docs" / "languages.md").read_text(encoding="utf-8")
NODE_MODULES = REPOSITORY / ".cache" / "languages" / "node" / "node_modules"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with a file of fanin's as model.onnx, which carries the op's function."""
    from fanin.export import convert

    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 32), np.float32)
    weight[rng.random(weight.shape) > 0.1] = 0
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["input"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weight"], ["output"]),
        ],
        "dense",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 32])],
        [numpy_helper.from_array(weight, "weight")],
    )
    folder = tmp_path_factory.mktemp("exported")
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "dense.onnx")
    convert(folder / "dense.onnx", folder / "model.onnx", policy="condensed")
    return folder


def _expected(model):
    x = np.full((1, 1, 8, 8), 0.5, np.float32)
    return open_session(model, threads=2).run(None, {"input": x})[0]


def test_the_commands_of_the_page(exported, tmp_path):
    if not all(map(shutil.which, ("make", "cc", "cmake"))):
        pytest.skip("needs make, a C compiler and cmake")
    (block,) = re.findall(r"^```console\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    shutil.copyfile(exported / "model.onnx", tmp_path / "model.onnx")
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-ec", block], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    printed = re.findall(r"^-?\d[\d.e+-]*$", done.stdout, re.MULTILINE)
    expected = _expected(exported / "model.onnx").ravel()
    assert np.array(printed, np.float32).tolist() == [*expected, *expected]


def test_a_file_without_functions_needs_the_library(exported, monkeypatch):
    import onnxruntime

    monkeypatch.chdir(exported)
    (code,) = re.findall(r"^ *```python\n(.*?)^ *```", GUIDE, re.MULTILINE | re.DOTALL)
    exec(re.sub(r"^  ", "", code, flags=re.MULTILINE), {})
    assert (_expected("strict.onnx") == _expected("model.onnx")).all()
    onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match=r"CondensedGemm\(-1\) is not a registered function"):
        onnxruntime.InferenceSession("strict.onnx", providers=["CPUExecutionProvider"])


NODE = """
import ort from 'onnxruntime-node';
const [path, ops, ...names] = process.argv.slice(2);
const input = new ort.Tensor('float32', new Float32Array(64).fill(0.5), [1, 1, 8, 8]);
const attempts = [
  {},
  ...names.map((name) => ({ [name]: ops })),
  ...names.map((name) => ({ [name]: [ops] })),
  ...names.map((name) => ({ extra: { session: { [name]: ops } } })),
  ...names.map((name) => ({ executionProviders: [{ name: 'cpu', [name]: ops }] })),
];
for (const options of attempts) {
  try {
    const session = await ort.InferenceSession.create(path, options);
    const outputs = await session.run({ input });
    console.log(JSON.stringify(Array.from(outputs.output.data)));
  } catch (error) {
    console.log(JSON.stringify(error.message));
  }
}
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("node") and (NODE_MODULES / "onnxruntime-node").is_dir()),
    reason="onnxruntime-node is not installed: make languages",
)
def test_onnxruntime_node_registers_no_library(exported, tmp_path):
    """Files run through their functions; without them, no option makes the ops known."""
    import json

    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "run.mjs").write_text(NODE)
    model = onnx.load(exported / "model.onnx")
    del model.functions[:]
    onnx.save(model, tmp_path / "strict.onnx")
    names = ["customOpLibraries", "customOpsLibrary", "customOpsLibraries", "ortExtLibPath"]
    names += ["registerCustomOpsLibrary", "custom_op_library", "custom_ops_library"]

    def run(path):
        command = ["node", tmp_path / "run.mjs", path, ort_ops.get_library_path(), *names]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    with_functions, without = run(exported / "model.onnx"), run(tmp_path / "strict.onnx")
    assert len(with_functions) == len(without) == 1 + 4 * len(names)
    for output in with_functions:
        np.testing.assert_allclose([output], _expected(exported / "model.onnx"), rtol=1e-4)
    assert all("is not a registered function/op" in message for message in without)
