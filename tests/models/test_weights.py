"""Weights: mapped or read, the same values; every way reading can fail is named and leaves nothing."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import threading

import numpy as np
import pytest

import kit
from kit.core.gguf import GGUFFile
from kit.models.weights import sections
from kit.models.weights.weights import Weights

from . import tiny

IDS = [1, 100, 7, 42]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def path(tiny_path):
    return tiny_path("grouped")


def test_read_weights_are_the_mapped_ones_and_both_are_the_files(path):
    expected = tiny.Tiny().weights
    logits = []
    for use_mmap in (True, False):
        with kit.load(path, use_mmap=use_mmap, progress=False, n_threads=1) as model:
            assert model.weights.mapped == use_mmap
            assert model.weights.keys() == expected.keys()
            for name, values in expected.items():
                assert np.array_equal(model.weights[name].numpy(), values)
            logits.append(model.session(n_ctx=64).run(IDS).logits)
    assert np.array_equal(*logits)


@pytest.mark.model
def test_the_demo_model_read_in_parallel_gives_the_logits_of_the_mapped_one(demo):
    with kit.load(demo.path, use_mmap=False, progress=False, n_threads=1) as read:
        logits = [model.session(n_ctx=64) for model in (demo, read)]
        first, second = (session.run(IDS).logits for session in logits)
        assert np.array_equal(first, second)
        logits[0].close()


def test_mapped_weights_lie_in_the_file_and_read_ones_in_a_buffer(path):
    before, size = set(kit.memory.live()), path.stat().st_size
    with kit.load(path, n_threads=1):
        mine = {r.kind: r.nbytes for r in set(kit.memory.live()) - before if r.purpose == "weights"}
        assert mine == {"mapping": size, "buffer": 0}  # the mapping accounts for the bytes, once
    with kit.load(path, use_mmap=False, progress=False, n_threads=1) as model:
        mine = {r.kind: r.nbytes for r in set(kit.memory.live()) - before if r.purpose == "weights"}
        assert mine.keys() == {"buffer"} and model.weights.nbytes <= mine["buffer"] < size


@pytest.fixture
def opened(path, tmp_path):
    """A file of its own, opened while it was whole, and a backend."""
    copy = shutil.copy(path, tmp_path / "model.gguf")
    with kit.Backend(n_threads=1) as backend:
        before, files = kit.memory.live(), open_files()
        yield GGUFFile(copy), backend
        assert kit.memory.live() == before and open_files() == files


def test_a_file_cut_short_before_mapping_is_named_with_its_sizes(opened):
    file, backend = opened
    os.truncate(file.path, 50_000)
    with pytest.raises(kit.GGUFError, match=rf"model\.gguf shrank from {file.nbytes} to 50000"):
        Weights(file, backend)


def test_a_file_cut_short_while_reading_is_named_with_tensor_and_offset(opened):
    file, backend = opened
    last = max(file.tensors.values(), key=lambda info: info.offset)
    os.truncate(file.path, last.offset + 8)
    with pytest.raises(
        kit.GGUFError, match=rf"model\.gguf.*ends at byte {last.offset + 8}, inside tensor '{last.name}'"
    ):
        Weights(file, backend, use_mmap=False, progress=False)


def test_a_file_that_is_gone_is_named(opened):
    file, backend = opened
    file.path.unlink()
    for use_mmap in (True, False):
        with pytest.raises(kit.GGUFError, match=r"model\.gguf.*gone"):
            Weights(file, backend, use_mmap=use_mmap, progress=False)


def test_an_error_of_the_disk_is_named_with_tensor_offset_and_reason(opened, monkeypatch):
    file, backend = opened
    preadv = os.preadv

    def failing(descriptor, buffers, offset):
        if offset >= file.tensors["blk.1.ffn_up.weight"].offset:
            raise OSError(5, os.strerror(5))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    monkeypatch.setattr(sections, "CHUNK_BYTES", 4096)
    said = r"model\.gguf: reading tensor 'blk.* at byte \d+: Input/output error \(EIO 5\)"
    with pytest.raises(kit.GGUFError, match=said) as caught:
        Weights(file, backend, use_mmap=False, progress=False)
    assert caught.value.errno == 5 and caught.value.tensor in file.tensors


def test_reading_in_short_pieces_gives_the_same(opened, monkeypatch):
    file, backend = opened
    preadv = os.preadv
    monkeypatch.setattr(sections, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: preadv(fd, [buffers[0][:777]], offset))
    weights = Weights(file, backend, use_mmap=False, progress=False)
    for name, values in tiny.Tiny().weights.items():
        assert np.array_equal(weights[name].numpy(), values)
    weights.close()


def test_an_interrupt_while_reading_stops_the_readers_and_frees_all(opened, monkeypatch):
    file, backend = opened
    preadv, started = os.preadv, threading.Event()

    def slow(descriptor, buffers, offset):
        started.set()
        threading.Event().wait(0.02)
        return preadv(descriptor, [buffers[0][:64]], offset)

    monkeypatch.setattr(os, "preadv", slow)
    monkeypatch.setattr(sections, "CHUNK_BYTES", 4096)

    def interrupt():
        started.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        Weights(file, backend, use_mmap=False, progress=False)
    thread.join()
    for _ in range(200):
        if not [t for t in threading.enumerate() if t.name.startswith("kit-read")]:
            break
        threading.Event().wait(0.05)
    else:
        pytest.fail("a reader goes on")


def test_weights_larger_than_memory_are_refused_with_their_bytes(tmp_path):
    path, size = tmp_path / "huge.gguf", 1 << 44
    model = tiny.Tiny()
    tiny.write(path, model)
    with kit.Backend(n_threads=1) as backend:
        file = GGUFFile(path)
        info = file.tensors["output_norm.weight"]
        object.__setattr__(info, "shape", (size // 4,))
        before = kit.memory.live()
        with pytest.raises(kit.OutOfMemory, match=r"huge\.gguf") as caught:
            Weights(file, backend, use_mmap=False, progress=False)
        assert caught.value.nbytes >= size
        assert kit.memory.live() == before


def test_a_model_that_is_dropped_gives_everything_back(path):
    def use() -> None:
        model = kit.load(path, n_threads=1)
        session = model.session(n_ctx=64)
        next(session.steps(IDS))
        model.lens_logits(np.zeros((1, 64), np.float32))

    before, files = kit.memory.live(), open_files()
    use()
    gc.collect()
    assert kit.memory.live() == before and open_files() == files
