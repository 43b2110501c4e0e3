"""Where the ggml to build against lies: the pinned wheel, or the folder named by KIT_GGML."""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass

HEADERS = ("ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-cpu.h", "gguf.h")


@dataclass(frozen=True)
class GgmlInstall:
    """A built ggml: its public headers and its shared libraries in load order."""

    include: pathlib.Path
    libraries: tuple[pathlib.Path, ...]


def find_install() -> GgmlInstall:
    """Return the ggml named by ``KIT_GGML``, or the one of the installed libggml-python wheel.

    Raises:
        FileNotFoundError: the folder holds no public headers or no libggml-base.
    """
    named = os.environ.get("KIT_GGML")
    if named:
        root = pathlib.Path(named).expanduser().resolve()
    else:
        import libggml

        root = pathlib.Path(libggml.__file__).parent
    return GgmlInstall(_include_folder(root), _libraries(root))


def _include_folder(root: pathlib.Path) -> pathlib.Path:
    for folder in (root / "include", root / "ggml" / "include", root):
        if all((folder / header).is_file() for header in HEADERS):
            return folder
    raise FileNotFoundError(
        f"not all of ggml's headers ({', '.join(HEADERS)}) are in {root}, nor in include or ggml/include there; "
        "KIT_GGML names the folder ggml was installed to, or its source folder with a build in it"
    )


def _libraries(root: pathlib.Path) -> tuple[pathlib.Path, ...]:
    for folder in (root / "lib64", root / "lib", root / "build" / "bin", root / "build" / "src", root / "bin", root):
        found = {path.name.split(".so")[0]: path for path in sorted(folder.glob("libggml*.so"))}
        if "libggml-base" in found:
            return tuple(found[name] for name in _load_order(found))
    raise FileNotFoundError(
        f"no libggml-base.so under {root}; build ggml with BUILD_SHARED_LIBS=ON and give KIT_GGML its install folder"
    )


def _load_order(found: dict[str, pathlib.Path]) -> list[str]:
    backends = sorted(set(found) - {"libggml", "libggml-base"})
    return ["libggml-base", *backends, *(["libggml"] if "libggml" in found else [])]
