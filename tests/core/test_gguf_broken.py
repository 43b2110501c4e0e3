"""No GGUF file, however broken, crashes or passes: each way of being broken has its own message."""

from __future__ import annotations

import os
import pathlib
import shutil
import struct

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.core.gguf import GGUFFile
from kit.core.native import ffi, lib
from kit.errors import GGUFError

# GGUF files byte by byte, each field free to be wrong; layout: GGUF specification, version 3.
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
GGML_F32, GGML_Q4_1, GGML_REMOVED, GGML_Q8_1 = 0, 3, 4, 9


def string(value: bytes, length: int | None = None) -> bytes:
    """Return a string as GGUF writes it; ``length`` may lie."""
    return struct.pack("<Q", len(value) if length is None else length) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    """Return one key/value pair."""
    return string(key) + struct.pack("<i", kind) + value


def array(kind: int, count: int, elements: bytes) -> bytes:
    """Return the value of an array; ``count`` may lie."""
    return struct.pack("<iQ", kind, count) + elements


def tensor(
    name: bytes = b"t",
    dims: tuple[int, ...] = (4,),
    kind: int = GGML_F32,
    offset: int = 0,
    n_dims: int | None = None,
) -> bytes:
    """Return the description of one tensor."""
    count = len(dims) if n_dims is None else n_dims
    return string(name) + struct.pack(f"<I{len(dims)}qiQ", count, *dims, kind, offset)


def write(
    path: pathlib.Path,
    pairs: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    *,
    data: int = 64,
    alignment: int = 32,
    version: int = 3,
    magic: bytes = b"GGUF",
    counts: tuple[int, int] | None = None,
) -> pathlib.Path:
    """Write a file with ``data`` zero bytes behind the aligned header; ``counts`` are (tensors, keys)."""
    n_tensors, n_keys = counts or (len(tensors), len(pairs))
    head = magic + struct.pack("<Iqq", version, n_tensors, n_keys) + b"".join(pairs) + b"".join(tensors)
    path.write_bytes(head + bytes(-len(head) % alignment) + bytes(data))
    return path


ONE = struct.pack("<I", 1)


def refusal(path: pathlib.Path) -> str:
    """Return the message with which a file is refused; it always names the path."""
    with pytest.raises(GGUFError) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def key_case(*pairs: bytes, **options: object) -> dict[str, object]:
    return {"pairs": pairs, **options}


def tensor_case(*tensors: bytes, **options: object) -> dict[str, object]:
    return {"tensors": tensors, **options}


KEYS = {
    "empty key": (key_case(pair(b"", U32, ONE)), ["key 0", "byte 24", "empty"]),
    "long key": (key_case(pair(b"k" * 65536, U32, ONE)), ["key 0", "65536 bytes", "65535"]),
    "key with NUL": (key_case(pair(b"a\0b", U32, ONE)), ["key 0", "byte 33", "0x00"]),
    "key is no UTF-8": (key_case(pair(b"ab\xff", U32, ONE)), ["key 0", "byte 34", "0xff"]),
    "surrogate in a key": (key_case(pair(b"a\xed\xa0\x80", U32, ONE)), ["key 0", "0xed"]),
    "key beyond the end": (key_case(string(b"k", 1 << 60)), ["key 0", "ends inside its header"]),
    "key twice": (
        key_case(pair(b"k", U32, ONE), pair(b"k", U32, ONE)),
        ["key 1 'k'", "twice", "number 0"],
    ),
    "unknown value type": (key_case(pair(b"k", 13, ONE)), ["key 0 'k'", "byte 33", "type 13"]),
    "negative value type": (key_case(pair(b"k", -1, ONE)), ["key 0 'k'", "type -1"]),
    "array of arrays": (
        key_case(pair(b"k", ARRAY, array(ARRAY, 0, b""))),
        ["key 0 'k'", "arrays of arrays"],
    ),
    "array of an unknown type": (
        key_case(pair(b"k", ARRAY, array(99, 0, b""))),
        ["'k'", "type 99"],
    ),
    "array longer than the file": (
        key_case(pair(b"k", ARRAY, array(U64, 1 << 29, b""))),
        ["key 0 'k'", f"{1 << 32} bytes", "incomplete"],
    ),
    "array of 2^60": (
        key_case(pair(b"k", ARRAY, array(U8, 1 << 60, b""))),
        ["'k'", f"{1 << 60} elements"],
    ),
    "string longer than the file": (
        key_case(pair(b"k", STRING, string(b"abc", 1 << 40))),
        ["key 0 'k'", f"{1 << 40} bytes"],
    ),
    "string in an array": (
        key_case(pair(b"k", ARRAY, array(STRING, 2, string(b"a") + string(b"b", 999)))),
        ["key 0 'k'", "string 1", "999"],
    ),
    "bool": (key_case(pair(b"k", BOOL, b"\2")), ["key 0 'k'", "truth value is 2"]),
    "bool in an array": (
        key_case(pair(b"k", ARRAY, array(BOOL, 2, b"\1\7"))),
        ["key 0 'k'", "byte 50", "truth value is 7"],
    ),
    "alignment 48": (
        key_case(pair(b"general.alignment", U32, struct.pack("<I", 48))),
        ["general.alignment", "48", "power of two"],
    ),
    "alignment 0": (
        key_case(pair(b"general.alignment", U32, bytes(4))),
        ["general.alignment", "power of two"],
    ),
    "alignment of another type": (
        key_case(pair(b"general.alignment", U64, struct.pack("<Q", 32))),
        ["general.alignment", "uint32"],
    ),
}

