"""Which build of ggml this process uses: the wheel's, which came with kit, or one built on this machine.

A build lies in a folder with a `backend.json` that says what it was made for. One that does not fit this
machine or this kit is passed over with a warning: kit works with the wheel's libraries always.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.files import cache_folder, sha256

WHEEL = Path(__file__).resolve().parent.parent / "_ggml"
RECORD = "backend.json"
_NAMES = ("libgkit-base", "libgkit-cpu", "libgkit")


@dataclass(frozen=True)
class Choice:
    """The libraries of ``folder``, in load order; ``passed_over`` says why a build somebody chose is not used."""

    name: str
    folder: Path
    passed_over: str = ""

    @property
    def paths(self) -> list[Path]:
        """Base library first, the one that needs the others last."""
        found = {path.name.split(".so")[0]: path for path in sorted(self.folder.glob("libgkit*.so*"))}
        first, last = found.pop("libgkit-base", None), found.pop("libgkit", None)
        return [path for path in (first, *found.values(), last) if path is not None]

    def __str__(self) -> str:
        what = "the wheel's, for any CPU" if self.name == "wheel" else f"{self.name}, built on this machine"
        return f"ggml: {what} ({self.folder})" + (f"; {self.passed_over}" if self.passed_over else "")


def backends_folder() -> Path:
    """Where builds lie, each in a folder of its name."""
    return cache_folder() / "backends"


def choose() -> Choice:
    """Return what $KIT_BACKEND names (a build, a folder, or "wheel"), else what `use` recorded, else the wheel's."""
    name = os.environ.get("KIT_BACKEND") or chosen()
    if name in ("", "wheel"):
        return Choice("wheel", WHEEL)
    folder = Path(name).expanduser() if os.sep in name else backends_folder() / name
    wrong = what_is_wrong(folder)
    if wrong:
        return Choice("wheel", WHEEL, f"{name!r} is not used: {wrong}")
    return Choice(folder.name, folder)


def chosen() -> str:
    """The name `use` recorded last; empty for none."""
    try:
        found = json.loads((backends_folder() / "chosen.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    name = found.get("use") if isinstance(found, dict) else None
    return name if isinstance(name, str) else ""


def use(name: str) -> None:
    """Record which build processes to come use; "wheel" for none."""
    backends_folder().mkdir(parents=True, exist_ok=True)
    target = backends_folder() / "chosen.json"
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    partial.write_text(json.dumps({"use": name}), encoding="utf-8")
    partial.replace(target)


def what_is_wrong(folder: Path) -> str:
    """Say why the build in ``folder`` cannot be used here; empty where it can."""
    again = "`kit backend build cpu` makes it anew"
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files = dict(record["files"])
        flags, machine, made_for = set(record["cpu_flags"]), record["machine"], record["made_for"]
    except OSError:
        return f"there is no build in {folder}; {again}"
    except (ValueError, KeyError, TypeError):
        return f"{folder / RECORD} is damaged; {again}"
    if made_for != fingerprint(WHEEL):
        return f"it was built for another version of kit's ggml; {again}"
    missing = flags - cpu_flags()
    if machine != platform.machine() or missing:
        lacks = ", ".join(sorted(missing)[:4]) or str(machine)
        return f"it was built for another CPU (this one lacks {lacks}); {again}"
    if set(files) != {path.name for path in folder.glob("*.so*")} or {n.split(".so")[0] for n in files} != set(_NAMES):
        return f"{folder} does not hold the libraries its record names; {again}"
    changed = [name for name, digest in files.items() if sha256(folder / name) != digest]
    return f"{changed[0]} was changed since it was built; {again}" if changed else ""


def record(folder: Path, **details: Any) -> None:
    """Write down what the libraries in ``folder`` are and what they were built for."""
    found = {
        "files": {path.name: sha256(path) for path in sorted(folder.glob("*.so*"))},
        "made_for": fingerprint(WHEEL),
        "machine": platform.machine(),
        "cpu_flags": sorted(cpu_flags()),
        **details,
    }
    (folder / RECORD).write_text(json.dumps(found, indent=1), encoding="utf-8")


def fingerprint(folder: Path) -> str:
    """What tells one build of the base library, whose structures the extension was compiled for, from another."""
    base = next(iter(sorted(folder.glob("libgkit-base.so*"))), None)
    return sha256(base) if base is not None else ""


def cpu_flags() -> set[str]:
    """Instruction sets of this CPU as the system names them; empty where it does not say."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in ("flags", "Features"):
                    return set(value.split())
    except OSError:
        pass
    return set()
