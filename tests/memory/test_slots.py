"""Relocation slots: patched while somebody tracks, and afterwards exactly what they were.

readelf (binutils) says where the slots lie; /proc/self/maps where the object was loaded.
"""

from __future__ import annotations

import ctypes
import pathlib
import re
import shutil
import subprocess

import kit._native
import numpy as np
import pytest

import kit
from kit.core.native import library_paths

_ENTRY = re.compile(r"^([0-9a-f]{8,})\s+\S+\s+R_\S+\s+[0-9a-f]+\s+(\w+)(?:@\S+)? \+ 0", re.M)


def slots_of(path: pathlib.Path) -> dict[int, str]:
    """Address of each slot of a tracked function, and its name."""
    listing = subprocess.run(["readelf", "-rW", str(path)], capture_output=True, text=True, check=True).stdout
    base = next(
        int(line.split("-")[0], 16)
        for line in pathlib.Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path.resolve())) and line.split()[2] == "00000000"
    )
    names = {"ggml_init", "ggml_free", "ggml_backend_buft_alloc_buffer", "ggml_backend_buffer_free"}
    return {base + int(at, 16): name for at, name in _ENTRY.findall(listing) if name in names}


def values(slots: dict[int, str]) -> dict[int, int]:
    return {at: ctypes.c_uint64.from_address(at).value for at in slots}


def protection(at: int) -> str:
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(x, 16) for x in line.split()[0].split("-"))
        if low <= at < high:
            return line.split()[1]
    raise AssertionError(f"nothing is mapped at {at:x}")


@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf is missing; install binutils")
def test_hooks_off_leave_every_slot_and_its_protection_as_it_was() -> None:
    kit.devices()
    paths = [*library_paths(), pathlib.Path(str(kit._native.__file__))]
    slots = {at: name for path in paths for at, name in slots_of(path).items()}
    assert {"ggml_init", "ggml_backend_buft_alloc_buffer"} <= set(slots.values())
    before, guarded = values(slots), {at: protection(at) for at in slots}
    for _ in range(2):
        with kit.Tracker():
            during = values(slots)
            assert all(during[at] != before[at] for at in slots)
        assert values(slots) == before
        assert {at: protection(at) for at in slots} == guarded


def test_objects_with_full_relro_and_with_lazy_binding(tmp_path: pathlib.Path) -> None:
    """Two libraries that call ggml, linked both ways; their calls are seen, with the line that made them."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler; install gcc")
    source = tmp_path / "user.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdbool.h>\n"
        "struct params { size_t n; void *p; bool b; };\n"
        "void *ggml_init(struct params); void ggml_free(void *);\n"
        "void once(void) { struct params p = {4096, 0, true}; ggml_free(ggml_init(p)); }\n"
    )
    base = library_paths()[0]
    for name, flags in {"now": ["-Wl,-z,relro,-z,now"], "lazy": ["-Wl,-z,lazy"]}.items():
        path = tmp_path / f"libuser_{name}.so"
        subprocess.run(["cc", "-shared", "-fPIC", *flags, str(source), str(base), "-o", str(path)], check=True)
        user = ctypes.CDLL(str(path), mode=0x1 if name == "lazy" else 0x2)  # RTLD_LAZY, RTLD_NOW
        slots = slots_of(path)
        before = values(slots)
        with kit.Tracker() as mem:
            user.once()
        assert [event.action for event in mem.report().events] == ["alloc", "free"], name
        assert "test_slots.py" in mem.report().events[0].where
        assert values(slots) == before
        user.once()


def test_a_library_loaded_while_tracking_is_seen(tmp_path: pathlib.Path) -> None:
    if not shutil.which("cc"):
        pytest.skip("no C compiler; install gcc")
    source = tmp_path / "late.c"
    source.write_text(
        "#include <stddef.h>\n"
        "void *ggml_aligned_malloc(size_t); void ggml_aligned_free(void *, size_t);\n"
        "void late(void) { ggml_aligned_free(ggml_aligned_malloc(12345), 12345); }\n"
    )
    path = tmp_path / "liblate.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), str(library_paths()[0]), "-o", str(path)], check=True)
    with kit.Tracker() as mem:
        ctypes.CDLL(str(path)).late()
    assert [(event.kind, event.action, event.size) for event in mem.report().events] == [
        ("aligned", "alloc", 12345),
        ("aligned", "free", 12345),
    ]


def test_ggml_called_through_ctypes_is_seen_however_early_it_was_bound() -> None:
    ggml = ctypes.CDLL(str(library_paths()[0]))
    for early in (True, False):
        if not early:
            ggml = ctypes.CDLL(str(library_paths()[0]))
        if early:
            bind(ggml)
        with kit.Tracker() as mem:
            bind(ggml)
            memory = ggml.ggml_aligned_malloc(4321)
            ggml.ggml_aligned_free(memory, 4321)
        sizes = [(event.action, event.size) for event in mem.report().events]
        assert sizes == [("alloc", 4321), ("free", 4321)], f"bound {'before' if early else 'while'} tracking"
        ggml.ggml_aligned_free(ggml.ggml_aligned_malloc(64), 64)  # the pointer it kept still works


def bind(ggml: ctypes.CDLL) -> None:
    ggml.ggml_aligned_malloc.restype = ctypes.c_void_p
    ggml.ggml_aligned_malloc.argtypes = [ctypes.c_size_t]
    ggml.ggml_aligned_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def test_files_mapped_by_a_ggml_user_and_unmapped_in_parts(tmp_path: pathlib.Path) -> None:
    """As llama.cpp does: map a file, give its head back early, the rest at the end."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler; install gcc")
    source = tmp_path / "mapper.c"
    source.write_text(
        "#include <stddef.h>\n#include <sys/mman.h>\n#include <fcntl.h>\n"
        "void ggml_free(void *);\n"
        "void *map(const char *path, size_t n) { ggml_free(NULL); int f = open(path, O_RDONLY);\n"
        "  return mmap(NULL, n, PROT_READ, MAP_SHARED, f, 0); }\n"
        "int unmap(void *p, size_t n) { return munmap(p, n); }\n"
    )
    path = tmp_path / "libmapper.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), str(library_paths()[0]), "-o", str(path)], check=True)
    data = tmp_path / "weights"
    data.write_bytes(np.zeros(10 * 4096, np.uint8).tobytes())
    mapper = ctypes.CDLL(str(path))
    mapper.map.restype = ctypes.c_void_p
    mapper.unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with kit.Tracker() as mem:
        at = mapper.map(str(data).encode(), ctypes.c_size_t(10 * 4096))
        mapper.unmap(at, 4096)
        mapper.unmap(at + 5 * 4096, 2 * 4096)
        left = mem.report()
        mapper.unmap(at + 4096, 9 * 4096)
    assert sum(row.nbytes for row in left.live) == 7 * 4096
    assert sorted(event.size for event in left.events if event.action == "alloc")[-1] == 10 * 4096
    assert "test_slots.py" in left.leaks[0].where
    assert mem.report().live_nbytes == 0