TENSORS = {
    "no name": (tensor_case(tensor(b"")), ["tensor 0", "empty"]),
    "long name": (tensor_case(tensor(b"n" * 64)), ["tensor 0", "64 bytes", "63"]),
    "name is no UTF-8": (tensor_case(tensor(b"\x80")), ["tensor 0", "0x80"]),
    "name twice": (tensor_case(tensor(), tensor(offset=32)), ["tensor 1 't'", "twice"]),
    "no dimensions": (tensor_case(tensor(dims=())), ["tensor 0 't'", "0 dimensions"]),
    "five dimensions": (tensor_case(tensor(dims=(1,) * 5)), ["tensor 0 't'", "5 dimensions"]),
    "dimension 0": (tensor_case(tensor(dims=(4, 0))), ["tensor 0 't'", "dimension 1 is 0"]),
    "negative dimension": (tensor_case(tensor(dims=(-4,))), ["tensor 0 't'", "dimension 0 is -4"]),
    "product overflows": (
        tensor_case(tensor(dims=(1 << 32, 1 << 32))),
        ["tensor 0 't'", "more elements"],
    ),
    "bytes overflow": (tensor_case(tensor(dims=(1 << 61,), kind=28)), ["tensor 0 't'", "more bytes"]),
    "unknown type": (tensor_case(tensor(kind=1000)), ["tensor 0 't'", "type 1000 is unknown"]),
    "negative type": (tensor_case(tensor(kind=-1)), ["tensor 0 't'", "type -1"]),
    "removed type": (tensor_case(tensor(kind=GGML_REMOVED)), ["tensor 0 't'", "type 4 was removed"]),
    "row is no whole number of blocks": (
        tensor_case(tensor(dims=(48,), kind=GGML_Q4_1)),
        ["tensor 0 't'", "48 elements", "q4_1", "blocks of 32"],
    ),
    "offset not aligned": (tensor_case(tensor(offset=16)), ["tensor 0 't'", "16", "alignment 32"]),
    "gap before a tensor": (
        tensor_case(tensor(), tensor(b"u", offset=64)),
        ["tensor 1 'u'", "offset is 64", "end at 32"],
    ),
    "tensors on each other": (
        tensor_case(tensor(), tensor(b"u", offset=0)),
        ["tensor 1 'u'", "end at 32"],
    ),
    "offset of 2^63": (tensor_case(tensor(offset=1 << 63)), ["tensor 0 't'", str(1 << 63)]),
    "data cut": (
        tensor_case(tensor(), tensor(b"u", (16,), offset=32)),
        ["tensor 1 'u'", "cut short", "64 bytes from byte 128", "32 there"],
    ),
    "data far larger than the file": (
        tensor_case(tensor(dims=(1 << 50,))),
        ["tensor 0 't'", f"{1 << 52} bytes"],
    ),
}

FILES = {
    "magic": ({"magic": b"NOPE"}, ["not a GGUF file", "NOPE"]),
    "an older format": ({"magic": b"tjgg"}, ["before GGUF"]),
    "version 0": ({"version": 0}, ["version 0"]),
    "version 1": ({"version": 1}, ["version 1 is not read", "2 to 3"]),
    "version 4": ({"version": 4}, ["version 4"]),
    "other byte order": ({"version": 3 << 24}, ["big-endian"]),
    "2^60 tensors": ({"counts": (1 << 60, 0)}, ["number of tensors", str(1 << 60)]),
    "-1 keys": ({"counts": (0, -1)}, ["number of keys", "-1"]),
    "more keys than bytes": ({"counts": (0, 8)}, ["number of keys is 8", "at most 6"]),
    "keys that are not there": ({"counts": (0, 6), "data": 64}, ["key 0", "empty"]),
}


@pytest.mark.parametrize("name", [*KEYS, *TENSORS, *FILES])
def test_each_way_of_being_broken_is_named(name: str, tmp_path: pathlib.Path) -> None:
    options, expected = {**KEYS, **TENSORS, **FILES}[name]
    message = refusal(write(tmp_path / "broken.gguf", **options))
    for part in expected:
        assert part in message


