"""Split files load as the whole one does, and each of several readers goes once through a section of its own."""

from __future__ import annotations

import os
import pathlib
import struct
import threading
from typing import Any

import numpy as np
import pytest

import kit
from kit.core.gguf import GGUFFile
from kit.errors import GGUFNotFound
from kit.models.weights import reading, sections
from kit.models.weights.read_trace import Read, ReaderTrace, ReadTrace
from kit.models.weights.weights import Weights

from . import tiny
from .reading_tools import read_weights

IDS = [1, 100, 7, 42]
N_PARTS = 4


def logits(path: pathlib.Path, **options: Any) -> np.ndarray[Any, Any]:
    with kit.load(path, n_threads=1, progress=False, **options) as model, model.session(n_ctx=64) as session:
        return session.run(IDS).logits


# Split files


@pytest.mark.parametrize("use_mmap", [True, False])
@pytest.mark.parametrize("part", range(N_PARTS))
def test_a_split_model_gives_the_logits_of_the_whole_one_bit_for_bit(split, part, use_mmap):
    whole = logits(split[0].with_name("whole.gguf"))
    assert np.array_equal(logits(split[part], use_mmap=use_mmap), whole)


@pytest.mark.parametrize("use_mmap", [True, False])
def test_a_first_part_without_tensors_loads_too(tmp_path, use_mmap):
    tiny.write(tmp_path / "whole.gguf", tiny.Tiny())
    tiny.write(tmp_path / "e.gguf", tiny.Tiny(), split=6, empty_first=True)
    split = logits(tmp_path / "e-00001-of-00005.gguf", use_mmap=use_mmap)
    assert np.array_equal(split, logits(tmp_path / "whole.gguf"))


def test_each_part_is_mapped_once_and_all_are_unmapped(split):
    before = set(kit.memory.live())
    with kit.load(split[0], n_threads=1):
        mine = [r.nbytes for r in set(kit.memory.live()) - before if r.kind == "mapping"]
        assert sorted(mine) == sorted(path.stat().st_size for path in split)
    assert set(kit.memory.live()) == before


@pytest.mark.parametrize("use_mmap", [True, False])
@pytest.mark.parametrize("harm", ["cut", "gone", "replaced", "written", "a pipe"])
def test_a_part_that_changes_between_header_and_data_is_named(split, backend, use_mmap, harm):
    file = GGUFFile(split[0])
    part = split[2]
    if harm == "cut":
        os.truncate(part, part.stat().st_size - 5000)
    elif harm == "gone":
        part.unlink()
    elif harm == "replaced":
        os.replace(split[1].with_name("whole.gguf"), part)
    elif harm == "a pipe":
        part.unlink()
        os.mkfifo(part)
    else:
        os.utime(part, ns=(0, 0))
    before = kit.memory.live(), len(os.listdir("/proc/self/fd"))
    says = {
        "cut": "shrank|ends at byte",
        "gone": "gone",
        "replaced": "another file",
        "written": "written to",
        "a pipe": "another file",
    }
    with pytest.raises(GGUFNotFound if harm == "gone" else kit.GGUFError, match=rf"{part.name}.*({says[harm]})"):
        Weights(file, backend, use_mmap=use_mmap, progress=False)
    assert (kit.memory.live(), len(os.listdir("/proc/self/fd"))) == before


