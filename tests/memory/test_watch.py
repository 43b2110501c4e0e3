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


PIECES = """
import atexit, os, sys, threading, time
import numpy as np
import kit
backend = kit.Backend(n_threads=1)
def piece(name="mask"):
    context = kit.Context(backend)
    context.input((1000,), "f32", name=name).set(np.zeros(1000, np.float32))
    return context.detach()
"""

ENDINGS = {
    "a list of the module grows": ("kept = []\nfor _ in range(10): kept.append(piece())", 1, "growth"),
    "a list of a class grows": (
        "class Server:\n    kept = []\nfor _ in range(10): Server.kept.append(piece())",
        1,
        "growth",
    ),
    "one thing in a global": ("kept = piece()", 0, "no leak"),
    "one thing in a module beside it": ("import helper\nhelper.kept = piece()", 0, "no leak"),
    "a thread frees it later": (
        "kept = piece()\n"
        "threading.Thread(target=lambda: (threading.main_thread().join(), time.sleep(0.2), kept.close())).start()",
        0,
        "no leak",
    ),
    "an exit handler frees it": ("import ctypes\nlost = piece()\natexit.register(lost.close)", 0, "no leak"),
    "a reference nobody has": (
        "import ctypes\nlost = piece()\nctypes.pythonapi.Py_IncRef(ctypes.py_object(lost))",
        1,
        "leaked at 1 place",
    ),
    "a daemon thread is in the middle": (
        "def churn():\n    while True:\n        piece().close()\n"
        "threading.Thread(target=churn, daemon=True).start()\ntime.sleep(0.2)",
        0,
        "no leak",
    ),
    "it goes to another folder": ("os.mkdir('sub'); os.chdir('sub')", 0, "no leak"),
    "its errors go nowhere": ("sys.stdout.close(); sys.stderr.close(); os.close(2)", 0, ""),
    "it is interrupted": ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    "its exception hook fails": ("sys.excepthook = lambda *what: 1 / 0\nraise ValueError", 1, "ZeroDivisionError"),
    "a child of it ends like it": ("sys.exit(0) if os.fork() == 0 else os.wait()", 0, "no leak"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_verdict_falls_when_the_program_has_wholly_ended(tmp_path: pathlib.Path, ending: str) -> None:
    code, expected, text = ENDINGS[ending]
    (tmp_path / "helper.py").write_text("kept = None\n")
    (tmp_path / "program.py").write_text(PIECES + code + "\n")
    done = watch(tmp_path, "-o", "out.txt", "program.py")
    assert done.returncode == expected, done.stderr
    assert text in done.stderr
    assert done.stderr.count("kit watch:") == (1 if text else 0)
    assert (tmp_path / "out.txt").read_text()


def test_a_traceback_begins_in_the_program(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text("def f():\n    raise ValueError('x')\nf()\n")
    lines = watch(tmp_path, "program.py").stderr.splitlines()
    frames = [line for line in lines if line.lstrip().startswith("File ")]
    assert [("program.py" in frame) for frame in frames] == [True, True]


def test_modules_and_folders_run_as_python_runs_them(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys; print(__name__, sys.argv[1:])\n")
    for how in (["-m", "package"], ["package"]):
        done = watch(tmp_path, "-o", "out.json", *how, "-x", "y")
        assert (done.returncode, done.stdout) == (0, "__main__ ['-x', 'y']\n"), done.stderr


def test_a_report_of_an_unknown_form_is_refused_before_anything_runs(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text("print('ran')\n")
    done = watch(tmp_path, "-o", "out.pdf", "program.py")
    assert done.returncode == 2
    assert "out.pdf" in done.stderr
    assert not done.stdout


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