def test_the_same_files_unbroken_open(tmp_path: pathlib.Path) -> None:
    pairs = (
        pair(b"k", U32, ONE),
        pair(b"general.alignment", U32, struct.pack("<I", 64)),
        pair(b"b", ARRAY, array(BOOL, 2, b"\1\0")),
    )
    tensors = (tensor(), tensor(b"u" * 63, (64,), GGML_Q4_1, 64))
    file = GGUFFile(write(tmp_path / "sound.gguf", pairs, tensors, data=128, alignment=64))
    assert (file.alignment, file.metadata["k"], file.metadata["b"].tolist()) == (64, 1, [True, False])
    assert [info.nbytes for info in file.tensors.values()] == [16, 40]


def test_q8_1_which_ggml_never_turns_back_reads_as_scale_times_integers(tmp_path: pathlib.Path) -> None:
    """Layout from ggml-common.h: a float16 scale, a float16 sum, 32 int8; the data of this file are zeros."""
    file = GGUFFile(write(tmp_path / "odd.gguf", tensors=(tensor(b"odd", (32,), GGML_Q8_1),)))
    assert file.tensors["odd"].nbytes == 36
    assert file.read("odd").tolist() == [0.0] * 32


def test_version_2_is_read(tmp_path: pathlib.Path) -> None:
    assert GGUFFile(write(tmp_path / "old.gguf", (pair(b"k", U32, ONE),), version=2)).version == 2


def test_what_is_no_file_is_refused(tmp_path: pathlib.Path) -> None:
    assert "folder" in refusal(tmp_path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "pipe" in refusal(fifo)
    empty = tmp_path / "empty.gguf"
    empty.touch()
    assert "empty" in refusal(empty)
    with pytest.raises(FileNotFoundError, match="no such file"):
        GGUFFile(tmp_path / "missing.gguf")
    with pytest.raises(GGUFError, match="NUL"):
        GGUFFile("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "secret.gguf")
    path.chmod(0)
    assert "Permission denied" in refusal(path)


def test_a_path_that_is_no_utf8_can_be_opened_and_named(tmp_path: pathlib.Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"m\xff.gguf")
    write(pathlib.Path(os.fsdecode(path)), (pair(b"k", U32, ONE),))
    file = GGUFFile(os.fsdecode(path))
    file.text().encode()
    file.html().encode()
    with open(path, "wb") as stream:
        stream.write(b"no")
    with pytest.raises(GGUFError) as caught:
        GGUFFile(os.fsdecode(path))
    assert "m\\xff.gguf" in str(caught.value)


@pytest.mark.model
def test_a_cut_model_names_what_is_missing(demo_model_path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "cut.gguf"
    shutil.copyfile(demo_model_path, copy)
    whole = GGUFFile(copy)
    sizes = [*range(0, 4 << 20, 1 << 16), *range(4 << 20, whole.nbytes, 4 << 20), whole.nbytes - 1]
    for size in reversed(sizes):
        os.truncate(copy, size)
        message = refusal(copy)
        if size < whole.data_offset:
            assert "key" in message or "tensor" in message or "empty" in message
            continue
        first = next(info for info in whole.tensors.values() if info.offset + info.nbytes > size)
        assert f"{first.name!r}, at byte {first.offset}:" in message
        assert f"need {first.nbytes} bytes" in message and f"ends at byte {size}" in message


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file with every kind of value, written by the gguf package."""
    path = tmp_path_factory.mktemp("fuzz") / "small.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_custom_alignment(32)
    writer.add_bool("a.bool", True)
    writer.add_float64("a.f64", 0.5)
    writer.add_array("a.strings", ["x", "", "é"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_tensor("one", np.ones((2, 8), np.float32))
    writer.add_tensor("two", np.ones((3,), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def opens(path: pathlib.Path) -> bool:
    """Whether a file opens; if so, all of it can be used and ggml's own reader takes it too."""
    try:
        file = GGUFFile(path)
    except GGUFError:
        return False
    assert dict(file.metadata.items()).keys() == set(file.metadata)
    assert all(file.read(name).shape == info.shape for name, info in file.tensors.items())
    assert len(file.text().splitlines()) < 40
    file.html()
    reader = lib.gguf_init_from_file(os.fsencode(path), {"no_alloc": True, "ctx": ffi.NULL})
    assert reader != ffi.NULL
    lib.gguf_free(reader)
    return True


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    patches=st.lists(
        st.tuples(
            st.integers(0, 1 << 16),
            st.one_of(st.binary(min_size=1, max_size=8), st.integers(0, 255).map(lambda n: struct.pack("<Q", n))),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_damaged_header_crashes(small: bytes, tmp_path: pathlib.Path, patches: list[tuple[int, bytes]]) -> None:
    damaged = bytearray(small)
    for at, patch in patches:
        start = at % len(small)
        damaged[start : start + len(patch)] = patch
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    opens(path)


def test_every_shorter_file_is_refused(small: bytes, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(small)
    assert opens(path)
    last = list(GGUFFile(path).tensors.values())[-1]
    for size in range(last.offset + last.nbytes):
        path.write_bytes(small[:size])
        assert not opens(path)
