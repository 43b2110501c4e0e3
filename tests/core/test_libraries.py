"""Which ggml a process uses: a build that fits, else the wheel's with a word about why."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from kit.core import libraries

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A build called ``mine`` that is the wheel's own libraries, under a cache of the test's own."""
    monkeypatch.setenv("KIT_CACHE", str(tmp_path))
    monkeypatch.delenv("KIT_BACKEND", raising=False)
    folder = tmp_path / "backends" / "mine"
    shutil.copytree(libraries.WHEEL, folder)
    libraries.record(folder, ggml="0.20.2", compiler="none", built="now")
    return folder


def in_a_new_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=True
    )


SHOW = """
import logging; logging.basicConfig()
import kit
kit.devices()
maps = open('/proc/self/maps').read()
print(sorted({line.split()[-1] for line in maps.splitlines() if 'libgkit' in line}))
"""


def test_without_a_choice_it_is_the_wheels(build):
    assert libraries.choose().folder == libraries.WHEEL
    assert [path.name.split(".")[0] for path in libraries.choose().paths] == ["libgkit-base", "libgkit-cpu", "libgkit"]


def test_a_build_chosen_by_name_or_by_the_environment_is_what_a_process_loads(build):
    expected = str(sorted(str(path) for path in build.glob("*.so*")))
    assert in_a_new_process(SHOW, KIT_BACKEND="mine").stdout.strip() == expected
    libraries.use("mine")
    assert in_a_new_process(SHOW).stdout.strip() == expected
    assert str(libraries.WHEEL) in in_a_new_process(SHOW, KIT_BACKEND="wheel").stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"made_for": "another"}, "another version of kit's ggml"),
        ({"cpu_flags": ["avx9"]}, "lacks avx9"),
        ({"machine": "vax"}, "another CPU"),
        ({"files": {}}, "does not hold the libraries"),
        ({"files": None}, "damaged"),
    ],
)
def test_a_build_that_does_not_fit_is_passed_over(build, change, words):
    record = build / libraries.RECORD
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    libraries.use("mine")
    found = libraries.choose()
    assert found.folder == libraries.WHEEL and words in found.passed_over
    assert "kit backend build cpu" in found.passed_over


def test_a_library_that_was_changed_is_passed_over_with_a_warning(build):
    with (build / "libgkit-cpu.so.0").open("ab") as file:
        file.write(b"x")
    done = in_a_new_process(SHOW, KIT_BACKEND="mine")
    assert str(libraries.WHEEL) in done.stdout
    assert "libgkit-cpu.so.0 was changed" in done.stderr and "using the wheel's" in done.stderr


def test_a_build_that_is_not_there_is_passed_over(build):
    shutil.rmtree(build)
    libraries.use("mine")
    assert "there is no build in" in libraries.choose().passed_over
    (build.parent / "chosen.json").write_text("{")
    assert libraries.choose().passed_over == ""
