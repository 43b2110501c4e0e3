"""Which ggml is built against: the folder that KIT_GGML names, whatever its layout, or a message that helps."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from native.ggml_install import HEADERS, find_install
from native.private_copies import copy_privately


@pytest.fixture
def wheel_folder() -> pathlib.Path:
    libggml = pytest.importorskip("libggml", reason="pip install libggml-python")
    return pathlib.Path(libggml.__file__).parent


@pytest.mark.parametrize("layout", ["lib", "lib64", "build/bin"])
def test_libraries_and_headers_are_found_in_the_usual_layouts(
    wheel_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    shutil.copytree(wheel_folder / "include", tmp_path / ("ggml/include" if "build" in layout else "include"))
    shutil.copytree(wheel_folder / "lib64", tmp_path / layout)
    monkeypatch.setenv("KIT_GGML", str(tmp_path))
    install = find_install()
    assert install.include.is_relative_to(tmp_path)
    assert [path.name for path in install.libraries] == ["libggml-base.so", "libggml-cpu.so", "libggml.so"]
    assert all(path.parent == tmp_path / layout for path in install.libraries)


def test_without_the_variable_it_is_the_pinned_wheel(
    wheel_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KIT_GGML", raising=False)
    assert find_install().include == wheel_folder / "include"


def test_a_folder_without_headers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_GGML", str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        find_install()
    assert str(tmp_path) in str(caught.value) and all(header in str(caught.value) for header in HEADERS)
    assert "KIT_GGML" in str(caught.value)


def test_a_folder_without_libraries(
    wheel_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(wheel_folder / "include", tmp_path / "include")
    monkeypatch.setenv("KIT_GGML", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no libggml-base\.so under .*BUILD_SHARED_LIBS=ON.*KIT_GGML"):
        find_install()


def test_the_copies_bear_and_need_our_names_only(
    wheel_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KIT_GGML", raising=False)
    (tmp_path / "libgkit-old.so.0").write_bytes(b"of an earlier build")
    copies = copy_privately(find_install().libraries, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(copies)
    assert [copy.name for copy in copies] == ["libgkit-base.so.0", "libgkit-cpu.so.0", "libgkit.so.0"]
    for copy, original in zip(copies, find_install().libraries, strict=True):
        image = copy.read_bytes()
        assert len(image) == original.stat().st_size
        assert b"\0libggml" not in image
        assert f"\0{copy.name}\0".encode() in image
