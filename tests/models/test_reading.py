"""Reading weights by several readers: what each did, and which of several failures is told."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import resource
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kit
from kit.core.gguf import GGUFFile
from kit.errors import GGUFNotFound, GGUFReadError
from kit.models import reading, sections
from kit.models.failures import Failures
from kit.models.read_trace import Read, ReaderTrace, ReadTrace
from kit.models.weights import Weights

from . import tiny

IDS = [1, 100, 7, 42]
N_PARTS = 4


@pytest.fixture
def split(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    """A tiny model in four parts of six tensors each at most, beside `whole.gguf`."""
    tiny.write(tmp_path / "whole.gguf", tiny.Tiny())
    tiny.write(tmp_path / "m.gguf", tiny.Tiny(), split=6)
    return [tmp_path / f"m-{number:05}-of-{N_PARTS:05}.gguf" for number in range(1, N_PARTS + 1)]


@pytest.fixture
def backend() -> Iterator[kit.Backend]:
    with kit.Backend(n_threads=1) as made:
        yield made


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that a tiny model is many reads."""
    monkeypatch.setattr(sections, "CHUNK_BYTES", 4096)


def logits(path: pathlib.Path, **options: Any) -> np.ndarray[Any, Any]:
    with kit.load(path, n_threads=1, progress=False, **options) as model, model.session(n_ctx=64) as session:
        return session.run(IDS).logits


class Closing:
    """Closes the weights at the end of a block."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def __enter__(self) -> Weights:
        return self.weights

    def __exit__(self, *exc: object) -> None:
        self.weights.close()


def read_weights(path: pathlib.Path, backend: kit.Backend, **options: Any) -> Closing:
    return Closing(Weights(GGUFFile(path), backend, use_mmap=False, progress=False, **options))


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


# Failures


class Racing:
    """Real reads, but for those of chosen readers, which fail one after another as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[int, Callable[[], int]]]) -> None:
        self.preadv = os.preadv
        self.steps = dict(steps)
        order = [reader for reader, _ in steps]
        self.before = dict(zip(order, [None, *order[:-1]], strict=True))
        self.noted = {reader: threading.Event() for reader in order}
        self.inside = threading.Barrier(len(order))
        racing = self

        class Noting(Failures):
            def add(self, reader: int, error: BaseException) -> None:
                super().add(reader, error)
                racing.noted[reader].set()

        class Numbered(reading._Reader):
            def _read(self, chunk: sections.Chunk) -> None:
                racing.local.number = self.number
                super()._read(chunk)

        self.local = threading.local()
        monkeypatch.setattr(reading, "Failures", Noting)
        monkeypatch.setattr(reading, "_Reader", Numbered)
        monkeypatch.setattr(os, "preadv", self.read)

    def read(self, descriptor: int, buffers: list[memoryview], offset: int) -> int:
        number = self.local.number
        if number not in self.steps:
            return self.preadv(descriptor, buffers, offset)
        self.inside.wait(30)  # all that will fail are in the middle of a read
        if self.before[number] is not None:
            assert self.noted[self.before[number]].wait(30)
        return self.steps[number]()


def system_says(path: str, flags: int, offset: int) -> Callable[[], int]:
    """A read the kernel refuses for a reason of its own."""

    def refused() -> int:
        descriptor = os.open(path, flags)
        try:
            return len(os.pread(descriptor, 16, offset))
        finally:
            os.close(descriptor)

    return refused


io_error = system_says("/proc/self/mem", os.O_RDONLY, 0)  # nothing is mapped at 0: EIO
is_folder = system_says("/", os.O_RDONLY, 0)


def closed_descriptor() -> int:
    """A read of a descriptor that another reader's clearing up has closed."""
    descriptor = os.open("/", os.O_RDONLY)
    os.close(descriptor)
    return len(os.pread(descriptor, 16, 0))


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_the_earliest_error_is_raised_and_the_others_are_its_notes(split, backend, small_chunks, monkeypatch, order):
    Racing(monkeypatch, list(zip(order, [io_error, is_folder, is_folder], strict=True)))
    with pytest.raises(GGUFReadError, match=r"Input/output error \(EIO 5\)") as caught:
        read_weights(split[0], backend, readers=4)
    error = caught.value
    assert error.errno == errno.EIO and isinstance(error.__cause__, OSError)
    info = GGUFFile(split[0]).tensors[error.tensor]
    assert info.path == error.filename and info.offset <= error.offset < info.offset + info.nbytes
    assert [note.split(":")[0] for note in error.__notes__] == [f"reader {reader} also failed" for reader in order[1:]]
    assert all("Is a directory (EISDIR 21)" in note for note in error.__notes__)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_closed_descriptor_is_never_the_cause_where_there_is_another(
    split, backend, small_chunks, monkeypatch, order
):
    Racing(monkeypatch, list(zip(order, [closed_descriptor, io_error], strict=True)))
    with pytest.raises(GGUFReadError, match="Input/output error") as caught:
        read_weights(split[0], backend, readers=2)
    (note,) = caught.value.__notes__
    assert "Bad file descriptor" in note


