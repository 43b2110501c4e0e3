"""Tokenizers: llama.cpp's own vectors, SentencePiece against a naive reference, and broken vocabularies."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from kit.errors import ArgumentError, GGUFError, KitError, MissingKey, UnsupportedModel
from kit.models.text.tokenizer import Tokenizer

DATA = pathlib.Path(__file__).parent / "data"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
BLANK = "\u2581"
# The byte letters come from the tokenizers library, not from kit's own table.
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def metadata(**keys: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def bpe(**changes: Any) -> dict[str, Any]:
    """A BPE vocabulary: the 256 byte letters, a few merges, four special tokens (ids 0, 1, 2, 3)."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_start|>user"]
    merged = ["th", "the", "\u0120the", "\u0120\u0120"]
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*special, *LETTERS, *merged, "<user>"],
        "merges": ["t h", "th e", "\u0120 the", "\u0120 \u0120"],
        "token_type": np.array([CONTROL] * 4 + [NORMAL] * (256 + 4) + [USER], np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return metadata(**keys | changes)


def spm(words: dict[str, float], **changes: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary: <unk> <s> </s>, 256 byte tokens (ids 3 to 258), the words given."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)]
    keys = {
        "model": "llama",
        "tokens": tokens,
        "scores": np.array([0.0] * 259 + list(words.values()), np.float32),
        "token_type": np.array(types, np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return metadata(**keys | changes)


def make(keys: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(keys, "tiny.gguf")


def pieces(tokenizer: Tokenizer, text: str, **how: bool) -> list[str]:
    return [tokenizer.token(i) for i in tokenizer.encode(text, **how)]


@pytest.mark.model
def test_demo_model_gives_the_ids_llama_cpp_gives(demo_model_path):
    tokenizer = Tokenizer.from_gguf(demo_model_path)
    for case in json.loads((DATA / "smollm2_llama_cpp.json").read_text())["prompts"]:
        assert tokenizer.encode(case["text"]) == case["ids"]
        assert tokenizer.decode(case["ids"]) == case["text"]


@pytest.mark.model
def test_demo_model_ends_where_its_chat_format_ends(demo_model_path):
    tokenizer = Tokenizer.from_gguf(demo_model_path)
    assert tokenizer.n_vocab == 49152
    # <reponame>: llama.cpp takes the name for the mark between repositories, and ends there too.
    assert {tokenizer.token(i) for i in tokenizer.eog_ids} == {"<|endoftext|>", "<|im_end|>", "<reponame>"}
    assert pieces(tokenizer, "<|im_start|>user\nHi<|im_end|>") == [
        "<|im_start|>",
        "user",
        "\n",
        "Hi",
        "<|im_end|>",
    ]
    assert "smollm" in repr(tokenizer) and "49152" in repr(tokenizer)


@pytest.mark.parametrize("name", ["ggml-vocab-llama-bpe", "ggml-vocab-llama-spm"])
def test_vocabulary_gives_the_ids_of_llama_cpps_own_test_vectors(name):
    folder = os.environ.get("KIT_CASES")
    if not folder:
        pytest.skip("KIT_CASES is not set: a folder with vocab/*.gguf and llama.cpp's .inp and .out files")
    path = pathlib.Path(folder, "vocab", f"{name}.gguf")
    texts = pathlib.Path(f"{path}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    rows = pathlib.Path(f"{path}.out").read_text().split("\n")[: len(texts)]
    tokenizer = Tokenizer.from_gguf(path)
    for text, row in zip(texts, rows, strict=True):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == [int(i) for i in row.split()]
        assert tokenizer.decode(ids) == text


@given(st.text())
def test_bpe_decodes_every_text_it_encodes(text):
    tokenizer = TINY_BPE
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < tokenizer.n_vocab for i in ids)


def test_bpe_merges_in_the_order_of_ranks():
    assert pieces(TINY_BPE, "the the  x") == ["the", " the", " ", " ", "x"]


def test_bpe_takes_a_word_that_is_a_token_whole_only_where_the_kind_says_so():
    tokens = ["th", *LETTERS]
    keys = {"tokens": tokens, "merges": [], "token_type": None, "bos_token_id": None, "eos_token_id": None}
    assert pieces(make(bpe(pre="llama-bpe", **keys)), "th") == ["th"]
    assert pieces(make(bpe(pre="gpt-2", **keys)), "th") == ["t", "h"]


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "I'm 1234  ok", ["I", "'m", " 1234", " ", " ok"]),
        ("smollm", "a 12b", ["a", " ", "1", "2", "b"]),
        ("llama-bpe", "I'M 12345!\n\nok", ["I", "'M", " ", "123", "45", "!\n\n", "ok"]),
        ("qwen2", "a12\n", ["a", "1", "2", "\n"]),
        ("tekken", "camelCaseABCd 12", ["camel", "Case", "ABCd", " ", "1", "2"]),
        ("gpt-4o", "Don't 1234", ["Don't", " ", "123", "4"]),
        ("default", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
    ],
)
def test_pre_tokenizer_cuts_a_text_into_words(pre, text, words):
    # With each word a token of its own and no merges, a text is these tokens exactly if it is cut there.
    letters = {chr(i): c for i, c in enumerate(byte_letters())}
    tokens = list(dict.fromkeys(["".join(letters[c] for c in word) for word in words]))
    rest = [letter for letter in LETTERS if letter not in tokens]
    merges = [f"{t[:i]} {t[i : i + 1]}" for t in tokens for i in range(1, len(t))]
    prefixes = [t[:i] for t in tokens for i in range(2, len(t))]
    vocab = list(dict.fromkeys([*tokens, *rest, *prefixes]))
    keys = bpe(pre=pre, tokens=vocab, merges=list(dict.fromkeys(merges)), token_type=None)
    assert pieces(make(keys), text, add_special=False) == words


def byte_letters() -> list[str]:
    """Letter of each byte, read off the tokenizers library one ASCII or Latin-1 byte at a time."""
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [cut.pre_tokenize_str(chr(i))[0][0] for i in range(128)]


def test_bytes_without_a_letter_are_dropped_and_keep_their_neighbours_apart():
    tokens = [letter for letter in LETTERS if letter != "x"] + ["ab"]
    tokenizer = make(bpe(tokens=tokens, merges=["a b"], token_type=None, bos_token_id=None, eos_token_id=None))
    assert pieces(tokenizer, "ab axb") == ["ab", " ", "a", "b"]


def test_special_tokens_are_cut_out_the_longest_first():
    text = "<|im_start|>user<|im_start|>x<|im_end|>"
    assert TINY_BPE.encode(text, add_special=False)[:2] == [3, 1]
    assert TINY_BPE.encode(text, add_special=False)[-1] == 2


def test_special_tokens_stay_text_where_they_are_not_parsed():
    ids = TINY_BPE.encode("<|im_end|><user>", parse_special=False)
    assert not any(TINY_BPE.is_special(i) for i in ids)
    assert TINY_BPE.token(ids[-1]) == "<user>"  # user defined tokens are text, they are always found
    assert TINY_BPE.decode(ids) == "<|im_end|><user>"


def test_bos_and_eos_come_where_the_file_asks_for_them():
    tokenizer = make(bpe(add_bos_token=True, add_eos_token=True))
    assert tokenizer.encode("") == [1, 2]
    assert tokenizer.encode("", add_special=False) == []
    assert tokenizer.decode(tokenizer.encode("the"), skip_special=True) == "the"
    assert tokenizer.decode(tokenizer.encode("the")) == "<|im_start|>the<|im_end|>"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eog_ids) == (1, 2, {0, 2})


def test_tokens_known_to_end_a_turn_are_special_whatever_the_file_says():
    tokenizer = make(bpe(token_type=None))
    assert tokenizer.is_special(2) and not tokenizer.is_special(1)


@pytest.mark.parametrize(
    ("names", "keys", "ends"),
    [
        # By the rules of llama_vocab::impl::load in llama.cpp (the sdist of llama-cpp-python 0.3.36).
        (["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"], {}, {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}),
        (["<end_of_turn>", "<eos>", "x"], {}, {"<end_of_turn>", "<eos>"}),
        (["x", "y", "z"], {"eos_token_id": 0, "eot_token_id": 1, "eom_token_id": 2}, {"x", "y", "z"}),
        (["<fim_pad>", "<reponame>", "<|file_sep|>", "<fim_prefix>"], {}, {"<fim_pad>", "<reponame>", "<|file_sep|>"}),
        (["<fim_pad>", "x"], {"fim_pad_token_id": 1}, {"x"}),
        (["<|end|>", "<|return|>", "x"], {}, {"<|end|>", "<|return|>"}),
        (["<|end|>", "<|return|>", "<|call|>"], {}, {"<|return|>", "<|call|>"}),
        (["<|end|>", "<|flush|>", "<|calls|>"], {}, {"<|flush|>", "<|calls|>"}),
        (["</s>", "<|tool_response>"], {}, {"<|tool_response>"}),
        (["</s>", "[EOT]", "[EOS]", "e"], {}, {"</s>", "[EOT]", "[EOS]"}),
    ],
)
def test_a_generation_ends_where_llama_cpp_ends_it(names, keys, ends):
    types = np.full(len(names) + len(LETTERS), NORMAL, np.int32)
    keys = {"eos_token_id": None, "bos_token_id": None, "merges": []} | keys
    tokens = [*names, *(letter for letter in LETTERS if letter not in names)]
    tokenizer = make(bpe(tokens=tokens, token_type=types[: len(tokens)], **keys))
    assert {tokenizer.token(i) for i in tokenizer.eog_ids} == ends


def test_what_unmasking_brings_in_is_text():
    ids = TINY_BPE.encode("the\0 <|im_end|>", unmask=lambda text: text.replace("\0", "<|im_end|>"), add_special=False)
    assert ids.count(2) == 1 and ids[-1] == 2
    assert TINY_BPE.decode(ids) == "the<|im_end|> <|im_end|>"


def test_names_of_special_tokens_are_known():
    assert TINY_BPE.special_texts == ("<|im_start|>user", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert TINY_BPE.special_id("<|im_end|>") == 2
    assert TINY_BPE.special_id("<user>") is TINY_BPE.special_id("the") is TINY_BPE.special_id("nothing") is None


def naive_spm(text: str, words: dict[str, float]) -> list[str]:
    """SentencePiece BPE by its definition: join the best neighbours, leftmost first, until none is left."""
    parts = list(text)
    while True:
        pairs = [
            (-words[parts[i] + parts[i + 1]], i) for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in words
        ]
        if not pairs:
            return parts
        i = min(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@settings(max_examples=300)
@given(
    words=st.dictionaries(st.text(f"ab{BLANK}", min_size=2, max_size=4), st.sampled_from([-1.0, -2.0, -3.0])),
    text=st.text("ab ", max_size=30),
)
def test_spm_merges_as_the_naive_algorithm_does(words, text):
    words = {"a": -9.0, "b": -9.0, BLANK: -9.0} | words
    tokenizer = make(spm(words, add_space_prefix=False))
    ids = tokenizer.encode(text, add_special=False)
    assert [list(words)[i - 259] for i in ids] == naive_spm(text.replace(" ", BLANK), words)


def test_spm_puts_a_blank_before_a_text_and_after_each_special_token():
    tokenizer = make(spm({BLANK: -1.0, "a": -1.0, f"{BLANK}a": -0.5}))
    assert pieces(tokenizer, "a</s>a") == ["<s>", " a", "</s>", " a"]
    assert tokenizer.decode(tokenizer.encode("a", add_special=False)) == "a"
    assert pieces(make(spm({"a": -1.0}, add_space_prefix=False)), "a") == ["<s>", "a"]


@given(st.text())
def test_spm_falls_back_to_bytes(text):
    tokenizer = make(spm({BLANK: -1.0}))
    assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text.replace(BLANK, " ")


def test_spm_letters_without_byte_tokens_become_unknown():
    tokens = ["<unk>", "<s>", "</s>", "a"]
    tokenizer = make(metadata(model="llama", tokens=tokens, add_space_prefix=False))
    assert tokenizer.encode("a\u00e9", add_special=False) == [3, 0, 0]


@given(st.text(), st.booleans())
def test_stream_gives_what_decode_gives_and_never_half_a_character(text, skip):
    ids = [1, *TINY_BPE.encode(text, parse_special=False), 2]
    stream = TINY_BPE.stream(skip_special=skip)
    shown = [stream.push(i) for i in ids]
    assert "".join(shown) + stream.flush() == TINY_BPE.decode(ids, skip_special=skip)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in shown)


def test_stream_that_ends_inside_a_character_says_so():
    first, *_ = TINY_BPE.encode("\U0001f600")
    stream = TINY_BPE.stream()
    assert (stream.push(first), stream.flush()) == ("", "\ufffd")


def test_token_shows_broken_characters_as_escapes_and_bytes_are_raw():
    first, *_ = TINY_BPE.encode("\U0001f600")
    assert TINY_BPE.bytes(first) == b"\xf0"
    assert TINY_BPE.token(first) == r"\xf0"


def test_unused_tokens_are_no_text():
    tokenizer = make(spm({"x": 0.0}, token_type=np.array([2, 3, 3, *[6] * 256, UNUSED], np.int32)))
    assert (tokenizer.bytes(259), tokenizer.token(259), tokenizer.decode([259])) == (b"", "x", "")


@pytest.mark.parametrize("token", [-1, 10**9])
def test_an_id_outside_the_vocabulary_is_refused(token):
    for call in (TINY_BPE.token, TINY_BPE.bytes, TINY_BPE.is_special, lambda i: TINY_BPE.decode([i])):
        with pytest.raises(ArgumentError, match=str(token)):
            call(token)


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(ArgumentError, match="surrogate"):
        TINY_BPE.encode("a\ud800")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"tokens": None}, "tokens"),
        ({"tokens": "abc"}, "tokens"),
        ({"tokens": []}, "tokens"),
        ({"tokens": ["a", 1]}, r"tokens\[1\]"),
        ({"tokens": ["a", "b", "a"]}, "'a' twice, at 0 and 2"),
        ({"merges": None}, "merges"),
        ({"merges": ["t h", "th"]}, r"merges\[1\]"),
        ({"merges": ["t h e"]}, r"merges\[0\]"),
        ({"merges": ["q q"]}, r"merges\[0\] is 'q q', but .*tokens has no 'qq'"),
        ({"merges": ["t h", "<|im_start|> <|im_end|>"]}, r"merges\[1\]"),  # longer than any token
        ({"merges": [7]}, r"merges\[0\]"),
        ({"token_type": np.ones(3, np.int32)}, "token_type"),
        ({"token_type": ["x"]}, "token_type"),
        ({"scores": np.ones(3, np.float32)}, "scores"),
        ({"scores": np.full(265, np.nan, np.float32)}, "scores"),
        ({"bos_token_id": 10**6}, "bos_token_id"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"eot_token_id": "2"}, "eot_token_id"),
        ({"add_bos_token": 1}, "add_bos_token"),
        ({"add_bos_token": True, "bos_token_id": None}, "bos_token_id"),
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"pre": 5}, "pre"),
    ],
)
def test_a_broken_vocabulary_is_refused_by_file_and_key(changes, key):
    with pytest.raises(GGUFError, match=rf"tiny\.gguf.*{key}"):
        make(bpe(**changes))


