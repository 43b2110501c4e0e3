"""The pieces of a vocabulary: from `tokenizer.json` or from SentencePiece's `tokenizer.model`, as plain lists."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.errors import ConversionError, UnsupportedModel
from kit.models.text.vocabulary import KEY, TokenType

_LARGEST_MODEL = 64 << 20  # bytes
_ADDED_SCORE = -1000.0
_PADDING_SCORE = -10000.0
BLANK = "\u2581"


@dataclass
class Vocab:
    """Tokens by id with scores and types, one for each of the ``n_vocab`` rows of the embedding.

    ``kind`` is `gpt2` or `llama` as GGUF names them, ``space_prefix`` None where nothing says whether a text gets one.
    Ids nothing is said of are unused; tokens beyond the embedding, which no model can read, are dropped.
    """

    kind: str
    source: Path
    n_vocab: int
    merges: list[str] = field(default_factory=list)
    ignore_merges: bool = False
    space_prefix: bool | None = None
    unknown: int | None = None
    pre: str = "default"

    def __post_init__(self) -> None:
        """Name every id as unused."""
        self.tokens = [f"[PAD{i}]" for i in range(self.n_vocab)]
        self.scores = [_PADDING_SCORE] * self.n_vocab
        self.types = [TokenType.UNUSED] * self.n_vocab

    def put(self, number: int, text: str, score: float, kind: TokenType) -> None:
        """Set one token.

        Raises ConversionError for something that is no id or no text.
        """
        if type(number) is not int or number < 0 or not isinstance(text, str):
            raise ConversionError(f"{self.source}: a token has id {number!r} and text {text!r:.80}")
        if number < self.n_vocab:
            self.tokens[number], self.scores[number], self.types[number] = text, score, kind
            if kind == TokenType.UNKNOWN:
                self.unknown = number

    def add(self, added: list[dict[str, Any]]) -> None:
        """Put the tokens a tokenizer adds to its model: special ones steer, the others are the user's."""
        for item in added:
            number, text = item.get("id"), item.get("content")
            if type(number) is not int or not isinstance(text, str):
                raise ConversionError(f"{self.source}: an added token has no id and content: {item!r:.80}")
            if number == self.unknown:
                continue
            special = item.get("special") or (text.startswith("<|") and text.endswith("|>"))
            if not special:
                text = text.replace(BLANK, " ")
            self.put(number, text, _ADDED_SCORE, TokenType.CONTROL if special else TokenType.USER_DEFINED)

    def ids(self) -> dict[str, int]:
        """Return id by text."""
        return {token: i for i, token in enumerate(self.tokens)}

    def metadata(self) -> dict[str, Any]:
        """Return GGUF's keys: tokens, scores, types and merges."""
        found: dict[str, Any] = {
            f"{KEY}model": self.kind,
            f"{KEY}pre": self.pre,
            f"{KEY}tokens": self.tokens,
            f"{KEY}token_type": [int(kind) for kind in self.types],
        }
        if self.kind == "gpt2":
            return found | {f"{KEY}merges": self.merges}
        return found | {f"{KEY}scores": self.scores}


def is_byte_level(tokenizer: dict[str, Any] | None) -> bool:
    """Return whether a tokenizer.json is byte-level BPE, for which a `tokenizer.model` beside it is of another kind."""
    model = (tokenizer or {}).get("model")
    return isinstance(model, dict) and model.get("type", "BPE") == "BPE" and not model.get("byte_fallback")


def from_tokenizer_json(path: Path, tokenizer: dict[str, Any], n_vocab: int) -> Vocab:
    """Return the vocabulary of a tokenizer.json: byte-level BPE as `gpt2`, pieces with byte tokens as `llama`.

    Raises UnsupportedModel for another model, ConversionError for one that is broken.
    """
    model = tokenizer.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    pieces = model.get("vocab") if isinstance(model, dict) else None
    if kind == "BPE" and isinstance(pieces, dict):
        vocab = _from_bpe(path, tokenizer, pieces, n_vocab)
    elif kind == "Unigram" and isinstance(pieces, list):
        vocab = _from_unigram(path, tokenizer, pieces, n_vocab)
    else:
        raise UnsupportedModel(f"{path}: a tokenizer model of type {kind!r}; kit converts BPE and Unigram")
    added = tokenizer.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(item, dict) for item in added):
        raise ConversionError(f"{path}: added_tokens is no list of tables")
    vocab.add(added)
    return vocab


def _from_bpe(path: Path, tokenizer: dict[str, Any], pieces: dict[str, Any], n_vocab: int) -> Vocab:
    model = tokenizer["model"]
    pairs = list(_pairs(path, model.get("merges")))
    if model.get("byte_fallback"):
        vocab = Vocab("llama", path, n_vocab, space_prefix=_space_prefix(tokenizer))
        ranks: dict[str, int] = {}
        for left, right in pairs:
            ranks.setdefault(left + right, len(ranks))
        _put_pieces(
            vocab, {text: -float(ranks.get(text, len(ranks))) for text in pieces}, pieces, model.get("unk_token")
        )
        return vocab
    if not pairs:
        raise UnsupportedModel(f"{path}: byte-level BPE without merges has no form in GGUF")
    vocab = Vocab("gpt2", path, n_vocab, ignore_merges=bool(model.get("ignore_merges")))
    for text, number in pieces.items():
        vocab.put(number, text, 0.0, TokenType.NORMAL)
    vocab.merges = [" ".join(part.replace(" ", "Ġ") for part in pair) for pair in pairs]
    return vocab


