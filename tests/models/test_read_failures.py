"""Reading that fails, for real reasons: which of several failures is told, and with what."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import resource
import threading
from collections.abc import Callable, Iterator

import pytest

import kit
from kit.core.gguf import GGUFFile
from kit.errors import GGUFReadError
from kit.models.weights import reading, sections
from kit.models.weights.failures import Failures
from kit.models.weights.weights import Weights

from .reading_tools import read_weights


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
        def __init__(self, *what: object, **options: object) -> None:
            pass

        def close(self) -> None:
            pass

        def update(self, nbytes: int) -> None:
            raise BrokenPipeError("nobody reads the bar")

    monkeypatch.setattr(reading, "byte_bar", Broken)
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
