"""README's snippets run unchanged, from top to bottom."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_snippets_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    ran = []
    for language, code in BLOCKS:
        if language == "python":
            exec(compile(code, "README.md", "exec"), namespace)
        else:
            for line in code.splitlines():
                command = line.split()
                assert command[0] == "fanin"
                script = Path(sys.executable).parent / "fanin"
                result = subprocess.run(
                    [script, *command[1:]], capture_output=True, text=True, check=False
                )
                assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
                ran.append(command[1])
    assert ran == ["train", "export", "bench", "quantize"]
    printed = capsys.readouterr().out
    assert "['dense', 'condensed', 'dense']" in printed
    assert "(1, 10)" in printed
    assert namespace["report"].parity_error < 1e-5
    assert (tmp_path / "results" / "results.json").is_file()


def test_the_readme_has_at_most_120_lines():
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("picture", re.findall(r'(?:src|srcset)="([^"]+)"', README))
def test_every_picture_exists_for_both_themes(picture):
    other = {"light": "dark", "dark": "light"}
    twin = re.sub("light|dark", lambda theme: other[theme.group()], picture)
    assert (ROOT / picture).is_file()
    assert twin in README


def test_every_declared_dependency_has_its_reason():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(name for extra in project["project"]["optional-dependencies"].values() for name in extra),
    ]
    names = {re.match(r"[A-Za-z0-9_-]+", item).group() for item in declared} - {"fanin"}
    table = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    assert {name for name in names if not re.search(rf"\b{name}\b", table)} == set()
