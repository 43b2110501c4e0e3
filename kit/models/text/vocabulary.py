"""A vocabulary read from GGUF metadata and checked: the plain data a tokenizer works on.

The keys are the `tokenizer.ggml.*` keys of the GGUF specification; defaults where a key is absent
are llama.cpp's. The metadata is untrusted: everything is checked before it is used.
"""

from __future__ import annotations

import enum
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.checks import is_whole
from kit.errors import GGUFError, MissingKey, UnsupportedModel
from kit.models.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer

KEY = "tokenizer.ggml."

# Names that end a generation in the formats of the models llama.cpp knows: ends of a turn, of a text, of a call.
_END_NAMES = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"),
    *("<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
)
# Of each row the name that is in the vocabulary ends a generation too, unless the key names another token:
# what comes between the files of a repository in the training of code models.
_FILL_NAMES = {
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
# With all names of a row, the first is no end of its own: it divides parts of one answer, or is a word.
_NOT_ENDS = (
    ("<|end|>", "<|return|>", "<|call|>"),
    ("<|end|>", "<|calls|>", "<|flush|>"),
    ("<|end|>", "<|call|>", "<|flush|>"),
    ("<|end|>", "<|return|>", "<|calls|>"),
    ("</s>", "<|tool_response>"),
)


class TokenType(enum.IntEnum):
    """Values of `tokenizer.ggml.token_type`, as the GGUF specification numbers them."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, eq=False, repr=False)
class Vocabulary:
    """Everything a tokenizer needs, checked.

    kind: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    tokens: text of each id as stored (byte-level letters or U+2581 for blanks not undone).
    ids: the inverse of tokens.
    types: int32 (n_vocab,), see TokenType.  scores: float32 (n_vocab,).
    merges: pairs in order of rank (gpt2 only).
    """

    kind: str
    source: str
    tokens: tuple[str, ...]
    ids: Mapping[str, int]
    types: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    merges: list[tuple[str, str]]
    pre_name: str
    pre: PreTokenizer
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eog_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], source: str) -> Vocabulary:
        """Read and check the tokenizer keys of one file; `source` names the file in messages.

        Raises MissingKey or GGUFError naming the key, UnsupportedModel for an unknown kind.
        """
        read = _Reader(metadata, source)
        kind = read.text("model")
        if kind not in ("gpt2", "llama"):
            raise UnsupportedModel(
                f"{source}: {KEY}model is {kind!r}; kit reads 'gpt2' (BPE) and 'llama' (SentencePiece)"
            )
        spm = kind == "llama"
        pre_name = read.text("pre", "default")
        if not spm and pre_name not in PRE_TOKENIZERS:
            raise UnsupportedModel(f"{source}: {KEY}pre is {pre_name!r}; kit knows {', '.join(sorted(PRE_TOKENIZERS))}")
        pre = PRE_TOKENIZERS["default" if spm else pre_name]
        tokens = tuple(token or f"[EMPTY_{i}]" for i, token in enumerate(read.texts("tokens")))
        ids = {token: i for i, token in enumerate(tokens)}
        n = len(tokens)
        if n == 0:
            raise GGUFError(f"{source}: {KEY}tokens is empty; a vocabulary needs at least one token")
        if len(ids) != n:
            raise GGUFError(f"{source}: {KEY}tokens holds {_first_twice(tokens)}; each text may stand once")
        types = read.numbers("token_type", n, np.int32, default=TokenType.NORMAL)
        scores = read.numbers("scores", n, np.float32, default=0.0)
        eos_id = read.token_id("eos_token_id", n, 2 if spm else None)
        keys = ("eot_token_id", "eom_token_id", *_FILL_NAMES)
        eog_ids = _find_ends(ids, types, {"eos_token_id": eos_id} | {key: read.token_id(key, n) for key in keys})
        bos_id = read.token_id("bos_token_id", n, 1 if spm else None)
        return cls(
            kind=kind,
            source=source,
            tokens=tokens,
            ids=ids,
            types=types,
            scores=scores,
            merges=[] if spm else read.merges(),
            pre_name=pre_name,
            pre=pre,
            bos_id=bos_id,
            eos_id=eos_id,
            unknown_id=read.token_id("unknown_token_id", n, 0 if spm else None),
            eog_ids=eog_ids,
            add_bos=read.flag_for("add_bos_token", "bos_token_id", bos_id, spm or pre.add_bos),
            add_eos=read.flag_for("add_eos_token", "eos_token_id", eos_id, False),
            add_space_prefix=read.flag("add_space_prefix", spm),
        )


def _find_ends(ids: Mapping[str, int], types: npt.NDArray[np.int32], keyed: Mapping[str, int | None]) -> frozenset[int]:
    """Ids that end a generation, as llama.cpp finds them: by key and by name; those by name become control tokens."""
    named = {ids[name] for name in _END_NAMES if name in ids}
    for key, names in _FILL_NAMES.items():
        found = [ids[name] for name in names if name in ids]
        named |= {min(found)} if found and keyed[key] is None else set()
    types[list(named)] = TokenType.CONTROL
    ends = named | {token for token in keyed.values() if token is not None}
    for first, *others in _NOT_ENDS:
        if all(ids.get(name, -1) in ends for name in (first, *others)):
            types[ids[first]] = TokenType.NORMAL if first == "</s>" else TokenType.USER_DEFINED
            ends = ends - {ids[first]}
    return frozenset(ends)


def _first_twice(tokens: tuple[str, ...]) -> str:
    seen: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if token in seen:
            return f"{token!r} twice, at {seen[token]} and {i}"
        seen[token] = i
    return "no token twice"


class _Reader:
    """Typed access to the `tokenizer.ggml.*` keys; each failure names file, key and what was found."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._metadata, self._source = metadata, source

    def _bad(self, key: str, found: object, expected: str) -> GGUFError:
        shown = f"{type(found).__name__} {reprlib.repr(found)}"
        return GGUFError(f"{self._source}: {KEY}{key} is {shown}, expected {expected}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._metadata.get(KEY + key, default)
        if value is None:
            raise MissingKey(f"{self._source}: {KEY}{key} is missing; the file carries no tokenizer")
        if not isinstance(value, str):
            raise self._bad(key, value, "a string")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._metadata.get(KEY + key)
        if value is None:
            raise MissingKey(f"{self._source}: {KEY}{key} is missing; expected a list of strings")
        if not isinstance(value, (list, tuple)):
            raise self._bad(key, value, "a list of strings")
        for i, item in enumerate(value):
            if not isinstance(item, str):
                raise self._bad(f"{key}[{i}]", item, "a string")
        return list(value)

    def numbers(self, key: str, n: int, dtype: Any, default: float) -> npt.NDArray[Any]:
        value = self._metadata.get(KEY + key)
        if value is None:
            return np.full(n, default, dtype)
        try:
            array = np.asarray(value)
        except (ValueError, TypeError):
            raise self._bad(key, value, f"{n} numbers") from None
        if array.shape != (n,) or array.dtype.kind not in ("iu" if dtype is np.int32 else "iuf"):
            found = f"{array.dtype.name} {array.shape}"
            raise self._bad(key, found, f"one {np.dtype(dtype).name} for each of the {n} tokens")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise self._bad(key, float(array[~np.isfinite(array)][0]), "finite numbers only")
        return array.astype(dtype)  # a copy: the caller's array is never written to

    def token_id(self, key: str, n: int, default: int | None = None) -> int | None:
        value = self._metadata.get(KEY + key)
        if value is None:
            return default if default is not None and default < n else None
        if not is_whole(value, 0, n - 1):
            raise self._bad(key, value, f"a token id from 0 to {n - 1}")
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(KEY + key, default)
        if not isinstance(value, (bool, np.bool_)):
            raise self._bad(key, value, "a bool")
        return bool(value)

    def flag_for(self, key: str, id_key: str, token: int | None, default: bool) -> bool:
        """A flag that adds a token; the token has to be there if the file asks for it."""
        wanted = self.flag(key, default and token is not None)
        if wanted and token is None:
            raise MissingKey(f"{self._source}: {KEY}{key} is true but {KEY}{id_key} is missing")
        return wanted

    def merges(self) -> list[tuple[str, str]]:
        pairs = []
        for i, merge in enumerate(self.texts("merges")):
            left, _, right = merge.partition(" ")
            if not left or not right or " " in right:
                raise self._bad(f"merges[{i}]", merge, "two parts with one blank between them")
            pairs.append((left, right))
        return pairs