def far_file(path: pathlib.Path) -> int:
    """A sparse file of two tensors by hand (GGUF specification, version 3): 5 GiB of nothing, then 64 numbers."""
    hole = 5 << 30
    infos = b""
    for name, count, offset in ((b"hole", hole // 4, 0), (b"far", 64, hole)):
        infos += struct.pack("<Q", len(name)) + name + struct.pack("<IQiQ", 1, count, 0, offset)
    header = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + infos
    data = -(-len(header) // 32) * 32
    with open(path, "wb") as file:
        file.write(header)
        file.seek(data + hole)
        file.write(np.arange(64, dtype=np.float32).tobytes())
    return data + hole


def test_a_tensor_behind_four_gib(tmp_path, backend):
    at = far_file(tmp_path / "far.gguf")
    file = GGUFFile(tmp_path / "far.gguf")
    weights = Weights(file, backend)
    assert weights.mapped and file.tensors["far"].offset == at > 1 << 32
    assert np.array_equal(weights["far"].numpy(), np.arange(64))
    weights.close()
    target = np.zeros(64, np.float32)
    (chunk,) = sections.chunks(file.parts[0], [(file.tensors["far"], target.ctypes.data)], sections.CHUNK_BYTES)
    with reading.open_part(file.parts[0]) as opened:
        reading.read_chunk(opened.fileno(), chunk)
    assert np.array_equal(target, np.arange(64))


# What the readers did


@pytest.mark.parametrize("readers", [1, 2, 3, 7])
def test_the_trace_shows_each_reader_go_once_through_a_section_of_its_own(split, backend, small_chunks, readers):
    file = GGUFFile(split[0])
    weights = Weights(file, backend, use_mmap=False, progress=False, readers=readers)
    trace = weights.trace
    weights.close()
    assert trace is not None and trace.sequential and [r.number for r in trace.readers] == list(range(1, readers + 1))
    reads = [read for reader in trace.readers for read in reader.reads]
    assert all(read.nbytes <= 4096 for read in reads)
    for info in file.tensors.values():  # each byte of each tensor was read, and none twice
        mine = [read for read in reads if read.path == info.path]
        assert (
            sum(max(0, min(r.end, info.offset + info.nbytes) - max(r.offset, info.offset)) for r in mine) == info.nbytes
        )
    sizes = [reader.nbytes for reader in trace.readers]
    assert max(sizes) - min(sizes) <= 2 * 4096


def test_the_kernel_saw_the_reads_of_the_trace(split, backend, small_chunks, monkeypatch):
    seen: dict[int, list[tuple[int, int]]] = {}
    preadv = os.preadv

    def watched(descriptor, buffers, offset):
        got = preadv(descriptor, buffers, offset)
        seen.setdefault(threading.get_ident(), []).append((offset, got))
        return got

    monkeypatch.setattr(os, "preadv", watched)
    with read_weights(split[0], backend, readers=3) as weights:
        told = sorted(tuple((read.offset, read.nbytes) for read in reader.reads) for reader in weights.trace.readers)
    calls = sorted(call for reads in seen.values() for call in reads)
    assert calls == sorted(read for reads in told for read in reads)


def test_small_neighbours_are_read_at_once(tmp_path, backend):
    tiny.write(tmp_path / "whole.gguf", tiny.Tiny())
    with read_weights(tmp_path / "whole.gguf", backend) as weights:
        assert len(weights) == 20 and weights.trace.n_reads == 1
        for name, values in tiny.Tiny().weights.items():
            assert np.array_equal(weights[name].numpy(), values)


def test_padding_between_tensors_is_read_over(tmp_path, backend, small_chunks):
    model = tiny.Tiny(n_embd=60, head_dim=14)  # rows of 240 bytes: tensors that do not end at the alignment
    tiny.write(tmp_path / "odd.gguf", model)
    file = GGUFFile(tmp_path / "odd.gguf")
    assert any(info.nbytes % file.alignment for info in file.tensors.values())
    weights = Weights(file, backend, use_mmap=False, progress=False)
    for name, values in model.weights.items():
        assert np.array_equal(weights[name].numpy(), values)
    weights.close()


def test_mapped_weights_have_no_trace_and_the_model_passes_readers_on(split):
    with kit.load(split[0], n_threads=1) as model:
        assert model.weights.trace is None
    with kit.load(split[0], n_threads=1, use_mmap=False, readers=2, progress=False) as model:
        assert len(model.weights.trace.readers) == 2


@pytest.mark.parametrize("readers", [0, -1, 65, 1.0, True, "2"])
def test_a_number_of_readers_that_is_none_is_refused(split, readers):
    with pytest.raises(kit.errors.ArgumentError, match="readers is"):
        kit.load(split[0], n_threads=1, readers=readers)


def read(offset: int, nbytes: int, start: int, end: int, name: str = "a") -> Read:
    return Read(pathlib.Path(name), offset, nbytes, start, end)


@pytest.mark.parametrize(
    ("reads", "sequential"),
    [
        ([read(0, 10, 0, 1), read(10, 10, 1, 2), read(32, 10, 5, 6)], True),
        ([read(0, 10, 0, 1), read(0, 10, 1, 2, "b")], True),
        ([read(10, 10, 0, 1), read(0, 10, 1, 2)], False),
        ([read(0, 10, 0, 1), read(5, 10, 1, 2)], False),
        ([read(0, 10, 0, 3), read(10, 10, 1, 2)], False),
        ([read(0, 10, 0, 1), read(0, 10, 1, 2, "b"), read(10, 10, 2, 3)], False),
    ],
)
def test_a_reader_that_goes_back_is_not_sequential(reads, sequential):
    trace = ReadTrace((ReaderTrace(1, tuple(reads)),))
    assert trace.sequential == sequential
    assert ("NOT" in trace.text()) != sequential


def test_the_picture_of_a_trace_shows_who_waited_for_whom():
    one = ReaderTrace(1, (read(0, 100, 0, 50), read(100, 100, 50, 100)))
    two = ReaderTrace(2, (read(200, 200, 0, 25),))
    picture = ReadTrace((one, two)).text().splitlines()[-2:]
    assert picture[0].split()[1] == "▁" * 23 + "▄" * 24 + "█"
    assert picture[1].split()[1] == "▁" * 11 + "█" * 37
