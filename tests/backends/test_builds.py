"""Builds of ggml for this machine: made, listed, chosen, removed."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

import kit
from kit.backends.build import build_cpu
from kit.backends.builds import builds, remove_build, use_build
from kit.backends.source import SHA256, get_source
from kit.cli import main
from kit.core import libraries
from kit.errors import BuildError, FetchError

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KIT_BACKEND", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def mine(cache):
    """A build called ``mine`` that is the wheel's own libraries."""
    folder = cache / "backends" / "mine"
    shutil.copytree(libraries.WHEEL, folder)
    libraries.record(folder, ggml="0.20.2", compiler="some compiler", built="now")
    return folder


def test_builds_are_listed_chosen_and_removed(mine):
    assert [(build.name, build.in_use) for build in builds()] == [("mine", False), ("wheel", True)][::-1]
    assert use_build("mine").folder == mine
    assert {build.name: build.in_use for build in builds()} == {"wheel": False, "mine": True}
    assert use_build("wheel").folder == libraries.WHEEL
    use_build("mine")
    assert remove_build("mine") == mine and not mine.exists()
    assert [(build.name, build.in_use) for build in builds()] == [("wheel", True)]


def test_a_build_that_is_not_there_is_told_with_what_is(mine):
    with pytest.raises(kit.ArgumentError, match=r"no build 'mime' \(there are: wheel, mine\); did you mean 'mine'"):
        use_build("mime")
    with pytest.raises(kit.ArgumentError, match="part of kit"):
        remove_build("wheel")


def test_a_build_for_another_machine_cannot_be_chosen(mine):
    (mine / "libgkit.so.0").write_bytes(b"no library")
    with pytest.raises(kit.ArgumentError, match=r"libgkit\.so\.0 was changed"):
        use_build("mine")
    assert libraries.chosen() == ""


def test_the_command_line_lists_and_chooses(mine):
    run = CliRunner().invoke
    assert "some compiler" in run(main, ["backend", "list"], env={"COLUMNS": "300"}).output
    assert str(mine) in run(main, ["backend", "use", "mine"]).output
    assert "removed" in run(main, ["backend", "remove", "mine"]).output
    assert run(main, ["backend", "use", "mine"]).exit_code == 1


def test_the_devices_are_listed_with_the_ggml_that_computes(cache):
    assert "ggml: the wheel's, for any CPU" in CliRunner().invoke(main, ["devices"]).output


def test_no_compiler_is_told_with_how_to_get_one(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"no C compiler.*apt install g\+\+"):
        build_cpu(progress=False)
    assert [path.name for path in (cache / "backends").iterdir()] == ["cpu.lock"]


def test_a_compiler_that_fails_leaves_the_old_build(cache, monkeypatch, tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho this compiler is broken\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setattr("kit.backends.build.get_source", lambda *_, **__: None)
    monkeypatch.setattr("kit.backends.build.unpack", lambda _, into: _project(into))
    old = cache / "backends" / "cpu"
    old.mkdir(parents=True)
    with pytest.raises(BuildError, match="'configure' failed"):
        build_cpu(progress=False)
    assert {path.name for path in old.parent.iterdir()} == {"cpu", "cpu.lock"}


def _project(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.19)\nproject(ggml C CXX)\n")
    return folder


def test_another_archive_than_the_pinned_one_is_fetched_anew_or_refused(tmp_path, monkeypatch):
    archive = tmp_path / "libggml_python-0.20.2.post1.tar.gz"
    archive.write_bytes(b"something else")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FetchError, match=SHA256):
        get_source(tmp_path, progress=False)


GREEDY = """
import kit
with kit.load("smollm2-135m", n_threads=1, progress=False, prepare="none") as model, model.session(128) as session:
    sampler = kit.Sampler(temperature=0)
    print([token.id for token in session.generate("The capital of France is", max_tokens=12, sampler=sampler)])
    from kit.core.native import libraries
    print(libraries.name, "LLAMAFILE" in kit.devices()[0].features)
"""


@pytest.mark.long
@pytest.mark.model
def test_what_is_built_here_says_the_same_as_the_wheel(cache, demo_model_path):
    """Compiles ggml: minutes. The wheel's ggml is the reference; greedy tokens leave the kernels' rounding out."""
    folder = build_cpu(progress=False)
    assert {path.name for path in folder.glob("*.so*")} == {"libgkit-base.so.0", "libgkit-cpu.so.0", "libgkit.so.0"}
    code = GREEDY.replace("smollm2-135m", str(demo_model_path))
    told = []
    for name in ("wheel", "cpu"):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "KIT_BACKEND": name}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        told.append(done.stdout.splitlines())
    assert told[0][0] == told[1][0]
    assert (told[0][1], told[1][1]) == ("wheel False", "cpu True")
