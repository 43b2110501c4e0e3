"""How the parts of a split GGUF file are called: ``NAME-00001-of-00003.gguf``, as llama.cpp and the gguf package do."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class PartName:
    """The file name of one part: what all parts share, the number from 1, and how many there are."""

    prefix: str
    number: int
    count: int

    @classmethod
    def parse(cls, name: str) -> PartName | None:
        """Return what a file name says, None where it is no part's."""
        match = _FORM.fullmatch(name)
        if match is None:
            return None
        number, count = int(match[2]), int(match[3])
        return cls(match[1], number, count) if 1 <= number <= count else None

    def other(self, number: int) -> str:
        """Return the file name of another part of the same model."""
        return f"{self.prefix}-{number:05}-of-{self.count:05}.gguf"
