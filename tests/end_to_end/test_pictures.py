"""The pictures in docs/pictures are those that their script draws."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_committed_pictures_are_what_the_script_draws():
    script = ROOT / "tools" / "draw_pictures.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
