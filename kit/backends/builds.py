"""The builds of ggml that lie in the cache: list, choose, remove."""

from __future__ import annotations

import difflib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from kit.core import libraries
from kit.core.libraries import RECORD, WHEEL, Choice, backends_folder, choose, what_is_wrong
from kit.errors import ArgumentError


@dataclass(frozen=True)
class Build:
    """One build: its folder and bytes; ``problem`` says why it cannot be used here, ``details`` what made it."""

    name: str
    folder: Path
    nbytes: int
    problem: str
    details: str
    in_use: bool


def builds() -> list[Build]:
    """Return the wheel's libraries and every build in the cache; ``in_use`` is what a process started now uses."""
    chosen = choose()
    found = [_describe("wheel", WHEEL, "", "any CPU", chosen)]
    if backends_folder().is_dir():
        for folder in sorted(path for path in backends_folder().iterdir() if (path / RECORD).is_file()):
            if not folder.name.startswith("."):
                found.append(_describe(folder.name, folder, what_is_wrong(folder), _details(folder), chosen))
    return found


def use_build(name: str) -> Choice:
    """Let processes to come use the build ``name``, or "wheel"; return what that is.

    Raises:
        ArgumentError: there is no such build, or it does not fit this machine or this kit.
    """
    _find(name)
    problem = "" if name == "wheel" else what_is_wrong(backends_folder() / name)
    if problem:
        raise ArgumentError(f"{name!r} cannot be used: {problem}")
    libraries.use(name)
    return choose()


def remove_build(name: str) -> Path:
    """Remove the build ``name``; processes that have it loaded keep it. Returns where it lay.

    Raises:
        ArgumentError: there is no such build.
    """
    folder = _find(name).folder
    if folder == WHEEL:
        raise ArgumentError("the wheel's libraries are part of kit; `pip uninstall ggml-kit` removes them")
    if libraries.chosen() == name:
        libraries.use("wheel")
    shutil.rmtree(folder)
    return folder


def _find(name: str) -> Build:
    known = {build.name: build for build in builds()}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "; `kit backend build cpu` makes one"
        raise ArgumentError(f"there is no build {name!r} (there are: {', '.join(known)}){hint}")
    return known[name]


def _describe(name: str, folder: Path, problem: str, details: str, chosen: Choice) -> Build:
    nbytes = sum(path.stat().st_size for path in folder.glob("*.so*"))
    return Build(name, folder, nbytes, problem, details, folder == chosen.folder)


def _details(folder: Path) -> str:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return f"ggml {record['ggml']}, {record['compiler']}, {record['built']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
