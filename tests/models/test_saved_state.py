"""Saved sessions: what comes back is what was there, to the bit; what is damaged or another's is refused."""

from __future__ import annotations

import json
import os
import signal
import struct
import zlib

import numpy as np
import pytest

import kit
from kit.models.cache import saved_state
from kit.models.files import replace

from .test_generation import GREEDY, IDS, ids_of

HEAD = struct.Struct("<8sII")


@pytest.fixture(params=[False, True], ids=["permuted", "flash"])
def either(request, model):
    return model.session(n_ctx=512, flash_attn=request.param)


@pytest.fixture
def saved(session, tmp_path):
    session.run(IDS)
    path = tmp_path / "state"
    session.save(path)
    return path


def parts(path) -> tuple[dict, bytes]:
    """Header and data of a file, read by the layout its module's text gives."""
    whole = path.read_bytes()
    magic, version, n_header = HEAD.unpack_from(whole)
    assert (magic, version) == (b"kitstate", 1)
    data = whole[HEAD.size + n_header + 4 :]
    assert struct.unpack_from("<I", whole, HEAD.size + n_header) == (zlib.crc32(data),)
    return json.loads(whole[HEAD.size : HEAD.size + n_header]), data


def rewrite(path, header: dict, data: bytes) -> None:
    raw = json.dumps(header).encode()
    path.write_bytes(HEAD.pack(b"kitstate", 1, len(raw)) + raw + struct.pack("<I", zlib.crc32(data)) + data)


def test_the_next_logits_are_the_same_to_the_bit(either, tmp_path):
    made = list(either.generate(IDS, max_tokens=5, sampler=GREEDY))
    n_written = either.save(tmp_path / "state")
    assert n_written == (tmp_path / "state").stat().st_size
    expected = either.run([9, 8]).logits
    with either.model.session(n_ctx=512, flash_attn=either.attention.kind == "flash") as other:
        other.run([77] * 40)
        other.restore(tmp_path / "state")
        assert other.tokens == (*IDS, *ids_of(made)) and other.n_past == len(other.tokens) - 1
        assert np.array_equal(other.run([9, 8]).logits, expected)


def test_a_generation_goes_on_as_if_it_had_not_stopped(either, tmp_path):
    once = ids_of(either.generate(IDS, max_tokens=8, sampler=GREEDY))
    either.reset()
    first = ids_of(either.generate(IDS, max_tokens=3, sampler=GREEDY))
    either.save(tmp_path / "state")
    settings = {"n_ctx": 300, "flash_attn": either.attention.kind == "flash"}
    with kit.Session.load(either.model, tmp_path / "state", **settings) as other:
        assert first + ids_of(other.generate(max_tokens=5, sampler=GREEDY)) == once


def test_the_file_does_not_depend_on_how_the_cache_lies(model, tmp_path):
    rows = []
    for flash in (False, True):
        with model.session(n_ctx=64, flash_attn=flash) as session:
            session.run(IDS)
            session.save(tmp_path / str(flash))
        rows.append(np.frombuffer(parts(tmp_path / str(flash))[1][4 * len(IDS) :], np.float16))
    assert rows[0].size == 2 * model.config.n_layer * model.config.n_embd_kv * len(IDS)
    assert np.allclose(*rows, atol=1e-2)
    with model.session(n_ctx=64, flash_attn=True) as session:
        whole = session.run([*IDS, 9]).logits[-1]
        session.restore(tmp_path / "False")
        assert np.allclose(session.run([9]).logits[-1], whole, atol=1e-2)


def test_a_shifted_session_comes_back(model, tmp_path):
    with model.session(n_ctx=32) as session, model.session(n_ctx=64) as other:
        session.run(list(range(10, 38)))
        session.shift(4, 10)
        session.save(tmp_path / "state")
        other.restore(tmp_path / "state")
        assert other.tokens == session.tokens and other.n_past == 18
        # The cells lie in another order now, so the sums of attention are rounded otherwise.
        assert np.allclose(other.run([9]).logits, session.run([9]).logits, atol=1e-3)


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8_0"])
def test_other_cache_types_come_back_to_the_bit(tiny_path, tmp_path, kind):
    with kit.load(tiny_path("wide-heads-untied"), n_threads=1) as model:
        with model.session(n_ctx=64, cache_type=kind) as session:
            session.run(IDS)
            session.save(tmp_path / "state")
            expected = session.run([9]).logits
        with model.session(n_ctx=64, cache_type=kind) as session:
            session.restore(tmp_path / "state")
            assert np.array_equal(session.run([9]).logits, expected)
        with model.session(n_ctx=64) as session, pytest.raises(kit.StateError, match="has cache"):
            session.restore(tmp_path / "state")


