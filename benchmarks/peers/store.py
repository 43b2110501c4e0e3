"""The folder that peers and their files are kept in: made once, under a lock, and never left half made."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

import platformdirs
from filelock import FileLock

_TAIL_CHARACTERS = 2000
_NICE = 10


class PeerMissing(RuntimeError):
    """A peer that cannot be had on this machine; the message says why and what to do."""


def folder() -> Path:
    """$KIT_CACHE, or the user's cache folder of this system; peers have a folder of their own in it."""
    chosen = os.environ.get("KIT_CACHE")
    found = (Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("ggml-kit")) / "bench"
    found.mkdir(parents=True, exist_ok=True)
    return found


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the file or folder ``name`` of the store; where it is missing, ``make`` makes it first.

    ``make`` is given another path beside it and has to leave a file or a folder there, which is renamed when it
    returns; so what is in the store is complete. One process makes it, others wait. The name carries the version:
    another version is another name.
    """
    path = folder() / name
    with FileLock(path.with_name(path.name + ".lock")):
        if not path.exists():
            part = path.with_name(path.name + ".part")
            _remove(part)
            make(part)
            part.rename(path)
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def checked(path: Path, sha256: str) -> Path:
    """Return ``path`` if its hash is the one expected; raise PeerMissing otherwise."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise PeerMissing(f"{path.name}: its SHA-256 is {found}, expected {sha256}")
    return path


def run(*command: object, env: Mapping[str, str] | None = None) -> str:
    """Run a command at low priority and return what it printed; PeerMissing with its last words if it fails."""
    arguments = [str(part) for part in command]
    try:
        done = subprocess.run(
            arguments,
            env=dict(os.environ, **(env or {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_gently,
        )
    except OSError as error:
        raise PeerMissing(f"{arguments[0]} cannot be started: {error}") from error
    if done.returncode:
        tail = done.stdout[-_TAIL_CHARACTERS:].strip()
        raise PeerMissing(f"`{' '.join(arguments)}` ended with {done.returncode}:\n{tail}")
    return done.stdout


def _gently() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))


def environment(name: str, *requirements: str, check: str = "pass") -> Path:
    """Return the interpreter of a virtual environment of that name with those packages, made if it is missing.

    A virtual environment knows its own path, so it is made in place and marked when it is complete and the code
    ``check`` runs in it.
    """
    path = folder() / name
    python, mark = path / "bin" / "python", path / ".complete"
    wanted = "\n".join(requirements)
    with FileLock(path.with_name(path.name + ".lock")):
        if not mark.exists() or mark.read_text(encoding="utf-8") != wanted:
            _remove(path)
            venv.create(path, with_pip=True)
            run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
            run(python, "-c", check)
            mark.write_text(wanted, encoding="utf-8")
    return python


def fetched_sdist(requirement: str, filename: str, sha256: str) -> Path:
    """Return a source distribution from the package registry, fetched by pip and checked by its hash."""

    def fetch(part: Path) -> None:
        part.mkdir()
        package = requirement.partition("==")[0]
        run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--no-binary", package, "--dest", part, requirement),
        )
        checked(part / filename, sha256)

    return made_once(f"sdist-{filename.removesuffix('.tar.gz')}", fetch) / filename
