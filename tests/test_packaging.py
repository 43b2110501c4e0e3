"""The distributions: what is in them, and that they work in an environment that has nothing else."""

from __future__ import annotations

import email
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass

import pytest

pytestmark = pytest.mark.packaging

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOT_SOURCE = (".git", ".venv", ".ci", "build", "dist", "*.egg-info", "_ggml", "*.so", "__pycache__", ".*_cache")

MATMUL = """
import kit, numpy as np
from kit.core.native import lib, text
with kit.Backend(n_threads=2) as backend:
    context = kit.Context(backend)
    w, x = context.input((4, 8), "f32", name="w"), context.input((2, 8), "f32", name="x")
    a, b = np.ones((4, 8), np.float32), np.arange(16, dtype=np.float32).reshape(2, 8)
    assert np.array_equal(context.graph(x @ w.T).compute(w=a, x=b).numpy(), b @ a.T)
print(kit.__file__, text(lib.ggml_version()))
"""


def _run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=dict(os.environ, **environment)
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Built:
    """What `python -m build` made of the sources: the wheel from the sdist, each in an environment of its own."""

    sdist: pathlib.Path
    wheel: pathlib.Path
    output: str

    def names(self) -> list[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()

    def metadata(self, file: str) -> email.message.Message:
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(f".dist-info/{file}")]
            return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    sources = tmp_path_factory.mktemp("sources") / "ggml-kit"
    shutil.copytree(ROOT, sources, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    folder = tmp_path_factory.mktemp("dist")
    output = _run(sys.executable, "-m", "build", "--outdir", folder, sources)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(sdist, wheel, output)


class Environment:
    """An empty virtual environment."""

    def __init__(self, folder: pathlib.Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder = folder
        self.python = folder / "bin" / "python"
        (self.site_packages,) = folder.glob("lib/python3*/site-packages")

    def pip(self, *arguments: object, **environment: str) -> str:
        return _run(self.python, "-m", "pip", "--disable-pip-version-check", *arguments, **environment)

    def compute(self) -> list[str]:
        """Multiply two matrices with the kit installed here, away from the sources; return its place and its ggml."""
        return _run("env", "-C", self.folder, self.python, "-W", "error", "-c", MATMUL).split()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"))


def test_neither_setuptools_nor_the_compiler_warns(built: Built) -> None:
    lines = built.output.splitlines()
    assert [line for line in lines if "Warning" in line or (".c:" in line and "warning:" in line)] == []


def test_the_wheel_holds_the_package_and_its_libraries_only(built: Built) -> None:
    names = built.names()
    assert {name.split("/")[0] for name in names} == {"kit", "ggml_kit-0.1.0.dist-info"}
    libraries = sorted(name for name in names if ".so" in name)
    assert [name for name in libraries if name.startswith("kit/_ggml/")] == [
        "kit/_ggml/libgkit-base.so.0",
        "kit/_ggml/libgkit-cpu.so.0",
        "kit/_ggml/libgkit.so.0",
    ]
    (extension,) = [name for name in libraries if not name.startswith("kit/_ggml/")]
    assert extension.startswith("kit/_native.")
    assert "kit/py.typed" in names
    assert not [name for name in names if name.endswith((".c", ".h", ".cdef", ".ipynb")) or "test" in name.split("/")]
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "kit").rglob("*.py")}
    assert modules <= set(names)


def test_the_wheels_metadata(built: Built) -> None:
    metadata, wheel = built.metadata("METADATA"), built.metadata("WHEEL")
    assert (metadata["Name"], metadata["Version"]) == ("ggml-kit", "0.1.0")
    assert metadata["License-Expression"] == "MIT"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert wheel["Root-Is-Purelib"] == "false"
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert needed and not [line for line in needed if "libggml" in line]  # the wheel carries its own


def test_the_sdist_holds_what_a_build_needs_and_nothing_built(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        str(p.relative_to(ROOT)) for pattern in ("*.py", "*.[ch]", "*.cdef") for p in ROOT.glob(f"native/**/{pattern}")
    }
    assert sources | {"pyproject.toml", "setup.py", "LICENSE", "README.md", "Makefile", "kit/py.typed"} <= names
    assert not [name for name in names if ".so" in name]


def test_the_wheel_works_alone_and_leaves_nothing_behind(built: Built, environment: Environment) -> None:
    environment.pip("install", built.wheel)
    place, version = environment.compute()
    assert pathlib.Path(place).parent == environment.site_packages / "kit"
    assert version == "0.20.2"
    assert "ggml" not in environment.pip("list").replace("ggml-kit", "").split()  # no other ggml is needed to run
    environment.pip("uninstall", "--yes", "ggml-kit")
    assert not (environment.site_packages / "kit").exists()
    assert not list(environment.site_packages.glob("ggml_kit*"))


def test_the_sdist_builds_against_another_ggml(built: Built, environment: Environment, tmp_path: pathlib.Path) -> None:
    """KIT_GGML takes a folder that is the pinned ggml but for the version it tells, so that we know it again."""
    libggml = pytest.importorskip("libggml", reason="pip install libggml-python")
    other = tmp_path / "another ggml"
    for name in ("include", "lib64"):
        shutil.copytree(pathlib.Path(libggml.__file__).parent / name, other / name)
    for library in (other / "lib64").glob("libggml-base.so*"):
        library.write_bytes(library.read_bytes().replace(b"\x000.20.2\x00", b"\x000.20.9\x00"))
    environment.pip("install", "--no-binary", "ggml-kit", built.sdist, KIT_GGML=str(other))
    place, version = environment.compute()
    assert pathlib.Path(place).parent == environment.site_packages / "kit"
    assert version == "0.20.9"


def test_a_build_against_a_folder_without_ggml_says_so(
    built: Built, environment: Environment, tmp_path: pathlib.Path
) -> None:
    environment.pip("install", "setuptools>=77", "cffi", "pycparser")
    with pytest.raises(AssertionError, match=r"not all of ggml's headers .* KIT_GGML names the folder"):
        environment.pip(
            "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, built.sdist, KIT_GGML=str(tmp_path)
        )


@pytest.fixture
def made(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the sources in which make believes that everything is installed."""
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "native", tmp_path / "native", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for i, name in enumerate(("bin/python", ".kit", ".test")):
        (tmp_path / ".venv" / name).touch()
        os.utime(tmp_path / ".venv" / name, (2e9 + i, 2e9 + i))
    return tmp_path


def _would_install(folder: pathlib.Path) -> list[str]:
    plan = _run("make", "--dry-run", "-C", folder, "test")
    assert "pytest" in plan
    return [line for line in plan.splitlines() if "pip install" in line]


def test_make_installs_nothing_when_nothing_changed(made: pathlib.Path) -> None:
    assert _would_install(made) == []


@pytest.mark.parametrize(
    "changed", ["native/guard.c", "native/build.py", "native/kit_native.h", "native/interface/compute_interface.h",
                "native/callbacks.cdef", "pyproject.toml", "setup.py"]
)  # fmt: skip
def test_make_builds_again_when_a_source_of_the_extension_changed(made: pathlib.Path, changed: str) -> None:
    os.utime(made / changed, (3e9, 3e9))
    build, *_, extra = _would_install(made)
    assert build.endswith("--editable .")
    assert extra.endswith("'ggml-kit[test]'")


def test_make_help_names_every_command(made: pathlib.Path) -> None:
    shown = {line.split()[1] for line in _run("make", "-C", made, "--no-print-directory").splitlines()}
    assert shown == {"help", "demo", "test", "test-long", "lab", "bench", "lint", "clean"}
