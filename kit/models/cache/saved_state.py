"""A session in a file: its tokens and what the cache holds of them.

Layout, little-endian: magic (8 bytes), version (u32), length of the header (u32), header (JSON), CRC-32 of all
that follows (u32), token ids (i32 each), then for each layer the keys and the values of the tokens the cache holds,
a row of kv_heads * head_dim per token, by position, whatever the cache's own layout is. Of a sliding window these are
the last tokens only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import stat
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from kit.core import transfer
from kit.core.compute import turn
from kit.core.dtypes import dtype_by_id, to_array
from kit.core.interrupts import uninterrupted
from kit.errors import ArgumentError, CacheFull, StateError, StateFileError, StateNotFound
from kit.models.cache.cells import MAIN
from kit.models.files.replace import place_for, replacing
from kit.units import bytes_text

if TYPE_CHECKING:
    from kit.core.tensor import Tensor
    from kit.models.cache.cache import KVCache
    from kit.models.model import Model
    from kit.models.session.session import Session

MAGIC = b"kitstate"
VERSION = 1
_HEAD = struct.Struct("<8sII")
_MOST_HEADER = 1 << 16
_SAMPLE = 4096


def save(session: Session, path: str | os.PathLike[str]) -> int:
    """See `Session.save`. The file appears whole or not at all."""
    target = place_for(path, StateFileError)
    with session.working(), turn():
        tokens = np.asarray(session._tokens, "<i4"), np.asarray(session._unseen, "<i4")
        cells = session.cache.cells.of(MAIN)
        rows = rows_of(session.cache, cells)
        stained = bool(session.cache.cells.stained[cells].any())
    if stained and not all_finite(session.cache, len(cells), memoryview(b"".join(rows))):
        raise StateError(
            f"{target} was not written: the session holds keys or values that are no finite numbers; reset() it"
        )
    parts = [part.tobytes() for part in tokens] + rows
    counts = {"n_tokens": len(tokens[0]), "n_unseen": len(tokens[1]), "n_cells": len(cells)}
    header = json.dumps(_layout(session) | counts).encode()
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    pieces = [_HEAD.pack(MAGIC, VERSION, len(header)), header, struct.pack("<I", checksum), *parts]
    with replacing(target, StateFileError) as file:
        try:
            file.writelines(pieces)
        except OSError as error:
            raise StateFileError(f"{target}: writing failed: {error.strerror}") from error
    return sum(map(len, pieces))


def restore(session: Session, path: str | os.PathLike[str]) -> None:
    """See `Session.restore`. Everything is read and checked before the session changes."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"{path!r} is no path of a saved session")
    source = pathlib.Path(os.fsdecode(path))
    with _opened(source) as file:
        n_tokens, n_unseen, n_cells = _checked_header(session, source, file)
        n_bytes = 4 * (n_tokens + n_unseen) + n_cells * sum(row_sizes(session.cache))
        found = os.fstat(file.fileno()).st_size - file.tell() - 4
        if found != n_bytes:
            raise StateError(
                f"{source} has {bytes_text(max(found, 0))} of tokens and cache, its header says {bytes_text(n_bytes)}; "
                "it is cut off or damaged, save it again"
            )
        checksum = struct.unpack("<I", file.read(4))[0]
        data = file.read(n_bytes)
    if len(data) != n_bytes or zlib.crc32(data) != checksum:
        raise StateError(f"{source} is damaged: its checksum is another than the one written; save it again")
    ids = np.frombuffer(data, "<i4", n_tokens + n_unseen)
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < session.model.config.n_vocab:
        raise StateError(f"{source} holds token ids outside the vocabulary of {session.model.config.n_vocab}")
    rows = memoryview(data)[ids.nbytes :]
    if not all_finite(session.cache, n_cells, rows):
        raise StateError(f"{source} holds keys or values that are no finite numbers; it is damaged, save it again")
    session.reset()
    with session.working(), turn():
        cells = session.cache.cells
        seen = np.arange(n_tokens - n_cells, n_tokens, dtype=np.int32)
        try:
            cells.ends[MAIN] = n_tokens - n_cells
            batch = cells.batch(ids[:n_tokens][seen].tolist())
            put_rows(session.cache, batch.cells, rows)
        except BaseException:
            cells.clear()
            raise
        with uninterrupted:
            cells.enter(batch)
            cells.ends[MAIN] = n_tokens
            session._tokens[:] = ids[:n_tokens].tolist()
            session._unseen[:] = ids[n_tokens:].tolist()


def _opened(source: pathlib.Path) -> BinaryIO:
    try:
        if source.exists() and not stat.S_ISREG(source.stat().st_mode):
            raise StateFileError(f"{source} is no regular file; give the path of a saved session")
        return open(source, "rb")
    except FileNotFoundError as error:
        raise StateNotFound(f"there is no saved session {source}") from error
    except (OSError, ValueError) as error:
        if isinstance(error, StateFileError):
            raise
        raise StateFileError(f"{source} cannot be read: {error}") from error


def fingerprint(model: Model) -> str:
    """What tells a model's file from others: a hash of its header and of the first and last bytes of each tensor.

    Every part of a split model is looked into. Weights that were altered between those bytes are not noticed.
    """
    digest = hashlib.sha256()
    file = model._file
    with open(file.path, "rb") as opened:
        digest.update(opened.read(min(file.data_offset, 1 << 24)))
    with contextlib.ExitStack() as stack:
        parts = {part.path: stack.enter_context(open(part.path, "rb")) for part in file.parts}
        for info in file.tensors.values():
            opened = parts[info.path]
            for start in (0, max(0, info.nbytes - _SAMPLE)):
                opened.seek(info.offset + start)
                digest.update(opened.read(min(info.nbytes, _SAMPLE)))
    return digest.hexdigest()


