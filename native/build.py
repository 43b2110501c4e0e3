"""Builds kit._native: declarations, private copies of ggml, guarded wrappers, our own C files."""

from __future__ import annotations

import pathlib
import re
import sys
import tempfile

from setuptools.command.build_ext import build_ext

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from native.declarations import declare, exported_names  # noqa: E402 - needs the path above
from native.ggml_install import HEADERS, find_install  # noqa: E402
from native.private_copies import copy_privately  # noqa: E402

# Calls that can take long, run user code on another thread, or move much memory give up the GIL;
# all others keep it, which halves the price of a getter.
_RELEASES_GIL = re.compile(
    r"compute|synchroni[sz]e|tensor_set|tensor_get|tensor_copy|tensor_memset|buffer_clear|buft_alloc|alloc_buffer|"
    r"alloc_ctx|alloc_graph|gallocr_reserve|sched_reserve|quantize|from_file|write_to_file|backend_load|"
    r"dev_init|threadpool|kit_graph_|kit_gguf_check|kit_track_s|kit_read|kit_shutdown|kit_touch|kit_cost_|kit_pages_"
)
_WRAPPER = re.compile(r"^_cffi_f_(\w+)\(PyObject \*self", re.M)


class BuildNative(build_ext):
    """The build_ext of setuptools, preceded by the generation of what it compiles."""

    def run(self) -> None:
        """Generate, copy, compile."""
        install = find_install()
        package = HERE.parent / "kit" if self.inplace or self.editable_mode else pathlib.Path(self.build_lib) / "kit"
        copies = copy_privately(install.libraries, package / "_ggml")
        temporary = pathlib.Path(self.build_temp)
        temporary.mkdir(parents=True, exist_ok=True)
        generated = temporary / "_native.c"
        generated.write_text(emit_wrappers(install.include, exported_names(install.libraries)))
        (extension,) = self.extensions
        extension.sources = [str(generated), *sorted(str(path.relative_to(HERE.parent)) for path in HERE.glob("*.c"))]
        extension.depends = sorted(str(path.relative_to(HERE.parent)) for path in HERE.rglob("*.[ch]"))
        extension.include_dirs = [str(install.include), str(HERE)]
        extension.extra_compile_args = ["-O2", "-g0", "-std=gnu11", "-fno-semantic-interposition"]
        extension.extra_compile_args += ["-Wall", "-Wno-deprecated-declarations", "-Wno-unused-function"]
        extension.extra_link_args = [str(path) for path in reversed(copies)] + [
            "-Wl,-rpath,$ORIGIN/_ggml",
            "-ldl",
            "-lrt",
        ]
        super().run()

    def get_outputs(self) -> list[str]:
        """Return what was built, the private copies included, so that wheels and uninstalls know them."""
        folder = pathlib.Path(self.build_lib) / "kit" / "_ggml"
        return [*super().get_outputs(), *map(str, sorted(folder.glob("*.so*")))]


def emit_wrappers(include: pathlib.Path, exported: frozenset[str]) -> str:
    """Return the C text of the extension module: cffi's wrappers with our guard round each call."""
    import cffi

    ours = [path.read_text() for path in sorted((HERE / "interface").glob("*.h"))]
    declarations = declare(include, HEADERS, exported)
    ffi = cffi.FFI()
    ffi.cdef(declarations.text)
    for text in ours:
        ffi.cdef(_without_comments(text))
    ffi.cdef((HERE / "callbacks.cdef").read_text())
    includes = "".join(f'#include "{header}"\n' for header in HEADERS)
    ffi.set_source("kit._native", includes + '#include "kit_native.h"\n#include "guard.h"\n')
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "_native.c"
        ffi.emit_c_code(str(path))
        return _choose_gil(path.read_text())


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def _choose_gil(source: str) -> str:
    """Give each wrapper the guard that keeps or that releases the GIL, by the name of its function."""
    starts = [(match.start(), match.group(1)) for match in _WRAPPER.finditer(source)]
    if not starts:
        raise RuntimeError("cffi's wrappers look different from what the guard expects")
    parts = [source[: starts[0][0]]]
    for (start, name), end in zip(starts, [s for s, _ in starts[1:]] + [len(source)], strict=True):
        kind = "RELEASING_GIL" if _RELEASES_GIL.search(name) else "KEEPING_GIL"
        body = source[start:end]
        body = body.replace("Py_BEGIN_ALLOW_THREADS", f"KIT_GUARD_{kind}").replace(
            "Py_END_ALLOW_THREADS", f"KIT_UNGUARD_{kind}"
        )
        parts.append(body)
    return "".join(parts)
