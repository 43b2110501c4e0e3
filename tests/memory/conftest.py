"""What the tests of the memory room share."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

HERE = pathlib.Path(__file__).parent
Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def whisper_model() -> pathlib.Path:
    return HERE / "data" / "whisper-for-tests-tiny.en.bin"


@pytest.fixture
def run_script(tmp_path: pathlib.Path) -> Run:
    """Run a program in a Python of its own; it must end well within a minute."""

    def run(source: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(source)
        command = [sys.executable, "-X", "faulthandler", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