def test_a_missing_key_is_a_missing_key():
    with pytest.raises(MissingKey, match=r"tokenizer\.ggml\.merges is missing"):
        make(bpe(merges=None))


@pytest.mark.parametrize(("key", "value"), [("model", "bert"), ("model", "no_vocab"), ("pre", "klingon")])
def test_an_unknown_kind_is_named_with_its_key_and_file(key, value):
    with pytest.raises(UnsupportedModel, match=rf"tiny\.gguf: tokenizer\.ggml\.{key} is '{value}'"):
        make(bpe(**{key: value}))


JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3))
FEW = st.text("ab \u0120\ud800", max_size=3)


@settings(max_examples=300)
@given(
    st.fixed_dictionaries(
        {
            "model": st.sampled_from(["gpt2", "llama"]) | JUNK,
            "pre": st.sampled_from(["tekken", "default"]) | JUNK,
            "tokens": st.lists(FEW, max_size=6) | st.lists(JUNK, max_size=3) | JUNK,
            "merges": st.lists(FEW, max_size=3) | JUNK,
            "scores": st.lists(st.floats(width=32), max_size=6) | JUNK,
            "token_type": st.lists(st.integers(-1, 9), max_size=6) | JUNK,
            "bos_token_id": st.integers(0, 5) | JUNK,
            "add_bos_token": st.booleans() | JUNK,
        }
    )
)
def test_whatever_a_file_holds_it_makes_a_tokenizer_or_a_kit_error(keys):
    try:
        tokenizer = make(metadata(**keys))
    except KitError:
        return
    ids = tokenizer.encode("ab b")
    assert all(0 <= i < tokenizer.n_vocab for i in ids)
    assert isinstance(tokenizer.decode(range(tokenizer.n_vocab)), str)


TINY_BPE = make(bpe())