def row_sizes(cache: KVCache) -> list[int]:
    """Bytes of a row of one token, for the keys and values of each layer in turn."""
    return [tensor.nbytes // cache.n_cells for pair in zip(cache.k, cache.v, strict=True) for tensor in pair]


def rows_of(cache: KVCache, cells: npt.NDArray[np.int64]) -> list[bytes]:
    """Rows of ``cells``, for the keys and values of each layer in turn."""
    parts = []
    for tensor, permuted in _tensors(cache):
        whole = _by_cell(tensor, cache, permuted)
        parts.append(np.ascontiguousarray(whole[cells]).tobytes())
    return parts


def all_finite(cache: KVCache, n_cells: int, data: memoryview) -> bool:
    """Whether rows, as `rows_of` gives them, hold finite numbers only: a NaN would outlast even `Session.reset`."""
    at = 0
    for tensor, _ in _tensors(cache):
        rows = np.frombuffer(data, np.uint8, n_cells * (tensor.nbytes // cache.n_cells), at)
        at += rows.nbytes
        shape = (n_cells, tensor.size // cache.n_cells)
        if n_cells and not np.isfinite(to_array(rows, dtype_by_id(tensor.p.type), shape)).all():
            return False
    return True


def put_rows(cache: KVCache, cells: npt.NDArray[np.int64], data: memoryview) -> None:
    """Write what `rows_of` gave to ``cells``."""
    at = 0
    for tensor, permuted in _tensors(cache):
        whole = _by_cell(tensor, cache, permuted)
        n_row = tensor.nbytes // cache.n_cells
        rows = np.frombuffer(data, np.uint8, len(cells) * n_row, at)
        at += rows.nbytes
        whole[cells] = rows.reshape(len(cells), *whole.shape[1:])
        transfer.set_bytes(tensor.p, np.ascontiguousarray(whole.swapaxes(0, 1) if permuted else whole).reshape(-1))


def _tensors(cache: KVCache) -> Iterator[tuple[Tensor, bool]]:
    """Keys and values of each layer in turn, and whether they lie permuted."""
    for k, v in zip(cache.k, cache.v, strict=True):
        yield k, False
        yield v, cache.permuted


def _by_cell(tensor: Tensor, cache: KVCache, permuted: bool) -> npt.NDArray[np.uint8]:
    """A copy of a tensor's bytes, cells first: (cells, bytes of a row), or permuted (cells, elements, bytes of one)."""
    whole = np.empty(tensor.nbytes, np.uint8)
    transfer.get_bytes(tensor.p, whole)
    if not permuted:
        return whole.reshape(cache.n_cells, -1)
    return whole.reshape(-1, cache.n_cells, tensor.nbytes // tensor.size).swapaxes(0, 1)


def _layout(session: Session) -> dict[str, Any]:
    """What a file and a session have to agree on."""
    model, cache, rope = session.model, session.cache, session.model.config.rope
    return {
        "model": fingerprint(model),
        "name": model.config.name,
        "cache": [cache.k[0].dtype, cache.v[0].dtype],
        "rows": row_sizes(cache),
        "long": rope.scaling == "longrope" and session.n_ctx > rope.n_ctx_orig,
    }


def _checked_header(session: Session, path: pathlib.Path, file: BinaryIO) -> tuple[int, int, int]:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise StateError(f"{path} is no saved session: it begins with {head[:8]!r}, expected {MAGIC!r}")
    _, version, n_header = _HEAD.unpack(head)
    if version != VERSION:
        raise StateError(f"{path} has version {version} of the format, this kit reads version {VERSION}")
    if n_header > _MOST_HEADER:
        raise StateError(f"{path} has a header of {n_header} bytes, expected at most {_MOST_HEADER}; it is damaged")
    try:
        header = json.loads(file.read(n_header))
        counts = [header[key] for key in ("n_tokens", "n_unseen", "n_cells")]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise StateError(f"{path} has a header that cannot be read: {error!r}") from error
    if not all(type(n) is int and 0 <= n < 1 << 31 for n in counts):
        raise StateError(f"{path} says it holds {counts} tokens, new ones and cells, expected whole numbers")
    n_tokens, n_unseen, n_cells = counts
    window = session.cache.cells.window
    if n_cells > n_tokens or n_cells < (n_tokens if window is None else min(n_tokens, window)):
        raise StateError(f"{path} holds {n_cells} cells of {n_tokens} tokens; it is damaged, save it again")
    for key, mine in _layout(session).items():
        if header.get(key) != mine and key != "name":
            raise StateError(_mismatch(path, key, header, mine, session))
    if n_cells + n_unseen > session.n_ctx:
        raise CacheFull(
            f"{path} holds {n_cells + n_unseen} tokens, the session n_ctx={session.n_ctx}; open a larger one"
        )
    return n_tokens, n_unseen, n_cells


def _mismatch(path: pathlib.Path, key: str, header: dict[str, Any], mine: Any, session: Session) -> str:
    if key == "model":
        return f"{path} is of another model, {header.get('name')!r}; this session's is {session.model.config.name!r}"
    if key == "long":
        edge = session.model.config.rope.n_ctx_orig
        return (
            f"{path} was saved by a session whose n_ctx lies on the other side of the {edge} tokens where this model's "
            f"rotations change; this session's is n_ctx={session.n_ctx}"
        )
    return f"{path} has {key} {header.get(key)!r}, the session {mine!r}; open a session with the same cache types"
