"""Somebody else's program and somebody else's tests."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
import kit
assert __name__ == "__main__" and sys.argv[1:] == ["-x", "y"], sys.argv
import helper
leak = {leak}
backend = kit.Backend(n_threads=1)
def work():
    context = kit.Context(backend)
    context.input((1000,), "f32", name="mask").set(np.zeros(1000, np.float32))
    if leak:
        helper.kept.append(context.detach())  # HERE
    else:
        context.close()
for _ in range(10):
    work()
sys.exit({code})
"""


def watch(folder: pathlib.Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys, kit.memory.watch as w; sys.exit(w.main(sys.argv[1:]))", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("leak", "code", "expected"), [(False, 0, 0), (True, 0, 1), (True, 7, 7), (False, "'bad'", 1)])
def test_exit_code_verdict_and_report(tmp_path: pathlib.Path, leak: bool, code: object, expected: int) -> None:
    (tmp_path / "helper.py").write_text("kept = []\n")
    source = PROGRAM.format(leak=leak, code=code)
    (tmp_path / "program.py").write_text(source)
    done = watch(tmp_path, "-o", "out.json", "program.py", "-x", "y")
    assert done.returncode == expected, done.stderr
    leaks = json.loads((tmp_path / "out.json").read_text())["leaks"]
    assert bool(leaks) == leak
    if leak:
        line = next(i for i, text in enumerate(source.splitlines(), 1) if ".set(np.zeros" in text)
        assert f"program.py:{line} in work" in done.stderr
        assert "'mask'" in done.stderr
    else:
        assert "no leak" in done.stderr


def test_a_program_that_raises_shows_its_traceback(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text("raise RuntimeError('broken')\n")
    done = watch(tmp_path, "program.py")
    assert done.returncode == 1
    assert "RuntimeError: broken" in done.stderr
    assert (tmp_path / "kit-memory.html").read_text().startswith("<!doctype html>")


TESTS = """
import numpy as np, pytest, kit
kept = []
def use(n, leak):
    context = kit.Context()
    context.input((n,), "f32", name="mask").set(np.zeros(n, np.float32))
    kept.append(context.detach()) if leak else context.close()
@pytest.mark.no_ggml_leaks
def test_clean(): use(100, False)
@pytest.mark.no_ggml_leaks
def test_leaky(): use(100, True)
@pytest.mark.limit_ggml_memory("1 MB")
def test_small(): use(100, False)
@pytest.mark.limit_ggml_memory("1 MB")
def test_large(): use(500_000, False)
@pytest.mark.no_ggml_leaks
def test_fails_by_itself(): assert 1 == 2
def test_fixture(ggml_memory):
    use(100, False)
    assert ggml_memory.report().peak > 400
def test_unmarked(): use(100, True)
"""


def test_pytest_plugin(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--strict-markers", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    outcome = {
        line.split("::")[1].split()[0]: line.split()[0] for line in done.stdout.splitlines() if "test_it.py::" in line
    }
    failed = {"test_leaky", "test_large", "test_fails_by_itself"}
    assert outcome == {
        name: "FAILED" if name in failed else "PASSED"
        for name in (*failed, "test_clean", "test_small", "test_fixture", "test_unmarked")
    }, done.stdout
    assert "'mask'" in done.stdout
    assert "the limit is 1 MB" in done.stdout
    assert "assert 1 == 2" in done.stdout
