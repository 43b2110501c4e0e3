"""A GGUF file with the parts it was split into: one table of tensors, the metadata of the first part.

Parts are looked for beside the file that was opened, under names computed from its own; nothing a file says
leads anywhere else. Layout and keys (``split.no``, ``split.count``, ``split.tensors.count``): llama.cpp's
gguf-split and the gguf package's writer.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np

from kit.core.gguf_metadata import Metadata
from kit.core.gguf_names import PartName
from kit.core.gguf_source import Source, TensorInfo, path_text
from kit.errors import GGUFError, GGUFNotFound
from kit.log import log

NUMBER, COUNT, N_TENSORS = "split.no", "split.count", "split.tensors.count"
_OF_ONE_FILE = frozenset((NUMBER, COUNT, N_TENSORS, "general.alignment"))


@dataclasses.dataclass(frozen=True)
class GGUFPart:
    """One file of a model: ``number`` counts from 1; ``identity`` is (device, inode, bytes, ns of last change)."""

    number: int
    path: pathlib.Path
    nbytes: int
    data_offset: int
    n_tensors: int
    tensor_nbytes: int
    identity: tuple[int, int, int, int]


class Parts:
    """What was read of all files of a model. ``sources[0]`` and ``metadata`` are the first part's."""

    def __init__(self, sources: tuple[Source, ...], metadata: Metadata) -> None:
        self.sources = sources
        self.metadata = metadata
        self.tensors = _joined(sources)

    @property
    def first(self) -> Source:
        """The file that has the metadata."""
        return self.sources[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(source.header.nbytes for source in self.sources)

    def source_of(self, info: TensorInfo) -> Source:
        """Return the file a tensor lies in."""
        return self.sources[info.part - 1]

    def records(self) -> tuple[GGUFPart, ...]:
        """Return a record for each file."""
        return tuple(
            GGUFPart(
                number,
                source.path,
                source.header.nbytes,
                source.header.data_offset,
                len(source.header.tensors),
                sum(info.nbytes for info in source.header.tensors.values()),
                source.identity,
            )
            for number, source in enumerate(self.sources, 1)
        )


def open_parts(path: Any, *, whole: bool = True) -> Parts:
    """Open a file and, where it is one of several and ``whole`` asks for them, the others.

    Raises:
        GGUFNotFound: a part is missing; named. GGUFError: the parts contradict each other; names file and key.
    """
    source = Source(path)
    metadata = Metadata(source)
    count = _number(source, metadata, COUNT) if COUNT in metadata else 0
    name = PartName.parse(source.path.name)
    if not whole or (count <= 1 and (name is None or COUNT not in metadata)):
        return Parts((source,), metadata)
    if name is None or name.count != count:
        raise GGUFError(
            f"{path_text(source.path)}: key {COUNT!r} is {count}, which the file's name does not say; expected a name "
            f"that ends in -00001-of-{count:05}.gguf: give it back the name it was published under"
        )
    opened = {name.number: (source, metadata)}
    for number in range(1, count + 1):
        if number not in opened:
            opened[number] = _open_part(source.path.with_name(name.other(number)), number, source)
        _check_place(*opened[number], number, count)
    for number in range(2, count + 1):
        _check_agreement(*opened[1], *opened[number])
    parts = Parts(tuple(opened[number][0] for number in range(1, count + 1)), opened[1][1])
    _check_total(parts)
    return parts


def _open_part(path: pathlib.Path, number: int, opened: Source) -> tuple[Source, Metadata]:
    try:
        source = Source(path)
    except GGUFNotFound as error:
        missing = GGUFNotFound(
            f"{path_text(path)}: part {number} of the split file {opened.path.name!r} is missing; "
            "put all its parts into one folder"
        )
        missing.errno = error.errno
        raise missing from None
    return source, Metadata(source)


def _check_place(source: Source, metadata: Metadata, number: int, count: int) -> None:
    """Refuse a part that says it is another one, or one of another number of parts."""
    where = path_text(source.path)
    if NUMBER not in metadata:
        raise GGUFError(f"{where}: key {NUMBER!r} is missing; the name says part {number} of {count}")
    found = _number(source, metadata, NUMBER)
    if found != number - 1:
        raise GGUFError(
            f"{where}: key {NUMBER!r} is {found}, expected {number - 1}, for the name says part {number} of {count}; "
            "is it a copy of another part under this one's name?"
        )
    if COUNT in metadata and (said := _number(source, metadata, COUNT)) != count:
        raise GGUFError(f"{where}: key {COUNT!r} is {said}, expected {count} as the name and the other parts say")


def _check_agreement(first: Source, of_first: Metadata, other: Source, metadata: Metadata) -> None:
    """Refuse a part of another model: the same key with another value."""
    where = path_text(other.path)
    if N_TENSORS in metadata and N_TENSORS in of_first and metadata[N_TENSORS] != of_first[N_TENSORS]:
        raise GGUFError(
            f"{where}: key {N_TENSORS!r} is {metadata[N_TENSORS]!r}, but {of_first[N_TENSORS]!r} in "
            f"{first.path.name!r}; they are parts of different models"
        )
    for key in metadata:
        if key in _OF_ONE_FILE:
            continue
        if key not in of_first:
            log.warning("%s: key %r is not in the first part, whose metadata count; it is not used", where, key)
        elif metadata.type_text(key) != of_first.type_text(key) or not np.array_equal(metadata[key], of_first[key]):
            raise GGUFError(
                f"{where}: key {key!r} has another value than in {first.path.name!r}; "
                "they are parts of different models, or one of them was edited"
            )


def _check_total(parts: Parts) -> None:
    if N_TENSORS not in parts.metadata:
        return
    said = _number(parts.first, parts.metadata, N_TENSORS)
    if said != len(parts.tensors):
        raise GGUFError(
            f"{path_text(parts.first.path)}: key {N_TENSORS!r} is {said}, but its {len(parts.sources)} parts hold "
            f"{len(parts.tensors)} tensors; one of them is from another model"
        )


def _joined(sources: tuple[Source, ...]) -> dict[str, TensorInfo]:
    if len(sources) == 1:
        return sources[0].header.tensors
    joined: dict[str, TensorInfo] = {}
    for number, source in enumerate(sources, 1):
        for name, info in source.header.tensors.items():
            if name in joined:
                raise GGUFError(
                    f"{path_text(source.path)}: tensor {name!r} is also in {joined[name].path.name!r}; "
                    "each tensor must be in one part only"
                )
            joined[name] = dataclasses.replace(info, part=number)
    return joined


def _number(source: Source, metadata: Metadata, key: str) -> int:
    value = metadata[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        kind = metadata.type_text(key)
        raise GGUFError(
            f"{path_text(source.path)}: key {key!r} is a value of type {kind}; expected a whole number from 0"
        )
    return value