def _from_unigram(path: Path, tokenizer: dict[str, Any], pieces: list[Any], n_vocab: int) -> Vocab:
    scores, ids = {}, {}
    for number, item in enumerate(pieces):
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str) or isinstance(item[1], str):
            raise ConversionError(f"{path}: piece {number} of the vocabulary is {item!r}; expected a text and a score")
        scores[item[0]], ids[item[0]] = float(item[1]), number
    vocab = Vocab("llama", path, n_vocab, space_prefix=_space_prefix(tokenizer))
    unknown = tokenizer["model"].get("unk_id")
    _put_pieces(vocab, scores, ids, pieces[unknown][0] if type(unknown) is int and 0 <= unknown < len(pieces) else None)
    return vocab


def _put_pieces(vocab: Vocab, scores: dict[str, float], ids: dict[str, Any], unknown: str | None) -> None:
    bytes_ = {f"<0x{byte:02X}>" for byte in range(256)}
    for text, number in ids.items():
        kind = TokenType.BYTE if text in bytes_ else TokenType.NORMAL
        vocab.put(number, text, scores[text], TokenType.UNKNOWN if text == unknown else kind)


def _pairs(path: Path, merges: Any) -> Iterator[tuple[str, str]]:
    """Yield the merges, written as ``"a b"`` or as ``["a", "b"]``."""
    if not isinstance(merges, list):
        raise ConversionError(f"{path}: the model has no list of merges")
    for number, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise ConversionError(f"{path}: merge {number} is {merge!r}; expected two parts")
        yield pair[0], pair[1]


def _space_prefix(tokenizer: dict[str, Any]) -> bool:
    """Return whether a text gets a blank before it: by a Prepend normalizer or a Metaspace pre-tokenizer."""
    for stage in (tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")):
        if not isinstance(stage, dict):
            continue
        for step in stage.get("normalizers") or stage.get("pretokenizers") or [stage]:
            if step.get("type") == "Prepend" and step.get("prepend") == BLANK:
                return True
            if step.get("type") == "Metaspace":
                return bool(step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True))
    return False


def from_sentencepiece(path: Path, n_vocab: int) -> Vocab:
    """Return the vocabulary of a SentencePiece model file of the BPE kind.

    The file is one protocol buffer (ModelProto of sentencepiece_model.proto): field 1 repeats the pieces (1 text,
    2 score, 3 type), field 2 is the trainer (3 model type: 2 for BPE), field 3 the normalizer (3 add_dummy_prefix).
    Raises ConversionError for a broken file, UnsupportedModel for another kind of model.
    """
    try:
        if path.stat().st_size > _LARGEST_MODEL:
            raise ConversionError(f"{path} is larger than {_LARGEST_MODEL} bytes: no tokenizer model")
        raw = path.read_bytes()
        vocab = Vocab("llama", path, n_vocab)
        pieces = 0
        for number, value in _fields(raw):
            if number == 1:
                _put_piece(vocab, pieces, dict(_fields(value)))
                pieces += 1
            elif number == 2 and (kind := dict(_fields(value)).get(3, 1)) != 2:
                raise UnsupportedModel(f"{path}: a SentencePiece model of kind {kind}; kit converts BPE (2)")
            elif number == 3 and dict(_fields(value)).get(3, 1) == 0:
                vocab.space_prefix = False
    except OSError as error:
        raise ConversionError(f"{path}: reading failed: {error.strerror}") from error
    except (LookupError, struct.error, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise ConversionError(f"{path} is no SentencePiece model, or cut off: {error}") from error
    if not pieces:
        raise ConversionError(f"{path} is no SentencePiece model: it holds no pieces")
    return vocab


def _put_piece(vocab: Vocab, number: int, piece: dict[int, Any]) -> None:
    kind = {1: TokenType.NORMAL, 2: TokenType.UNKNOWN, 3: TokenType.CONTROL, 4: TokenType.USER_DEFINED}
    kind |= {5: TokenType.UNUSED, 6: TokenType.BYTE}
    vocab.put(number, piece[1].decode("utf-8"), piece.get(2, 0.0), kind.get(piece.get(3, 1), TokenType.NORMAL))


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Yield field number and value of a protocol buffer: int, float (32 bits) or bytes."""
    at = 0
    value: Any
    while at < len(raw):
        tag, at = _varint(raw, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(raw, at)
        elif wire == 1:
            value, at = struct.unpack_from("<d", raw, at)[0], at + 8
        elif wire == 2:
            length, at = _varint(raw, at)
            if at + length > len(raw):
                raise IndexError(f"a field of {length} bytes at byte {at} of {len(raw)}")
            value, at = raw[at : at + length], at + length
        elif wire == 5:
            value, at = struct.unpack_from("<f", raw, at)[0], at + 4
        else:
            raise IndexError(f"no protocol buffer at byte {at}")
        yield tag >> 3, value


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError(f"no protocol buffer at byte {at}")
