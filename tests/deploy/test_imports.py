"""What importing fanin.deploy costs a serving process."""

import json
import subprocess
import sys

import pytest

HEAVY = ["torch", "onnxruntime", "onnx", "matplotlib", "rich"]


def loaded_after(code):
    tell = f"import json, sys; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    command = [sys.executable, "-c", f"{code}; {tell}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_deploy_loads_neither_torch_nor_onnxruntime():
    assert loaded_after("import fanin.deploy") == []


def test_importing_the_benchmarks_and_the_doctor_loads_neither_torch_nor_onnx():
    loaded = loaded_after("import fanin.deploy.bench, fanin.deploy.doctor")
    assert not {"torch", "onnx", "onnxruntime", "matplotlib"} & set(loaded)


def test_opening_a_session_and_the_doctor_need_no_torch_and_no_onnx(save_condensed):
    loaded = loaded_after(
        "import sys; sys.modules['torch'] = sys.modules['onnx'] = None; "
        "from fanin.deploy import open_session; from fanin.deploy.doctor import run_checks; "
        f"open_session({str(save_condensed())!r}); run_checks(); "
        "del sys.modules['torch'], sys.modules['onnx']"
    )
    assert loaded == ["onnxruntime"]


def test_the_server_loads_neither_torch_nor_onnx_and_its_settings_no_framework():
    light = "import fanin.deploy.serve, fanin.deploy.serve.triton, fanin.deploy.serve.repository"
    framework = "import sys; sys.modules['fastapi'] = sys.modules['uvicorn'] = None"
    assert loaded_after(f"{framework}; {light}") == []
    pytest.importorskip("fastapi", reason="pip install 'fanin[serve]'")
    assert loaded_after("import fanin.deploy.serve.server") == []


def test_serving_a_request_needs_no_torch_and_no_onnx(save_condensed):
    pytest.importorskip("fastapi", reason="pip install 'fanin[serve]'")
    loaded = loaded_after(
        "import sys; sys.modules['torch'] = sys.modules['onnx'] = None; "
        "from fanin.deploy.serve import ServeSettings; "
        "from fanin.deploy.serve.app import create_app; "
        f"app = create_app(ServeSettings.from_dict({{'models': [{str(save_condensed())!r}]}})); "
        "app.state.fanin.open(); app.state.fanin.close(); "
        "del sys.modules['torch'], sys.modules['onnx']"
    )
    assert loaded == ["onnxruntime"]
