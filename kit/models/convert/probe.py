"""Texts that tell tokenizers apart, and the kind of pre-tokenizer a `tokenizer.json` has, by how it cuts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Regex, pre_tokenizers

from kit.errors import UnsupportedModel
from kit.models.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer

PROBES = (
    "Hello, world! The quick brown fox doesn't jump over 12 or 1234567 lazy dogs.",
    "I'M SURE WE'LL see; they've gone, you'd say it's HE'S'S",
    "camelCaseWord HTTPServer aB ABc x86_64 v1.2.3 3.14159 1,000,000",
    "  leading, trailing  \n\n\n\ttabs\t\t and \r\n lines \n  x   y    z     ",
    "def f(x):\n    return x ** 2  # /path/to/file//\n\n\n",
    "price: $5.00 <= 10% ~ a+b=c ^ | \\ \"quoted\" 'single' `back` ---- .... !!!???",
    "naïve café über straße 日本語の文章 한국어 привет мир مرحبا",
    "🦙🙂 emoji\u200d and \u00a0 no-break",
)
"""Outside ASCII lower case only: llama.cpp's reduced expressions take such letters for both cases at once."""

_ORDER = ("llama-bpe", "tekken", "smollm", "gpt-2", "qwen2", "dbrx", "gpt-4o", "default")


def pre_tokenizer_kind(library: Any, path: Path, ignore_merges: bool) -> str:
    """Return the name in ``tokenizer.ggml.pre`` whose cuts of PROBES are those of ``library``'s pre-tokenizer.

    Raises UnsupportedModel where no kind kit knows cuts the same way.
    """
    if library.normalizer is not None:
        raise UnsupportedModel(
            f"{path}: a normalizer before byte-level BPE ({library.normalizer!r:.60}) is not in GGUF"
        )
    if library.pre_tokenizer is None:
        raise UnsupportedModel(f"{path}: byte-level BPE without a pre-tokenizer")
    wanted = [_pieces(library.pre_tokenizer, text) for text in PROBES]
    same = [name for name in _ORDER if [_pieces(_cutter(name), text) for text in PROBES] == wanted]
    if not same:
        raise UnsupportedModel(
            f"{path}: its pre-tokenizer cuts words as none of the kinds kit knows: {', '.join(_ORDER)}"
        )
    return next((name for name in same if _kind(name).ignore_merges == ignore_merges), same[0])


def _kind(name: str) -> PreTokenizer:
    return PRE_TOKENIZERS[name]


def _cutter(name: str) -> Any:
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _kind(name).patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _pieces(cutter: Any, text: str) -> list[str]:
    return [piece for piece, _ in cutter.pre_tokenize_str(text)]
