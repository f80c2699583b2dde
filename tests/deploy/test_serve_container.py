"""The Dockerfile and the KServe manifest: what can be checked without Docker and a cluster."""

import json
import re
import socket
import subprocess
import sys
import tomllib

import pytest

from ._serving import REPOSITORY, requires_serving

FOLDER = REPOSITORY / "examples" / "serving"
KNOWN = ("FROM", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT")


def instructions():
    """(instruction, arguments) of each line in the Dockerfile."""
    lines = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [tuple(line.split(None, 1)) for line in lines if line and not line.startswith("#")]


def arguments(name):
    return [rest for instruction, rest in instructions() if instruction == name]


def test_every_instruction_is_one_and_every_shell_step_parses():
    assert {name for name, _ in instructions()} <= set(KNOWN)
    assert instructions()[0][0] == "FROM"
    assert len(arguments("RUN")) == 4
    for step in arguments("RUN"):
        done = subprocess.run(["sh", "-n", "-c", step], capture_output=True, text=True)
        assert done.returncode == 0, f"{step}: {done.stderr}"


def test_it_ends_as_a_user_without_rights():
    last = instructions()[max(n for n, (name, _) in enumerate(instructions()) if name == "FROM") :]
    (user,) = [rest for name, rest in last if name == "USER"]
    assert user.isdigit()
    assert int(user) > 0
    added = next(step for step in arguments("RUN") if step.startswith("useradd"))
    assert f"--uid {user} " in added
    names = [name for name, _ in last]
    assert "RUN" not in names[names.index("USER") :]


def test_the_dockerfile_installs_what_exists():
    install = next(step for step in arguments("RUN") if step.startswith("pip install"))
    extra = re.search(r"\[(\w+)\]", install)[1]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert any(re.match("uvicorn", item) for item in project["optional-dependencies"][extra])
    source = next(rest for rest in arguments("COPY") if rest.startswith("--from"))
    assert source == "--from=build /wheels /wheels"
    assert arguments("FROM")[0].endswith(" AS build")


def test_its_commands_run_here():
    """Runs the entry point with --help, and the health check up to its request."""
    requires_serving()
    entry = json.loads(arguments("ENTRYPOINT")[0])
    assert entry[0] == "fanin"
    command = [sys.executable, "-m", *entry, "m=/models/m.onnx", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    program = json.loads(arguments("HEALTHCHECK")[0].removeprefix("CMD "))
    assert program[:2] == ["python", "-c"]
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, but not listening
        check = program[2].replace(":8000", f":{silent.getsockname()[1]}")
        done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert "URLError" in done.stderr  # without a server the check must fail


@pytest.fixture
def manifests():
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    return {item["kind"]: item for item in yaml.safe_load_all((FOLDER / "kserve.yaml").read_text())}


def test_the_manifest_agrees_with_itself_and_with_the_server(manifests):
    runtime, service = manifests["ServingRuntime"], manifests["InferenceService"]
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = [item["name"] for item in runtime["spec"]["supportedModelFormats"]]
    assert model["modelFormat"]["name"] in formats
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    (container,) = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container"  # the name that KServe requires
    port = container["ports"][0]["containerPort"]
    assert arguments("EXPOSE") == [str(port)]
    for probe, path in (("readinessProbe", "ready"), ("livenessProbe", "live")):
        assert container[probe]["httpGet"] == {"path": f"/v2/health/{path}", "port": port}
    given = dict(zip(container["args"][1::2], container["args"][2::2], strict=True))
    assert given["--threads"] == container["resources"]["limits"]["cpu"]
    grace = service["spec"]["predictor"]["terminationGracePeriodSeconds"]
    from fanin.deploy.serve import ServeSettings

    assert grace > ServeSettings.drain_delay + ServeSettings.drain_timeout


def test_the_container_of_the_manifest_has_no_rights(manifests):
    (container,) = manifests["ServingRuntime"]["spec"]["containers"]
    assert container["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": int(arguments("USER")[0]),
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