@pytest.mark.parametrize("flash", [False, True])
def test_behind_a_sliding_window_the_last_tokens_come_back(tiny_path, tmp_path, flash):
    ids = [1, *range(30, 60)]
    with kit.load(tiny_path("window"), n_threads=1) as model:
        with model.session(n_ctx=8, flash_attn=flash) as session:
            for token in ids:
                session.run([token])
            session.save(tmp_path / "state")
            expected = session.run([9]).logits
        assert parts(tmp_path / "state")[0]["n_cells"] < len(ids)
        with model.session(n_ctx=8, flash_attn=flash) as session:
            session.restore(tmp_path / "state")
            assert session.tokens == tuple(ids)
            assert np.allclose(session.run([9]).logits, expected, atol=1e-4)


def test_keys_turned_for_a_long_context_are_refused_in_a_short_one(tiny_path, tmp_path):
    with kit.load(tiny_path("longrope-as-trained"), n_threads=1) as model:
        with model.session(n_ctx=128) as session:
            session.run(IDS)
            session.save(tmp_path / "state")
        with model.session(n_ctx=256) as session:
            session.restore(tmp_path / "state")
        with model.session(n_ctx=64) as session, pytest.raises(kit.StateError, match=r"n_ctx.*64"):
            session.restore(tmp_path / "state")


def test_only_used_cells_are_written(model, saved):
    header, data = parts(saved)
    assert header["n_tokens"] == len(IDS)
    assert len(data) == 4 * len(IDS) + sum(header["rows"]) * len(IDS)
    assert np.frombuffer(data, "<i4", len(IDS)).tolist() == IDS


def test_an_empty_session_can_be_saved(session, tmp_path):
    session.save(tmp_path / "state")
    session.run(IDS)
    session.restore(tmp_path / "state")
    assert session.tokens == () and session.n_past == 0
    assert session.run(IDS).logits.shape[0] == len(IDS)


def test_a_larger_session_than_fits_is_refused(model, saved):
    with model.session(n_ctx=3) as small, pytest.raises(kit.CacheFull, match=r"holds 4 tokens.*n_ctx=3"):
        small.restore(saved)


def test_an_interrupt_while_rows_are_written_leaves_an_empty_session(session, saved, monkeypatch):
    expected = session.run([9]).logits
    real = saved_state.put_rows

    def interrupted(cache, cells, data):
        real(cache, cells[:1], data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(saved_state, "put_rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.restore(saved)
    assert session.tokens == () and session.n_past == 0 and session.cache.cells.end() == 0
    session.restore(saved)
    assert np.array_equal(session.run([9]).logits, expected)


def test_another_models_state_is_refused_by_both_names(saved, tiny_path):
    with kit.load(tiny_path("biased"), n_threads=1) as other, other.session(n_ctx=64) as session:
        session.run([5])
        with pytest.raises(kit.StateError, match="another model"):
            session.restore(saved)
        assert session.tokens == (5,)


def test_two_models_of_one_shape_differ_by_their_weights(tiny_path, tmp_path):
    whole = bytearray(tiny_path("grouped").read_bytes())
    file = kit.GGUFFile(tiny_path("grouped"))
    info = file.tensors["blk.1.ffn_up.weight"]
    whole[info.offset] ^= 1
    (tmp_path / "tuned.gguf").write_bytes(whole)
    prints = []
    for path in (tiny_path("grouped"), tmp_path / "tuned.gguf"):
        with kit.load(path, n_threads=1) as model:
            prints.append(saved_state.fingerprint(model))
    assert prints[0] != prints[1]


def edited(**changes):
    return lambda header, data: (header | changes, data)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (edited(n_unseen=1), "its header says"),
        (edited(n_tokens=5), "4 cells of 5 tokens"),
        (edited(n_cells=3), "3 cells of 4 tokens"),
        (edited(n_cells=5), "5 cells of 4 tokens"),
        (edited(n_tokens=600, n_cells=600), "holds 600 tokens"),
        (edited(n_tokens=-1), "whole numbers"),
        (edited(n_tokens=True), "whole numbers"),
        (edited(n_tokens=10**30), "whole numbers"),
        (edited(n_unseen="x"), "whole numbers"),
        (edited(rows=[1]), "has rows"),
        (edited(cache=["q8_0", "q8_0"]), "has cache"),
        (edited(model="0"), "another model"),
        (lambda header, data: (list(header), data), "cannot be read"),
        (lambda header, data: ({}, data), "cannot be read"),
        (lambda header, data: (header, data[:-1]), "cut off or damaged"),
        (lambda header, data: (header, data + b"x"), "cut off or damaged"),
        (lambda header, data: (header, struct.pack("<i", -1) + data[4:]), "outside the vocabulary"),
        (lambda header, data: (header, struct.pack("<i", 10**9) + data[4:]), "outside the vocabulary"),
        (lambda header, data: (header, data[:-2] + b"\x00\x7e"), "no finite numbers"),
    ],
)
def test_a_file_that_lies_is_refused_and_the_session_stays(session, saved, edit, words):
    expected = session.run([9]).logits
    rewrite(saved, *edit(*parts(saved)))
    session.reset()
    session.run(IDS)
    with pytest.raises((kit.StateError, kit.CacheFull), match=words) as caught:
        session.restore(saved)
    assert str(saved) in str(caught.value)
    assert np.array_equal(session.run([9]).logits, expected)


