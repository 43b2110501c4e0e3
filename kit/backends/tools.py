"""What a build needs: compilers from the system, cmake and ninja from there or from the package registry."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kit.errors import BuildError

_OLDEST_CMAKE = (3, 19)  # cmake_language(DEFER), by which the libraries get names of our own


@dataclass(frozen=True)
class Tools:
    """Programs by path, and the first line of what the C++ compiler says of itself."""

    cc: str
    cxx: str
    cmake: str
    ninja: str
    compiler: str


def find_tools(scratch: Path, run: Callable[[list[str], str], None]) -> Tools:
    """Return the tools; ``run`` runs a command under a title. cmake and ninja go into ``scratch`` where missing.

    Raises:
        BuildError: there is no C or C++ compiler, or cmake and ninja cannot be had.
    """
    cc = _compiler("CC", ("cc", "gcc", "clang"), "C")
    cxx = _compiler("CXX", ("c++", "g++", "clang++"), "C++")
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if cmake is None or _version(cmake) < _OLDEST_CMAKE or ninja is None:
        target = scratch / "tools"
        command = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        run([*command, "--only-binary=:all:", "--target", str(target), "cmake>=3.19", "ninja"], "get cmake and ninja")
        cmake, ninja = str(target / "cmake/data/bin/cmake"), str(target / "bin/ninja")
        for tool in (cmake, ninja):
            if not os.access(tool, os.X_OK):
                raise BuildError(f"pip installed cmake and ninja, but {tool} is not there; install both by your system")
    return Tools(cc, cxx, cmake, ninja, _says(cxx))


def _compiler(variable: str, names: tuple[str, ...], language: str) -> str:
    chosen = os.environ.get(variable)
    found = next((path for name in ((chosen,) if chosen else names) if (path := shutil.which(name))), None)
    if found is None:
        tried = f"${variable}={chosen}" if chosen else ", ".join(names)
        raise BuildError(
            f"there is no {language} compiler (tried {tried}); install one: `apt install g++` on Debian and Ubuntu, "
            "`dnf install gcc-c++` on Fedora, `xcode-select --install` on macOS"
        )
    return found


def _version(cmake: str) -> tuple[int, int]:
    found = re.search(r"(\d+)\.(\d+)", _says(cmake))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _says(program: str) -> str:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.splitlines() or [""])[0].strip()
