"""Build, check and measure the CUDA kernels on the GPU of this machine; see gpu_check.sh.

Every part runs in a process of its own, so that an error on the device ends that part alone, and
writes its results as it goes: a run that is cut off leaves what it has.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gpu_check_report

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools"
# The most that a part may take, in seconds. What is left goes to the benchmarks, which stand last
# and stop by themselves.
LIMITS = {"build": 170, "correctness": 40, "memcheck": 35, "racecheck": 35, "ort": 50}
LIMITS |= {"conv": 15, "conv memcheck": 15}
RESERVE = 8


def say(text: str) -> None:
    """Print with the time since the start."""
    print(f"[{time.monotonic() - START:5.0f} s] {text}", flush=True)


START = time.monotonic()


def command_output(*command: str) -> str:
    """Return what a command prints, or why it does not."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not available: {error}"


def machine(dry: bool) -> dict[str, Any]:
    """Card, driver, clocks, versions and commit."""
    query = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,memory.total,power.limit"
    smi = command_output("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
    values = smi.split("\n")[0].split(", ")
    names = query.split(",")
    gpu = dict(zip(names, values, strict=False)) if len(values) == len(names) else {"name": smi}
    commit = os.environ.get("FANIN_COMMIT") or command_output(
        "git", "-C", str(ROOT), "rev-parse", "HEAD"
    )
    return {
        "gpu": {"name": "dry run"} if dry else gpu,
        "nvcc": command_output("nvcc", "--version").split("\n")[-1],
        "commit": commit or "unknown",
        "dirty": bool(command_output("git", "-C", str(ROOT), "status", "--porcelain")),
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def build(work: Path, limit: float, dry: bool) -> dict[str, Any]:
    """Install the package into a folder, with kernels for this card alone."""
    environment = dict(os.environ)
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 2))
    options = ["-C", "cmake.define.FANIN_CUDA=OFF", "-C", "cmake.define.FANIN_EMULATION=ON"]
    architecture = "none"
    if not dry:
        query = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
        architecture = command_output(*query).split("\n")[0].replace(".", "")
        options = [
            "-C",
            "cmake.define.FANIN_CUDA=ON",
            "-C",
            f"cmake.define.CMAKE_CUDA_ARCHITECTURES={architecture}-real",
        ]
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"),
        *("--no-build-isolation", "--disable-pip-version-check"),
        *("--target", str(work / "site"), "-C", f"build-dir={work / 'build'}", *options, str(ROOT)),
    ]
    log = work / "build.log"
    start = time.monotonic()
    with log.open("w") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, timeout=limit
        )
    seconds = round(time.monotonic() - start, 1)
    result: dict[str, Any] = {"seconds": seconds, "architecture": architecture}
    if done.returncode:
        result["error"] = log.read_text()[-3000:]
    return result


def run_part(name: str, command: list[str], work: Path, limit: float, site: Path) -> dict[str, Any]:
    """Run a part, and return what it has written to its JSON file."""
    path = work / f"{name.replace(' ', '-')}.json"
    inherited = os.environ.get("PYTHONPATH", "")
    path_list = ":".join(filter(None, [str(site), str(TOOLS), inherited]))
    environment = {**os.environ, "PYTHONPATH": path_list, "FANIN_CHECK_JSON": str(path)}
    environment["FANIN_CHECK_SECONDS"] = str(max(1.0, limit - 3))
    start = time.monotonic()
    error = None
    try:
        done = subprocess.run(command, env=environment, timeout=limit, cwd=work)
        if done.returncode:
            error = f"exit status {done.returncode}"
    except subprocess.TimeoutExpired:
        error = f"stopped after {limit:.0f} s"
    except OSError as missing:
        error = str(missing)
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    result["seconds"] = round(time.monotonic() - start, 1)
    if error:
        result["error"] = error
    return result


def sanitizer(tool: str, script: str) -> list[str]:
    """Return the command of small cases under a tool of compute-sanitizer."""
    return [
        *("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"),
        *(sys.executable, str(TOOLS / script), "--small"),
    ]


def parts(dry: bool) -> dict[str, list[str]]:
    """Return the parts and their commands in order."""
    kernels = [sys.executable, str(TOOLS / "gpu_check_kernels.py")]
    conv = [sys.executable, str(TOOLS / "gpu_check_conv.py")]
    bench = [sys.executable, str(TOOLS / "gpu_check_bench.py")]
    if dry:
        emulated = {"correctness": [*kernels, "--emulated"], "conv": [*conv, "--emulated"]}
        return {**emulated, "bench": [*bench, "--dry-run"]}
    listed = {"correctness": kernels, "conv": conv}
    # The convolution has no shared memory to race for.
    listed |= {tool: sanitizer(tool, "gpu_check_kernels.py") for tool in ("memcheck", "racecheck")}
    listed["conv memcheck"] = sanitizer("memcheck", "gpu_check_conv.py")
    if (TOOLS / "gpu_check_ort.py").exists():
        listed["ort"] = [sys.executable, str(TOOLS / "gpu_check_ort.py")]
    return {**listed, "bench": bench}


def main() -> int:
    """Run all parts and write the report after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="no GPU: emulation, invented times")
    parser.add_argument("--only", nargs="*", help="parts to run (the build always runs)")
    arguments = parser.parse_args()
    limit = float(os.environ.get("LIMIT", "345"))
    folder = Path(os.environ.get("OUT", ROOT / "docs" / "results"))
    if arguments.dry_run and "OUT" not in os.environ:
        folder = ROOT / "out" / "gpu-dry-run"
    folder.mkdir(parents=True, exist_ok=True)

    def left() -> float:
        return limit - (time.monotonic() - START) - RESERVE

    report: dict[str, Any] = {"schema_version": 1, **machine(arguments.dry_run), "parts": {}}
    card = report["gpu"]["name"].replace("NVIDIA ", "").strip().lower()
    name = "gpu-" + ("".join(c if c.isalnum() else "-" for c in card)[:40].strip("-") or "unknown")

    def save() -> None:
        text = json.dumps(report, separators=(",", ":"))
        (folder / f"{name}.json").write_text(text + "\n")
        (folder / f"{name}.md").write_text(gpu_check_report.markdown(report))

    say(f"{report['gpu']} at commit {report['commit'][:12]}")
    with tempfile.TemporaryDirectory(prefix="fanin-gpu-") as temporary:
        work = Path(temporary)
        say("build")
        try:
            if arguments.dry_run and importlib.util.find_spec("fanin"):
                report["parts"]["build"] = {"seconds": 0.0, "architecture": "as installed"}
            else:
                report["parts"]["build"] = build(
                    work, min(LIMITS["build"], left()), arguments.dry_run
                )
        except subprocess.TimeoutExpired:
            report["parts"]["build"] = {"error": "the build took too long"}
        save()
        say(f"build: {report['parts']['build']}")
        if "error" in report["parts"]["build"]:
            return 1
        for part, command in parts(arguments.dry_run).items():
            if arguments.only and part not in arguments.only:
                continue
            say(part)
            seconds = min(LIMITS.get(part, left()), left())
            report["parts"][part] = run_part(part, command, work, max(seconds, 1), work / "site")
            save()
            ended = report["parts"][part]
            say(f"{part}: {ended['seconds']} s, {ended.get('error', 'ended by itself')}")
    print((folder / f"{name}.md").read_text())
    say(f"written to {folder / name}.json")
    return 1 if any("error" in part for part in report["parts"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