def test_a_closed_descriptor_alone_is_told(split, backend, small_chunks, monkeypatch):
    Racing(monkeypatch, [(1, closed_descriptor)])
    with pytest.raises(GGUFReadError, match="Bad file descriptor"):
        read_weights(split[0], backend, readers=2)


def test_what_is_no_error_of_the_system_is_not_lost_either(split, backend, small_chunks, monkeypatch):
    def broken() -> int:
        raise ZeroDivisionError("in a reader")

    Racing(monkeypatch, [(2, broken), (1, io_error)])
    with pytest.raises(ZeroDivisionError, match="in a reader") as caught:
        read_weights(split[0], backend, readers=2)
    assert "Input/output error" in caught.value.__notes__[0]


def test_a_progress_bar_that_fails_is_no_silent_end_of_the_reading(split, backend, small_chunks, monkeypatch):
    class Broken:
        def __init__(self, **options: object) -> None:
            pass

        def __enter__(self) -> Broken:
            return self

        def __exit__(self, *exc: object) -> None:
            pass

        def update(self, nbytes: int) -> None:
            raise BrokenPipeError("nobody reads the bar")

    monkeypatch.setattr(reading, "tqdm", Broken)
    with pytest.raises(BrokenPipeError, match="nobody reads the bar"):
        read_weights(split[0], backend, readers=2)


def test_an_interrupt_carries_what_had_failed_before(split, backend, small_chunks, monkeypatch):
    failed, said = threading.Event(), []
    wait = reading.wait

    def interrupted(pending, timeout):
        assert failed.wait(30)
        wait(pending, timeout)
        raise KeyboardInterrupt

    class Noting(Failures):
        def add(self, reader: int, error: BaseException) -> None:
            super().add(reader, error)
            said.append(str(error))
            failed.set()

    monkeypatch.setattr(reading, "Failures", Noting)
    monkeypatch.setattr(reading, "wait", interrupted)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: io_error() if at > 90000 else preadv(fd, buffers, at))
    with pytest.raises(KeyboardInterrupt) as caught:
        read_weights(split[0], backend, readers=2)
    assert said[0] in caught.value.__notes__[0]


def test_a_file_that_becomes_shorter_while_it_is_read(split, backend, small_chunks, monkeypatch):
    preadv, cut = os.preadv, threading.Event()
    size = split[0].stat().st_size // 2

    def cutting(descriptor, buffers, offset):
        if not cut.is_set() and offset >= 40_000:
            os.truncate(split[0], size)
            cut.set()
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", cutting)
    file = GGUFFile(split[0])
    with pytest.raises(GGUFReadError, match=rf"{split[0].name}: the file ends at byte {size}, .* tensor '") as caught:
        Weights(file, backend, use_mmap=False, progress=False, readers=1)
    info = file.tensors[caught.value.tensor]
    assert info.offset <= size < info.offset + info.nbytes and caught.value.errno is None


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """The system gives this process no further file descriptor."""
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_out_of_descriptors_is_told_so(split, backend):
    file = GGUFFile(split[0])
    with no_descriptor_left(), pytest.raises(GGUFReadError, match=r"Too many open files \(EMFILE 24\)") as caught:
        Weights(file, backend, use_mmap=False, progress=False, readers=2)
    assert caught.value.tensor in file.tensors
    assert file.tensors[caught.value.tensor].path == caught.value.filename
    with no_descriptor_left(), pytest.raises(kit.GGUFError, match=r"m-0000\d-of-00004\.gguf.*EMFILE"):
        Weights(file, backend)


@contextlib.contextmanager
def forbidden(path: pathlib.Path) -> Iterator[None]:
    """The file may not be read; root, who may read all, becomes nobody, whom root's folders keep out."""
    user, mode = os.geteuid(), path.stat().st_mode
    if user == 0:
        os.seteuid(65534)
    else:
        path.chmod(0)
    try:
        yield
    finally:
        os.seteuid(user) if user == 0 else path.chmod(mode)


@pytest.mark.parametrize("use_mmap", [True, False])
def test_a_file_that_may_not_be_read_is_told_so(split, backend, use_mmap):
    file = GGUFFile(split[0])
    with forbidden(split[0]), pytest.raises(GGUFReadError, match=r"m-0.*Permission denied \(EACCES 13\)"):
        Weights(file, backend, use_mmap=use_mmap, progress=False)