@pytest.mark.parametrize("n_kept", [0, 5, 15, 16, 40, 300])
def test_a_file_cut_anywhere_is_refused(session, saved, n_kept):
    saved.write_bytes(saved.read_bytes()[:n_kept])
    with pytest.raises(kit.StateError, match="state"):
        session.restore(saved)


def test_a_flipped_bit_is_found(session, saved):
    whole = bytearray(saved.read_bytes())
    whole[-9] ^= 4
    saved.write_bytes(whole)
    with pytest.raises(kit.StateError, match="checksum"):
        session.restore(saved)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (HEAD.pack(b"GGUF\3\0\0\0", 1, 2), "no saved session"),
        (HEAD.pack(b"kitstate", 2, 2), "version 2"),
        (HEAD.pack(b"kitstate", 1, 2**31), "header of 2147483648 bytes"),
        (HEAD.pack(b"kitstate", 1, 60_000), "cannot be read"),
    ],
)
def test_another_kind_of_file_is_refused(session, tmp_path, head, words):
    path = tmp_path / "state"
    path.write_bytes(head + b"[" * 60_000)
    with pytest.raises(kit.StateError, match=words):
        session.restore(path)


def test_a_missing_file_is_a_missing_file(session, tmp_path):
    with pytest.raises(kit.StateNotFound, match="there is no saved session"):
        session.restore(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        kit.Session.load(session.model, tmp_path / "nothing", n_ctx=16)


def test_a_save_that_fails_leaves_the_file_that_was_there(session, saved, monkeypatch):
    before = saved.read_bytes()
    session.run([9])

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(replace.os, "fsync", full)
    with pytest.raises(kit.StateFileError, match="state: writing failed: No space"):
        session.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["state"]


@pytest.mark.parametrize(("path", "words"), [("nowhere/state", "no folder"), ("", "no path"), (5, "no path")])
def test_what_is_no_place_for_a_file_is_refused_by_name(session, tmp_path, monkeypatch, path, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kit.KitError, match=words):
        session.save(path)
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_neither_replaced_nor_read(session, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link"):
        with pytest.raises(kit.StateFileError, match="no regular file"):
            session.save(path)
        with pytest.raises(kit.StateFileError, match="no regular file"):
            session.restore(path)
    assert pipe.is_fifo() and (tmp_path / "link").is_symlink()


def test_a_link_stays_and_what_it_points_to_is_replaced(session, tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    session.save(link)
    assert link.is_symlink() and target.read_bytes().startswith(b"kitstate")


def test_an_interrupt_as_the_file_is_made_leaves_none(session, tmp_path, monkeypatch):
    def made(*args, **settings):
        signal.raise_signal(signal.SIGINT)
        return open(*args, **settings)

    monkeypatch.setattr(replace, "open", made, raising=False)
    with pytest.raises(KeyboardInterrupt):
        session.save(tmp_path / "state")
    assert not list(tmp_path.iterdir())


def test_a_closed_session_neither_saves_nor_restores(model, saved, tmp_path):
    session = model.session(n_ctx=64)
    session.close()
    with pytest.raises(kit.ClosedError):
        session.save(tmp_path / "other")
    with pytest.raises(kit.ClosedError):
        session.restore(saved)


@pytest.mark.parametrize("flash", [False, True])
def test_cells_that_lay_in_another_order_come_back_with_the_same_rows(model, tmp_path, flash):
    with model.session(n_ctx=64, flash_attn=flash, cache_type="f32") as session:
        session.run(IDS)
        with session.fork(3) as branches:
            branches.run([[9, 8], [7, 6], None])
            branches.run([[5], [4], [3]])
            branches.keep(1)
        assert np.any(np.diff(session.cache.cells.of()) != 1)
        session.save(tmp_path / "state")
        rows = saved_state.rows_of(session.cache, session.cache.cells.of())
        with model.session(n_ctx=64, flash_attn=flash, cache_type="f32") as other:
            other.restore(tmp_path / "state")
            assert other.cache.cells.of().tolist() == list(range(len(IDS) + 3))
            assert saved_state.rows_of(other.cache, other.cache.cells.of()) == rows
            assert np.allclose(other.run([2]).logits, session.run([2]).logits, rtol=1e-3, atol=1e-3)


def test_every_part_of_a_split_model_is_looked_into(split, tmp_path):
    with kit.load(split[0], n_threads=1) as one, one.session(n_ctx=256) as session:
        session.run(IDS)
        session.save(tmp_path / "state")
        last = next(info for info in one._file.tensors.values() if info.path == split[-1])
    with open(last.path, "r+b") as file:
        file.seek(last.offset)
        file.write(b"\x00\x00\x80\x3f")
    with kit.load(split[0], n_threads=1) as other, pytest.raises(kit.StateError):
        other.session(n_ctx=256).restore(tmp_path / "state")
