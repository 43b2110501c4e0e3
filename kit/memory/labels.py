"""Labels: what kit says of the things it opens, a few bytes each.

Names that differ only in the number at their end (``context 1``, ``context 2``) share their text, so that a long loop
leaves 12 bytes a thing behind and not its strings.
"""

from __future__ import annotations

import array
import itertools
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kit.core.ledger import Resource

_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,8})", re.S)
_NO_NUMBER = 0


@dataclass(frozen=True)
class Label:
    """What kit says of one thing: its owner, what it is for, its name."""

    owner: str
    purpose: str
    name: str


class Labels:
    """Labels by their number; number 0 is none.

    `add` may be interrupted by another `add` anywhere: by a finalizer, a signal handler, another thread.
    """

    def __init__(self) -> None:
        self._kinds: dict[int, tuple[str, str, str]] = {0: ("", "", "")}
        self._next_kind, self._next = itertools.count(1), itertools.count(1)
        self._kind_numbers: dict[tuple[str, str, str], int] = {}
        self._columns = tuple(array.array("I", [0]) for _ in range(3))  # kind, number of the owner, of the name
        self._known: dict[tuple[int, int, int], int] = {}

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, resource: Resource) -> int:
        """Return the number of the label that ``resource`` gets; things that are told alike share one."""
        owner, owner_number = _split(resource.owner)
        name, name_number = _split(resource.name)
        kind = (owner, resource.purpose, name)
        number = self._kind_numbers.get(kind)
        if number is None:
            number = next(self._next_kind)
            self._kinds[number] = kind
            number = self._kind_numbers.setdefault(kind, number)
        entry = (number, owner_number, name_number)
        if entry in self._known:
            return self._known[entry]
        label = next(self._next)
        for column, value in zip(self._columns, entry, strict=True):
            while len(column) <= label:
                column.append(0)
            column[label] = value
        if owner_number == name_number == _NO_NUMBER:  # those with a number are endless, and seldom come again
            self._known[entry] = label
        return label

    def __getitem__(self, number: int) -> Label | None:
        if not number:
            return None
        kind, owner_number, name_number = (column[number] for column in self._columns)
        owner, purpose, name = self._kinds[kind]
        return Label(_joined(owner, owner_number), purpose, _joined(name, name_number))

    def purposes(self, numbers: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
        """Return numbers to give to `purpose`, for labels with these ``numbers``; 0 where there is none."""
        kinds = np.array(self._columns[0], np.int64)
        return kinds[numbers.astype(np.int64)]

    def purpose(self, number: int) -> str:
        """Return what a number from `purposes` stands for; empty for 0."""
        return self._kinds[number][1]


def _split(text: str) -> tuple[str, int]:
    """Return the text before a number at its end, and that number plus one; 0 where there is none."""
    match = _NUMBERED.fullmatch(text)
    return (match[1], int(match[2]) + 1) if match else (text, _NO_NUMBER)


def _joined(text: str, number: int) -> str:
    return f"{text}{number - 1}" if number else text
