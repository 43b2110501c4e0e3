"""Text without special tokens -> ids: byte-level BPE and SentencePiece's score-greedy merging."""

from __future__ import annotations

import heapq
import re
import reprlib
from typing import Protocol

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from kit.errors import GGUFError
from kit.models.text.vocabulary import KEY, TokenType, Vocabulary

BLANK = "\u2581"
"""SentencePiece's sign for a blank."""

_CACHE_WORDS, _CACHE_LETTERS = 20_000, 64


class TextEncoder(Protocol):
    """What the two kinds of vocabulary have in common."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which no special token is looked for."""


class BpeEncoder:
    """Byte-level BPE on the `tokenizers` library."""

    def __init__(self, vocab: Vocabulary) -> None:
        # A letter outside the vocabulary must keep its neighbours apart until it is dropped.
        self._hole = len(vocab.tokens)
        hole = "\0"
        while hole in vocab.ids:
            hole += "\0"
        self._require_joinable(vocab)
        try:
            model = models.BPE(
                vocab={**vocab.ids, hole: self._hole},
                merges=vocab.merges,
                unk_token=hole,
                ignore_merges=vocab.pre.ignore_merges,
            )
        except Exception as error:  # the library raises plain Exception
            raise GGUFError(f"{vocab.source}: {KEY}merges does not fit {KEY}tokens: {error}") from error
        self._tokenizer = Tokenizer(model)
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in vocab.pre.patterns]
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, letters])

    @staticmethod
    def _require_joinable(vocab: Vocabulary) -> None:
        """The library panics, which is no Exception, where a merge is longer than the longest token."""
        for i, (left, right) in enumerate(vocab.merges):
            if not (left in vocab.ids and right in vocab.ids and left + right in vocab.ids):
                lacking = next(part for part in (left, right, left + right) if part not in vocab.ids)
                raise GGUFError(
                    f"{vocab.source}: {KEY}merges[{i}] is {reprlib.repr(f'{left} {right}')}, but {KEY}tokens has no "
                    f"{reprlib.repr(lacking)}; merges join two tokens to a third"
                )

    def encode(self, text: str) -> list[int]:
        """Ids of the text; bytes the vocabulary has no letter for are dropped, as in llama.cpp."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [i for i in ids if i != self._hole] if self._hole in ids else ids


class SpmEncoder:
    """SentencePiece's BPE: of all neighbours that make a token, join the pair of the highest score.

    Equal scores go from left to right. Letters without a token become `<0xNN>` byte tokens.
    Written out here because ranks, which the `tokenizers` library wants, cannot express equal scores.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        self._ids = vocab.ids
        self._costs: list[float] = (-vocab.scores).tolist()
        self._longest = max(map(len, vocab.tokens))
        self._unknown = vocab.unknown_id
        self._bytes = [self._byte_id(byte) for byte in range(256)]
        self._words = self._word_cutter(vocab)
        self._cache: dict[str, list[int]] = {}

    def _byte_id(self, byte: int) -> int | None:
        return self._ids.get(f"<0x{byte:02X}>", self._unknown)

    @staticmethod
    def _word_cutter(vocab: Vocabulary) -> re.Pattern[str]:
        """Cut before blanks if no token holds a blank after a letter: then no merge crosses the cut."""
        crossing = re.compile(f"[^{BLANK}]{BLANK}")
        joined = [t for t in vocab.tokens if BLANK in t]
        whole = any(crossing.search(t) for t in joined)
        return re.compile(".+" if whole else f"{BLANK}*[^{BLANK}]+|{BLANK}+", re.DOTALL)

    def encode(self, text: str) -> list[int]:
        """Ids of the text, blanks already wanted at its start included."""
        ids: list[int] = []
        for word in self._words.findall(text.replace(" ", BLANK)):
            found = self._cache.get(word)
            if found is None:
                found = self._merge(word)
                if len(word) <= _CACHE_LETTERS and len(self._cache) < _CACHE_WORDS:
                    self._cache[word] = found
            ids += found
        return ids

    def _merge(self, word: str) -> list[int]:
        parts: list[str] = list(word)  # "" once joined to the part on its left
        after = [*range(1, len(parts)), -1]
        before = list(range(-1, len(parts) - 1))
        heap: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            if left < 0 or right < 0 or len(parts[left]) + len(parts[right]) > self._longest:
                return
            token = self._ids.get(parts[left] + parts[right])
            if token is not None:
                size = len(parts[left]) + len(parts[right])
                heapq.heappush(heap, (self._costs[token], left, right, size))

        for i in range(len(parts) - 1):
            offer(i, i + 1)
        while heap:
            _, left, right, size = heapq.heappop(heap)
            if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != size:
                continue  # one of the two has been joined elsewhere meanwhile
            parts[left] += parts[right]
            parts[right] = ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [i for part in parts if part for i in self._ids_of(part)]

    def _ids_of(self, part: str) -> list[int]:
        token = self._ids.get(part)
        if token is not None:
            return [token]
        found = (self._bytes[byte] for byte in part.encode())
        return [i for i in found if i is not None]


def make_encoder(vocab: Vocabulary) -> TextEncoder:
    """The encoder for the vocabulary's kind; raises GGUFError where merges do not fit the tokens."""
    return SpmEncoder(vocab) if vocab.kind == "llama" else BpeEncoder(vocab)


def _byte_letters() -> dict[str, bytes]:
    """Letter -> byte of byte-level BPE: visible Latin-1 stands for itself, the rest follows U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = [chr(byte) for byte in visible] + [chr(0x100 + i) for i in range(len(hidden))]
    return {letter: bytes([byte]) for letter, byte in zip(letters, visible + hidden, strict=True)}


_LETTER_BYTES = _byte_letters()
_BYTE_NAME = re.compile("<0x([0-9A-Fa-f]{2})>")


def token_bytes(vocab: Vocabulary, token: int) -> bytes:
    """Bytes a token stands for in a text; an unused token stands for none."""
    text, kind = vocab.tokens[token], int(vocab.types[token])
    if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
        return text.encode("utf-8", "surrogateescape")
    name = _BYTE_NAME.fullmatch(text) if kind == TokenType.BYTE else None
    if name:
        return bytes([int(name[1], 16)])
    if kind in (TokenType.UNUSED, TokenType.UNDEFINED):
        return b""
    if vocab.kind == "llama":
        return text.replace(BLANK, " ").encode("utf-8", "surrogateescape")
    return b"".join(_LETTER_BYTES.get(c) or c.encode("utf-8", "surrogateescape") for c in text)
