"""Importing kit: quick, without a library, without a side effect; every name is where it says."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import sysconfig

import pytest

import kit


def _fresh(code: str, *arguments: object) -> str:
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_maps_no_library_and_is_quick(capsys: pytest.CaptureFixture[str]) -> None:
    code = """
import sys, time
before = set(sys.modules)
started = time.perf_counter()
import kit
print(time.perf_counter() - started)
maps = open("/proc/self/maps").read()
print("libgkit" in maps or "libggml" in maps or "_native" in maps)
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new & {"numpy", "cffi", "gguf", "matplotlib", "tqdm", "rich"}))
"""
    seconds, mapped, heavy = _fresh(code).splitlines()
    with capsys.disabled():
        print(f"\nimport kit: {1000 * float(seconds):.0f} ms")
    assert float(seconds) < 1
    assert mapped == "False"
    assert heavy == "[]"


def test_import_changes_nothing_in_the_process() -> None:
    code = """
import logging, os, signal, sys, threading
def state():
    return (dict(os.environ), [signal.getsignal(n) for n in (2, 7, 10, 15)], threading.active_count(),
            logging.getLogger().handlers[:], sys.getdlopenflags(), sys.getrecursionlimit(), sys.excepthook)
before = state()
import kit
assert state() == before
import kit.core.native
environment, *rest = state()
environment.pop("GGML_NO_BACKTRACE")
assert sys.getdlopenflags() == before[4]
assert environment == {k: v for k, v in before[0].items() if k != "GGML_NO_BACKTRACE"}
"""
    _fresh(code)


def test_every_public_name_is_there() -> None:
    assert sorted(set(kit.__all__)) == sorted(kit.__all__)
    for name in kit.__all__:
        assert getattr(kit, name) is not None, name
    assert set(kit.__all__) <= set(dir(kit))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tensorflow'"):
        kit.tensorflow  # noqa: B018


def test_the_door_opens_once() -> None:
    code = """
import importlib, sys
import kit.core.native as first
lib = first.lib
del sys.modules["kit.core.native"]
import kit.core.native as second
assert second.lib is lib
import kit
assert len(kit.devices()) >= 1
"""
    _fresh(code)


def test_a_kit_that_is_not_built_says_what_to_do(tmp_path: pathlib.Path) -> None:
    package = pathlib.Path(kit.__file__).parent
    for path in package.rglob("*.py"):
        copy = tmp_path / "kit" / path.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import kit
assert kit.__file__.startswith(sys.argv[1])
from kit.errors import NativeMissing
try:
    kit.devices()
except NativeMissing as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    message = _fresh(code, tmp_path)
    assert str(tmp_path / "kit" / "_ggml") in message
    assert "pip install -e ." in message


def test_an_extension_that_does_not_load_says_why(tmp_path: pathlib.Path) -> None:
    package = pathlib.Path(kit.__file__).parent
    for path in [*package.rglob("*.py"), *package.glob("_ggml/*")]:
        copy = tmp_path / "kit" / path.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    (tmp_path / "kit" / f"_native{suffix}").write_bytes(b"of another machine")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import kit
try:
    kit.devices()
except kit.KitError as error:
    print(error)
"""
    message = _fresh(code, tmp_path)
    assert message.startswith("kit._native does not load: ") and "rebuild" in message
