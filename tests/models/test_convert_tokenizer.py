"""The tokenizer of a checkpoint: pieces, kinds, special tokens, chat templates."""

from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
import pytest
from tokenizers import Tokenizer as Library

import kit
from kit.models.convert.vocab import read_vocab

from .checkpoint import N_TOKENS, SPECIAL, Checkpoint, tokenizer_json, write_json

TEXTS = [
    "The other theme, then 12345!",
    "naïve 日本語 🦙",
    "  two  blanks\n\n\tand tabs",
    "<|im_start|>user\nthe<|im_end|>",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


#: pre-tokenizers as the tokenizer.json files of Llama 3, Mistral Nemo, SmolLM2 and GPT-2 have them
KINDS = {
    "llama-bpe": {"type": "Sequence", "pretokenizers": [split(LLAMA3), level(False)]},
    "tekken": {"type": "Sequence", "pretokenizers": [split(TEKKEN), level(False)]},
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level(True)]},
    "gpt-2": level(True),
}


@pytest.fixture
def folder(tmp_path):
    return Checkpoint(n_layer=1).write(tmp_path / "hf")


def converted(folder, **options):
    out = folder.parent / "out.gguf"
    kit.convert(folder, out, progress=False, n_threads=1, **options)
    return kit.GGUFFile(out)


def refused(folder, error=kit.UnsupportedModel):
    with pytest.raises(error) as caught:
        converted(folder)
    assert not (folder.parent / "out.gguf").exists()
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_is_known_by_how_it_cuts(kind, folder):
    written = tokenizer_json(pre_tokenizer=KINDS[kind])
    written["model"]["ignore_merges"] = kind in ("llama-bpe", "tekken")
    write_json(folder / "tokenizer.json", written)
    file = converted(folder)
    assert file.metadata["tokenizer.ggml.pre"] == kind
    library, ours = Library.from_file(str(folder / "tokenizer.json")), kit.Tokenizer.from_gguf(file)
    for text in TEXTS:
        assert ours.encode(text, add_special=False) == library.encode(text, add_special_tokens=False).ids


def test_a_pre_tokenizer_of_no_kind(folder):
    write_json(folder / "tokenizer.json", tokenizer_json(pre_tokenizer={"type": "Whitespace"}))
    assert "cuts words as none of the kinds kit knows" in refused(folder)


def test_a_normalizer_gguf_has_no_place_for(folder):
    write_json(folder / "tokenizer.json", tokenizer_json(normalizer={"type": "Lowercase"}))
    assert "normalizer" in refused(folder)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"model": {"type": "WordPiece", "vocab": {}, "unk_token": "[UNK]"}}, "cannot read it"),
        ({"model": 7}, "cannot read it"),
        ({"added_tokens": 3}, "cannot read it"),
    ],
)
def test_a_broken_tokenizer(written, says, folder):
    write_json(folder / "tokenizer.json", tokenizer_json(**written))
    assert says in refused(folder, kit.KitError)


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    assert "holds neither tokenizer.json nor tokenizer.model" in refused(folder, kit.ModelNotFound)


def test_special_tokens_of_the_tokenizers_config_come_first(folder):
    write_json(
        folder / "tokenizer_config.json",
        {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": True},
    )
    metadata = converted(folder).metadata
    ids = {text: N_TOKENS - len(SPECIAL) + i for i, text in enumerate(SPECIAL)}
    assert metadata["tokenizer.ggml.bos_token_id"] == ids["<|im_start|>"]
    assert metadata["tokenizer.ggml.eos_token_id"] == ids["<|im_end|>"]
    assert metadata["tokenizer.ggml.add_bos_token"] and not metadata["tokenizer.ggml.add_eos_token"]
    assert [metadata["tokenizer.ggml.token_type"][i] for i in ids.values()] == [3, 3, 3]


def test_bos_is_added_where_the_post_processor_adds_it(folder):
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": SPECIAL[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {SPECIAL[0]: {"id": SPECIAL[0], "ids": [259], "tokens": [SPECIAL[0]]}},
    }
    assert not converted(folder).metadata["tokenizer.ggml.add_bos_token"]
    write_json(folder / "tokenizer.json", tokenizer_json(post_processor=template))
    file = converted(folder)
    assert file.metadata["tokenizer.ggml.add_bos_token"]
    assert kit.Tokenizer.from_gguf(file).encode("a")[0] == 259


def test_further_ends_of_generation(folder):
    write_json(folder / "generation_config.json", {"eos_token_id": [259, 261, 260]})
    file = converted(folder)
    assert file.metadata["tokenizer.ggml.eot_token_id"] == 261  # <|im_end|>
    assert file.metadata["tokenizer.ggml.eom_token_id"] == 260
    assert kit.Tokenizer.from_gguf(file).eog_ids >= {259, 260, 261}


@pytest.mark.parametrize("place", ["config", "list", "file beside it", "json beside it"])
def test_the_chat_template_wherever_it_stands(place, folder):
    template = "{{ messages }}"
    if place == "config":
        write_json(folder / "tokenizer_config.json", {"chat_template": template})
    elif place == "list":
        named = [{"name": "default", "template": template}, {"name": "tool use", "template": "{{ tools }}"}]
        write_json(folder / "tokenizer_config.json", {"chat_template": named})
    elif place == "file beside it":
        write_json(folder / "tokenizer_config.json", {"chat_template": "older"})
        (folder / "chat_template.jinja").write_text(template)
    else:
        write_json(folder / "chat_template.json", {"chat_template": template})
    metadata = converted(folder).metadata
    assert metadata["tokenizer.chat_template"] == template
    if place == "list":
        assert metadata["tokenizer.chat_template.tool_use"] == "{{ tools }}"
        assert list(metadata["tokenizer.chat_templates"]) == ["tool_use"]


