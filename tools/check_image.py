#!/usr/bin/env python3
"""Build examples/serving/Dockerfile without Docker, and run the image as a cluster would.

    make wheels    # into dist/; without a wheel there, the image compiles the kernels
    tools/check_image.py --work build/image

Needs root, buildah, mmdebstrap, util-linux, iproute2 and curl. Base images cannot be pulled
everywhere, so the base is a Debian with the Python of python:3.11-slim. The server is started as
process 1 of its namespaces, as a random user without HOME, capabilities or new privileges, on a
read-only root without a writable /tmp; it has to become healthy, answer a request, and end with 0
after SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "examples" / "serving" / "Dockerfile"
BASE, IMAGE = "localhost/python:3.11-slim", "localhost/fanin-serve"
PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
# So that pip in the build finds an index behind a proxy as it does here.
OF_THE_HOST = ("/etc/ssl/certs", "/etc/pip.conf")
# Mounts: the root file system read-only, the models, and what a container always has.
START = """\
set -e
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount --bind "$MODELS" "$ROOT/models"
mount -o remount,bind,ro "$ROOT/models"
mount -o remount,bind,ro "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
ip link set lo up
exec env -i "$@"
"""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "image")
    work = parser.parse_args().work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    image = Image(work)
    image.build()
    container = image.create()
    try:
        check(container)
    finally:
        container.remove()


class Image:
    """The image in a storage of its own, which is kept for the next time."""

    def __init__(self, work: Path) -> None:
        self.work = work
        places = [f"--root={work / 'storage'}", f"--runroot={work / 'run'}"]
        self.storage = ["buildah", "--storage-driver=vfs", *places]

    def buildah(self, *arguments: object) -> str:
        """Run buildah on this storage; returns what it prints."""
        return output(*self.storage, *arguments)

    def build(self) -> None:
        """Make the base unless it is there, and the image."""
        base = self.work / "base.tar"
        if not base.exists():
            making = base.with_name("base.part.tar")
            output("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", making)
            making.rename(base)
        if BASE not in self.buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
            scratch = self.buildah("from", "scratch")
            self.buildah("add", scratch, base, "/")
            self.buildah("commit", "--rm", scratch, BASE)
        given = [f"--volume={path}:{path}:ro" for path in OF_THE_HOST if Path(path).exists()]
        started = time.monotonic()
        options = [
            "--isolation=chroot",
            "--network=host",
            "--pull-never",
            f"--build-arg=BASE={BASE}",
        ]
        self.buildah("bud", *options, *given, "-f", DOCKERFILE, "-t", IMAGE, ROOT)
        print(f"built {IMAGE} in {time.monotonic() - started:.0f} s")

    def create(self) -> Container:
        """Create a container with its file system mounted."""
        return Container(self, self.buildah("from", "--pull-never", IMAGE))


class Container:
    """A container that has not been started: what its image says, and its root file system."""

    def __init__(self, image: Image, name: str) -> None:
        self.image, self.name = image, name
        self.root = Path(image.buildah("mount", name))
        config = json.loads(image.buildah("inspect", name))["Docker"]["config"]
        self.environment: list[str] = config["Env"]
        self.entrypoint: list[str] = config["Entrypoint"]
        self.user: str = config["User"]
        health = config.get("Healthcheck") or {"Test": ["CMD", *health_check()]}
        self.health: list[str] = health["Test"][1:]
        self.models = image.work / "models"

    def write_demo(self) -> None:
        """Write the demo's model into the folder that is mounted at /models."""
        self.models.mkdir(exist_ok=True)
        (self.root / "models").mkdir(exist_ok=True)
        run = ["run", "--isolation=chroot", "--user=0", f"--volume={self.models}:/models"]
        print(self.image.buildah(*run, self.name, "--", "fanin", "demo", "--out", "/models"))

    def start(self, user: int, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the entry point."""
        rights = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        become = ["/usr/bin/setpriv", f"--reuid={user}", "--regid=0", *rights]
        command = [
            *self.environment,
            "chroot",
            str(self.root),
            *become,
            *self.entrypoint,
            *arguments,
        ]
        apart = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        environment = {**os.environ, "ROOT": str(self.root), "MODELS": str(self.models)}
        return subprocess.Popen([*apart, "sh", "-c", START, "sh", *command], env=environment)

    def remove(self) -> None:
        """Remove it."""
        self.image.buildah("umount", self.name)
        self.image.buildah("rm", self.name)


def health_check() -> list[str]:
    """Read the health check of the Dockerfile, which images of the OCI format do not keep."""
    line = next(
        line for line in DOCKERFILE.read_text().splitlines() if line.startswith("HEALTHCHECK")
    )
    command: list[str] = json.loads(line.removeprefix("HEALTHCHECK CMD "))
    return command


def check(container: Container) -> None:
    """Start the server, ask it, stop it."""
    print(f"USER {container.user}, {shlex.join(container.entrypoint)}")
    assert int(container.user.split(":")[0]) > 0
    container.write_demo()
    user = random.randrange(100_000, 2**31)
    server = container.start(user, "digits=/models/digits.onnx", "--threads", "1")
    try:
        pid = wait_for_child(server)
        inside = ["nsenter", f"--target={pid}", "--net", "--mount", "--root", "--wd=/"]
        environment = ["env", "-i", *container.environment]
        wait_until_healthy(
            server, [*inside, f"--setuid={user}", "--setgid=0", *environment, *container.health]
        )
        status = Path(f"/proc/{pid}/status").read_text()
        facts = {line.split(":")[0]: line.split()[1:] for line in status.splitlines()}
        assert facts["Uid"] == [str(user)] * 4
        assert facts["NSpid"][-1] == "1"
        assert (int(facts["CapEff"][0], 16), int(facts["CapBnd"][0], 16)) == (0, 0)
        assert facts["NoNewPrivs"] == ["1"]
        assert "HOME" not in Path(f"/proc/{pid}/environ").read_text()
        for folder in ("/", "/tmp", "/models", "/opt/fanin"):
            refused = subprocess.run(
                [*inside, "touch", f"{folder}/new"], capture_output=True, text=True
            )
            assert "Read-only file system" in refused.stderr, refused
        print(f"healthy as user {user}, process 1, no capabilities, read-only root and /tmp")
        request = container.models / "request.json"
        where = "http://127.0.0.1:8000/v2/models/digits/infer"
        answer = json.loads(
            output("nsenter", f"--target={pid}", "--net", "curl", "-sf", where, "-d", f"@{request}")
        )
        print(f"answered {answer['outputs'][0]['data']}")
        assert len(answer["outputs"][0]["data"]) == 8
        os.kill(pid, signal.SIGTERM)
        print(f"exit status after SIGTERM: {server.wait(60)}")
        assert server.returncode == 0
    finally:
        server.kill()
        server.wait()


def wait_for_child(server: subprocess.Popen[bytes]) -> int:
    """Return the process that unshare has forked, as the host numbers it."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    while server.poll() is None:
        found = children.read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.05)
    sys.exit(f"the server ended with {server.returncode}")


def wait_until_healthy(server: subprocess.Popen[bytes], command: list[str]) -> None:
    """Repeat the health check until it passes."""
    deadline = time.monotonic() + 120
    while subprocess.run(command, capture_output=True).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"not healthy: {shlex.join(command)}")
        time.sleep(0.5)


def output(*command: object) -> str:
    """Run a command, with its output as errors say it; returns its standard output."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
