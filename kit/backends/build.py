"""Building ggml's CPU library for exactly this machine: ``kit backend build cpu``."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kit.backends.source import VERSION, get_source, unpack
from kit.backends.tools import Tools, find_tools
from kit.core.libraries import backends_folder, record
from kit.errors import BuildError
from kit.registry import only_one, scratch_folder

OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "CMAKE_SKIP_RPATH": "ON",
    "GGML_NATIVE": "ON",
    "GGML_LLAMAFILE": "ON",
    "GGML_OPENMP": "OFF",  # an abort on one of OpenMP's threads could not be caught
    "GGML_CCACHE": "OFF",
    "GGML_BUILD_TESTS": "OFF",
    "GGML_BUILD_EXAMPLES": "OFF",
}
#: run by CMake once ggml's own files are read: the libraries get the private names kit's extension asks for
_NAMES = """\
cmake_language(DEFER CALL set_target_properties ggml-base PROPERTIES OUTPUT_NAME gkit-base)
cmake_language(DEFER CALL set_target_properties ggml-cpu PROPERTIES OUTPUT_NAME gkit-cpu)
cmake_language(DEFER CALL set_target_properties ggml PROPERTIES OUTPUT_NAME gkit)
"""
_STEP = re.compile(r"^\[(\d+)/(\d+)\]")
_TAIL = 25


def build_cpu(*, progress: bool = True) -> Path:
    """Build the CPU library with all this machine's instructions; return its folder. An older build is replaced.

    Waits while another process builds. What was there stays until the new libraries have computed something.

    Raises:
        BuildError: no compiler, or it failed; the message has its last words. FetchError: no source.
    """
    folder = backends_folder() / "cpu"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with only_one(folder, "building a backend", progress), scratch_folder(folder.parent, ".cpu-") as scratch:
            fresh = _build(scratch, progress)
            if folder.exists():
                folder.rename(scratch / "old")
            fresh.rename(folder)
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise  # kit's own FetchError
        raise BuildError(f"writing to {folder.parent} failed: {error}") from error
    return folder


def _build(scratch: Path, progress: bool) -> Path:
    run = _Runner(scratch / "build.log", progress)
    tools = find_tools(scratch, run)
    source = unpack(get_source(backends_folder(), progress=progress), scratch / "source")
    made, fresh = scratch / "build", scratch / "cpu"
    names = scratch / "names.cmake"
    names.write_text(_NAMES, encoding="utf-8")
    options = [f"-D{key}={value}" for key, value in OPTIONS.items()]
    programs = [f"-DCMAKE_C_COMPILER={tools.cc}", f"-DCMAKE_CXX_COMPILER={tools.cxx}"]
    programs += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools.ninja}", f"-DCMAKE_PROJECT_ggml_INCLUDE={names}"]
    run([tools.cmake, "-S", str(source), "-B", str(made), *options, *programs], "configure")
    jobs = len(os.sched_getaffinity(0))
    run([tools.cmake, "--build", str(made), "-j", str(jobs)], f"compile ggml {VERSION}")
    fresh.mkdir()
    for name in ("gkit-base", "gkit-cpu", "gkit"):
        (library,) = made.rglob(f"lib{name}.so.0")
        shutil.copyfile(library, fresh / library.name)
    _record(fresh, tools)
    _try_out(fresh, run)
    return fresh


def _record(folder: Path, tools: Tools) -> None:
    record(folder, ggml=VERSION, options=OPTIONS, compiler=tools.compiler, built=time.strftime("%Y-%m-%d %H:%M:%S"))


def _try_out(folder: Path, run: _Runner) -> None:
    """Let a process of its own compute with the new libraries before anybody relies on them."""
    code = (
        "import numpy as np, kit; from kit.core.native import libraries\n"
        "assert not libraries.passed_over, libraries.passed_over\n"
        "rng = np.random.default_rng(0); w, x = rng.random((64, 256)), rng.random((40, 256))\n"
        "with kit.Context(kit.Backend(n_threads=1)) as ctx:\n"
        "    for kind in ('f32', 'f16', 'q8_0', 'q4_1'):\n"
        "        weight = ctx.tensor((64, 256), kind).set(w); given = ctx.input((40, 256)).set(x)\n"
        "        found = ctx.graph(kit.ops.mul_mat(weight, given)).compute().numpy()\n"
        "        assert np.abs(found - x @ weight.numpy().T).max() < 1, kind\n"
    )
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    run([sys.executable, "-c", code], "try it out", {"KIT_BACKEND": str(folder), "PYTHONPATH": path})


class _Runner:
    """Runs commands with their output in a log; shows steps as a bar; kills the whole group on interrupt."""

    def __init__(self, log: Path, progress: bool) -> None:
        self._log = log
        self._progress = progress

    def __call__(self, command: list[str], title: str, environment: dict[str, str] | None = None) -> None:
        """Run ``command``.

        Raises:
            BuildError: it failed; with its last lines.
        """
        last: deque[str] = deque(maxlen=_TAIL)
        with (
            tqdm(desc=title, bar_format="{desc} {n_fmt}/{total_fmt} [{elapsed}]", disable=not self._progress) as bar,
            self._log.open("a", encoding="utf-8") as log,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            ) as process,
        ):
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    log.write(line)
                    last.append(line.rstrip())
                    self._show(bar, line)
                code = process.wait()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if code:
            raise BuildError(f"'{title}' failed (exit {code}); its last lines:\n  " + "\n  ".join(last))

    def _show(self, bar: Any, line: str) -> None:
        step = _STEP.match(line)
        if step:
            bar.total = int(step[2])
            bar.update(int(step[1]) - bar.n)
