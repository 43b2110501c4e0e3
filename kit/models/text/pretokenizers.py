"""How BPE vocabularies cut text into words before any merge, one entry per `tokenizer.ggml.pre`.

Each kind is a list of regular expressions applied one after another: every expression cuts the
pieces left by the one before into its matches and the gaps between them. The expressions are
facts of the models' own tokenizers, in the reduced form llama.cpp runs (letters outside ASCII
count as upper and lower case at once in the case-sensitive kinds).
"""

from __future__ import annotations

from dataclasses import dataclass

_SUFFIXES = "'s|'t|'re|'ve|'m|'ll|'d"
# Spelled out instead of (?i:...): case folding would also take U+017F for an s.
_ANY_CASE_SUFFIXES = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_LINES_AND_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"

_GPT2 = rf"{_SUFFIXES}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_ANY_CASE_SUFFIXES}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES_AND_BLANKS}"
_QWEN2 = rf"{_ANY_CASE_SUFFIXES}|{_LEAD}\p{{L}}+|\p{{N}}|{_SYMBOLS}|{_LINES_AND_BLANKS}"
_CAMEL = rf"{_LEAD}{_UPPER}*{_LOWER}+%s|{_LEAD}{_UPPER}+{_LOWER}*%s"
_TEKKEN = rf"{_CAMEL % ('', '')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_BLANKS}"
_SUFFIX_OPT = f"(?:{_ANY_CASE_SUFFIXES})?"
_GPT4O = (
    rf"{_CAMEL % (_SUFFIX_OPT, _SUFFIX_OPT)}|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_BLANKS}"
)


@dataclass(frozen=True)
class PreTokenizer:
    """One kind of cutting.

    patterns: Oniguruma expressions, applied in order.
    ignore_merges: a word that is a token as a whole is taken as it is, whatever the merges say.
    add_bos: whether a text begins with the BOS token when the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_PLAIN = PreTokenizer((_GPT2,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_KIND = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "roberta-bpe"), _PLAIN),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _SINGLE_DIGITS
    ),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3"), _LLAMA3_KIND),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), PreTokenizer((_QWEN2,))),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": PreTokenizer((_GPT4O,)),
}
"""Kind of `tokenizer.ggml.pre` -> how it cuts."""
