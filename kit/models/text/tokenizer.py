"""Text -> token ids and back, from the tokenizer a GGUF file carries.

Results are llama.cpp's, token for token: special tokens are cut out of the text first (the longest
first), what lies between goes through BPE or SentencePiece merging.
"""

from __future__ import annotations

import codecs
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kit.checks import is_whole
from kit.errors import ArgumentError
from kit.models.text.merging import make_encoder, token_bytes
from kit.models.text.vocabulary import TokenType, Vocabulary

if TYPE_CHECKING:
    from kit.core.gguf import GGUFFile


class Tokenizer:
    """The tokenizer of one model.

    >>> tokenizer = Tokenizer.from_gguf(path)            # doctest: +SKIP
    >>> tokenizer.encode("The capital of France is")     # doctest: +SKIP
    [504, 3575, 282, 4649, 314]
    """

    def __init__(self, vocab: Vocabulary) -> None:
        self._vocab = vocab
        self._encoder = make_encoder(vocab)
        kinds = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        special = [(vocab.tokens[i], i) for i, kind in enumerate(vocab.types.tolist()) if kind in kinds]
        special.sort(key=lambda item: -len(item[0].encode("utf-8", "surrogateescape")))
        self._special = special
        self._control = frozenset(i for _, i in special if vocab.types[i] == TokenType.CONTROL)
        self._user_defined = [(text, i) for text, i in special if vocab.types[i] == TokenType.USER_DEFINED]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], source: str) -> Tokenizer:
        """A tokenizer from GGUF metadata (`tokenizer.ggml.*`); `source` names the file in messages.

        Raises GGUFError (MissingKey where a key is absent) for a broken vocabulary and
        UnsupportedModel for a kind kit does not have; both name the key and the file.
        """
        return cls(Vocabulary.from_metadata(metadata, source))

    @classmethod
    def from_gguf(cls, file: str | os.PathLike[str] | GGUFFile) -> Tokenizer:
        """The tokenizer of a GGUF file, given as a path or already open."""
        if isinstance(file, (str, os.PathLike)):
            from kit.core.gguf import GGUFFile

            file = GGUFFile(file)
        return cls.from_metadata(file.metadata, str(getattr(file, "path", file)))

    @property
    def n_vocab(self) -> int:
        """Number of tokens; ids run from 0 to n_vocab - 1."""
        return len(self._vocab.tokens)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if the file names one."""
        return self._vocab.bos_id

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, if the file names one."""
        return self._vocab.eos_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """Tokens after which a generation is over: end of text, end of turn, end of message."""
        return self._vocab.eog_ids

    @property
    def add_bos(self) -> bool:
        """Whether encode(add_special=True) puts the BOS token first."""
        return self._vocab.add_bos

    @property
    def add_eos(self) -> bool:
        """Whether encode(add_special=True) puts the EOS token last."""
        return self._vocab.add_eos

    @property
    def is_bpe(self) -> bool:
        """Whether it is byte-level BPE; SentencePiece otherwise."""
        return self._vocab.kind == "gpt2"

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Names of the tokens that steer the model, as `is_special` has it; the longest first."""
        return tuple(text for text, i in self._special if self.is_special(i))

    def special_id(self, text: str) -> int | None:
        """The special token of this name, if there is one."""
        token = self._vocab.ids.get(text)
        return token if token is not None and self.is_special(token) else None

    def is_special(self, token: int) -> bool:
        """Whether the token steers the model and is no text of its own (control or unknown)."""
        return int(self._vocab.types[self._checked(token)]) in (TokenType.CONTROL, TokenType.UNKNOWN)

    def specials_in(self, text: str) -> list[int]:
        """Ids of the special tokens whose names stand in a text, in order, as encode cuts them out."""
        return [part for part in self._cut(text, self._special) if isinstance(part, int) and self.is_special(part)]

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        unmask: Callable[[str], str] | None = None,
    ) -> list[int]:
        """Ids of a text.

        add_special: put BOS first and EOS last where the file asks for them.
        parse_special: take the names of control tokens in the text for the tokens; without it a
        text somebody else wrote cannot smuggle them in.
        unmask: what is done to each text between special tokens; names of control tokens it brings in are text.
        Raises ArgumentError for half a surrogate pair, which no UTF-8 text can hold, and where text between
        special tokens, unmasked, merges to a control token all the same.
        """
        _check_text(text)
        vocab = self._vocab
        ids: list[int] = []
        if add_special and vocab.add_bos and vocab.bos_id is not None:
            ids.append(vocab.bos_id)
        after_special = True
        for part in self._parts(text, parse_special, unmask):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
            else:
                prefix = " " if vocab.add_space_prefix and after_special else ""
                made = self._encoder.encode(prefix + part)
                if unmask is not None and not self._control.isdisjoint(made):
                    name = self.token(next(i for i in made if i in self._control))
                    raise ArgumentError(f"the text holds {name!r}, which this vocabulary cannot tell from its token")
                ids += made
                after_special = False
        if add_special and vocab.add_eos and vocab.eos_id is not None:
            ids.append(vocab.eos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of the ids; bytes that are no UTF-8 become U+FFFD.

        The blank that encode puts before a text (SentencePiece) is taken away again at the start.
        For pieces of a longer text, which have to keep it, use stream() or token().
        """
        if not isinstance(ids, Iterable):
            raise ArgumentError(f"ids is {ids!r}; give a list of token ids")
        stream = self.stream(skip_special=skip_special, at_start=True)
        return "".join([stream.push(i) for i in ids]) + stream.flush()

    def stream(self, *, skip_special: bool = False, at_start: bool = False) -> StreamDecoder:
        """A decoder for ids that arrive one by one; at_start: they begin a text, as for decode."""
        return StreamDecoder(self, skip_special=skip_special, at_start=at_start)

    def token(self, token: int) -> str:
        r"""Printable text of one token: blanks kept, bytes that are no whole character as \xNN."""
        raw = self.bytes(token)
        return raw.decode("utf-8", "backslashreplace") if raw else self._vocab.tokens[token]

    def bytes(self, token: int) -> bytes:
        """Bytes one token stands for in a text; empty for unused tokens."""
        return token_bytes(self._vocab, self._checked(token))

    def __repr__(self) -> str:
        vocab = self._vocab
        kind = "SentencePiece" if vocab.kind == "llama" else f"BPE ({vocab.pre_name})"
        ends = ", ".join(f"{i} {vocab.tokens[i]!r}" for i in sorted(vocab.eog_ids))
        bos = "none" if vocab.bos_id is None else f"{vocab.bos_id} {vocab.tokens[vocab.bos_id]!r}"
        return f"Tokenizer({kind}, n_vocab={self.n_vocab}, bos={bos}, added={vocab.add_bos}, ends=[{ends}])"

    def _checked(self, token: int) -> int:
        if not is_whole(token, 0, self.n_vocab - 1):
            raise ArgumentError(f"token id {token!r} is not one of the ids 0 to {self.n_vocab - 1}")
        return int(token)

    def _parts(self, text: str, parse_special: bool, unmask: Callable[[str], str] | None) -> list[str | int]:
        if unmask is None:
            return self._cut(text, self._special if parse_special else self._user_defined)
        parts: list[str | int] = []
        for part in self._cut(text, self._special if parse_special else []):
            parts += [part] if isinstance(part, int) else self._cut(unmask(part), self._user_defined)
        return parts

    @staticmethod
    def _cut(text: str, special: list[tuple[str, int]]) -> list[str | int]:
        """Cut special tokens out of the text, the longest first, wherever they stand."""
        parts: list[str | int] = [text] if text else []
        for name, token in special:
            if name not in text:
                continue
            cut: list[str | int] = []
            for part in parts:
                if isinstance(part, int) or name not in part:
                    cut.append(part)
                    continue
                for i, piece in enumerate(part.split(name)):
                    cut += [token] if i else []
                    cut += [piece] if piece else []
            parts = cut
        return parts


class StreamDecoder:
    """Turns ids that arrive one by one into text, never cutting through a character.

    push(id) gives the text that is certain so far; flush() gives what is left at the end.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = False, at_start: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._drop_blank = at_start and tokenizer._vocab.add_space_prefix
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Take one id; the characters it completes, which may be none."""
        if self._skip_special and self._tokenizer.is_special(token):
            return ""
        raw = self._tokenizer.bytes(token)
        if self._drop_blank and raw:
            raw = raw.removeprefix(b" ")
            self._drop_blank = False
        return self._utf8.decode(raw)

    @property
    def pending(self) -> bool:
        """Whether the last id ended inside a character."""
        return bool(self._utf8.getstate()[0])

    def flush(self) -> str:
        """The rest: U+FFFD if the last character never became whole, else nothing."""
        return self._utf8.decode(b"", final=True)


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise ArgumentError(f"the text is {reprlib.repr(text)}, a {type(text).__name__}; give a str")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"the text holds half a surrogate pair ({text[error.start]!r}) at {error.start}; "
            "decode its source as UTF-8 with errors='replace'"
        ) from None