#: pieces of a SentencePiece model: text, score, type (1 normal, 2 unknown, 3 control, 6 byte)
PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
PIECES += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
LEARNT = ["th", "▁t", "he", "the", "▁the"]
PIECES += [(text, -float(i), 1) for i, text in enumerate(LEARNT)]
PIECES += [(letter, -float(len(LEARNT) + i), 1) for i, letter in enumerate("▁the")]


def sentencepiece_model(kind=2):
    """Return the bytes of a tokenizer.model, by hand: fields 1 (pieces) and 2 (the trainer, its kind)."""

    def field(number, raw):
        return bytes([number << 3 | 2, len(raw)]) + raw

    model = b""
    for text, score, piece_kind in PIECES:
        model += field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, piece_kind]))
    return model + field(2, bytes([3 << 3, kind]))


def sentencepiece_json():
    """Return the same as transformers writes it: every split of a piece is a merge, pieces of high score first."""
    ids = {text: i for i, (text, _, _) in enumerate(PIECES)}
    merges = [
        [text[:at], text[at:]] for text in LEARNT for at in range(1, len(text)) if text[:at] in ids and text[at:] in ids
    ]
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    plain = tokenizer_json()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return plain | {
        "added_tokens": [{"id": i, "content": PIECES[i][0], **flags} for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, blanks]},
        "pre_tokenizer": None,
        "decoder": None,
        "model": plain["model"]
        | {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": ids, "merges": merges},
    }


@pytest.fixture
def pieces_folder(tmp_path):
    folder = Checkpoint(n_layer=1, n_vocab=len(PIECES)).write(tmp_path / "hf")
    (folder / "tokenizer.json").unlink()
    write_json(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    return folder


def test_a_sentencepiece_model_file(pieces_folder):
    (pieces_folder / "tokenizer.model").write_bytes(sentencepiece_model())
    file = converted(pieces_folder)
    assert list(file.metadata["tokenizer.ggml.tokens"]) == [text for text, _, _ in PIECES]
    assert list(file.metadata["tokenizer.ggml.token_type"]) == [kind for _, _, kind in PIECES]
    assert list(file.metadata["tokenizer.ggml.scores"]) == [score for _, score, _ in PIECES]
    assert (file.metadata["tokenizer.ggml.bos_token_id"], file.metadata["tokenizer.ggml.add_bos_token"]) == (1, True)
    ids = {text: i for i, (text, _, _) in enumerate(PIECES)}
    assert kit.Tokenizer.from_gguf(file).encode("the é") == [1, ids["▁the"], ids["▁"], 3 + 0xC3, 3 + 0xA9]


def test_pieces_in_a_tokenizer_json_give_the_same_ids(pieces_folder):
    (pieces_folder / "tokenizer.model").write_bytes(sentencepiece_model())
    from_model = kit.Tokenizer.from_gguf(converted(pieces_folder))
    (pieces_folder / "tokenizer.model").unlink()
    write_json(pieces_folder / "tokenizer.json", sentencepiece_json())
    file = converted(pieces_folder)
    from_json = kit.Tokenizer.from_gguf(file)
    assert file.metadata["tokenizer.ggml.model"] == "llama"
    assert file.metadata["tokenizer.ggml.unknown_token_id"] == 0
    for text in [*TEXTS, "the the thee teth", " the"]:
        assert from_json.encode(text, add_special=False) == from_model.encode(text, add_special=False), text


def test_a_sentencepiece_model_of_another_kind(pieces_folder):
    (pieces_folder / "tokenizer.model").write_bytes(sentencepiece_model(kind=1))
    assert "a SentencePiece model of kind 1" in refused(pieces_folder)


@pytest.mark.parametrize("cut", [0, 1, 5, 100, -1])
def test_a_sentencepiece_model_that_is_cut_off(cut, pieces_folder):
    (pieces_folder / "tokenizer.model").write_bytes(sentencepiece_model()[:cut])
    assert "is no SentencePiece model" in refused(pieces_folder, kit.ConversionError)


def test_no_change_of_a_byte_of_a_model_is_more_than_refused(tmp_path):
    raw, path = sentencepiece_model(), tmp_path / "tokenizer.model"
    rng = np.random.default_rng(0)
    for at, byte in zip(rng.integers(0, len(raw), 200), rng.integers(0, 256, 200), strict=True):
        path.write_bytes(raw[:at] + bytes([byte]) + raw[at + 1 :])
        with contextlib.suppress(kit.KitError):
            read_vocab(tmp_path, len(PIECES), {})


def test_tokens_beyond_the_embedding_are_dropped(tmp_path):
    folder = Checkpoint(n_layer=1, n_vocab=N_TOKENS - 1).write(tmp_path / "hf")
    assert len(converted(folder).metadata["tokenizer.ggml.tokens"]) == N_TOKENS - 1


def test_an_id_far_beyond_costs_nothing(folder):
    written = json.loads((folder / "tokenizer.json").read_text())
    write_json(folder / "added_tokens.json", {"far": 1 << 60})
    assert written and len(converted(folder).metadata["tokenizer.ggml.tokens"]) == N_TOKENS + 2
