"""The tokenizer of a checkpoint in GGUF's keys: tokens, scores, types, merges, special ids, chat template.

`tokenizer.json` is read with the `tokenizers` library, whose results are then compared with kit's own tokenizer over
the converted vocabulary: what cannot be expressed in GGUF is refused, not approximated.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from kit.checks import is_whole
from kit.errors import ConversionError, KitError, ModelNotFound, UnsupportedModel
from kit.models.chat.templates import ChatTemplate
from kit.models.convert.pieces import Vocab, from_sentencepiece, from_tokenizer_json, is_byte_level
from kit.models.convert.probe import PROBES, pre_tokenizer_kind
from kit.models.convert.safetensors import read_json
from kit.models.text.tokenizer import Tokenizer
from kit.models.text.vocabulary import KEY

_LARGEST_TOKENIZER = 256 << 20  # bytes


@dataclass
class _Files:
    """The JSON files of a checkpoint that speak of tokens; empty where one is absent."""

    folder: Path
    tokenizer: dict[str, Any] | None
    config: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> _Files:
        tokenizer = _table(folder / "tokenizer.json", _LARGEST_TOKENIZER)
        config = _table(folder / "tokenizer_config.json", _LARGEST_TOKENIZER) or {}
        return cls(folder, tokenizer, config, _table(folder / "generation_config.json") or {})


def _table(path: Path, largest: int = 16 << 20) -> dict[str, Any] | None:
    found = read_json(path, largest)
    if found is not None and not isinstance(found, dict):
        raise ConversionError(f"{path} holds no table of fields")
    return found


def read_vocab(folder: Path, n_vocab: int, token_ids: dict[str, Any], ignore: Collection[str] = ()) -> dict[str, Any]:
    """Return the ``tokenizer.*`` metadata; ``n_vocab`` rows of the embedding, ``token_ids`` config.json's.

    ``ignore``: ids of tokens in generation_config.json, or ``chat_template``, to go without.

    Raises:
        ModelNotFound: the folder has no tokenizer.
        UnsupportedModel: a tokenizer that GGUF, or kit, cannot express; says what of it.
        ConversionError: a file that contradicts itself, an id that is none, a chat template kit cannot read.
    """
    files = _Files.of(folder)
    files.generation = {key: value for key, value in files.generation.items() if key not in ignore}
    for name, values in (("config.json", token_ids), ("generation_config.json", files.generation)):
        _check_ends(folder / name, values, n_vocab)
    library = _library(files)
    model_file = folder / "tokenizer.model"
    sentencepiece = model_file.is_file() and not is_byte_level(files.tokenizer)
    if sentencepiece:
        vocab = from_sentencepiece(model_file, n_vocab)
        vocab.add(_added_tokens(files))
    elif files.tokenizer is not None:
        vocab = from_tokenizer_json(folder / "tokenizer.json", files.tokenizer, n_vocab)
        if vocab.kind == "gpt2":
            assert library is not None
            vocab.pre = pre_tokenizer_kind(library, folder / "tokenizer.json", vocab.ignore_merges)
    else:
        raise ModelNotFound(f"{folder} holds neither tokenizer.json nor tokenizer.model")
    metadata = vocab.metadata()
    metadata |= _special_ids(files, vocab, token_ids)
    metadata |= _added_ends(files, library, vocab, metadata)
    if "chat_template" not in ignore:
        metadata |= _readable(_chat_template(files), folder)
    _compare(metadata, None if sentencepiece else library, vocab.source)
    return metadata


def _check_ends(path: Path, values: dict[str, Any], n_vocab: int) -> None:
    """Raise ConversionError where the tokens said to begin and end a text are none of ``n_vocab``."""
    for key in ("bos_token_id", "eos_token_id"):
        found = values.get(key)
        for number in found if key == "eos_token_id" and isinstance(found, list) else [found]:
            if number is not None and not is_whole(number, 0, n_vocab - 1):
                raise ConversionError(
                    f"{path}: {key} is {found!r:.80}; expected a token id from 0 to {n_vocab - 1}; to convert without "
                    f"it: ignore=[{key!r}] (kit convert --ignore {key})"
                )


def _readable(templates: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return ``templates``; raise ConversionError for one that kit could not load again."""
    for key, text in templates.items():
        try:
            if isinstance(text, str):
                ChatTemplate(text, name=key)
        except KitError as error:
            raise ConversionError(
                f"{folder}: {error}; to convert without it: ignore=['chat_template'] "
                "(kit convert --ignore chat_template)"
            ) from error
    return templates


def _library(files: _Files) -> Any:
    if files.tokenizer is None:
        return None
    path = files.folder / "tokenizer.json"
    try:
        return Library.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ConversionError(f"{path}: the tokenizers library cannot read it: {error}") from error


def _added_tokens(files: _Files) -> list[dict[str, Any]]:
    """Return what tokenizer.json, tokenizer_config.json and added_tokens.json add to the pieces of a model."""
    added = [dict(item) for item in (files.tokenizer or {}).get("added_tokens") or [] if isinstance(item, dict)]
    decoder = files.config.get("added_tokens_decoder")
    for number, item in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(item, dict) and number.isdecimal():
            added.append({**item, "id": int(number)})
    plain = _table(files.folder / "added_tokens.json") or {}
    known = {str(item.get("id")) for item in added}
    added += [{"content": text, "id": number} for text, number in plain.items() if str(number) not in known]
    return added


def _content(token: Any) -> str | None:
    """Return the text of a special token, written as a string or as a table."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _special_ids(files: _Files, vocab: Vocab, token_ids: dict[str, Any]) -> dict[str, Any]:
    """Return the ids of bos, eos, unk and pad: tokenizer_config.json's first, then config.json's, then generation's."""
    found: dict[str, Any] = {}
    ids = vocab.ids()
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = ids.get(_content(files.config.get(f"{name}_token")) or "")
        for source in (token_ids, files.generation) if name in ("bos", "eos", "pad") else ():
            value = source.get(f"{name}_token_id")
            value = value[0] if isinstance(value, list) and value else value
            if number is None and type(value) is int and 0 <= value < len(vocab.tokens):
                number = value
        if number is not None:
            found[f"{KEY}{key}_token_id"] = number
    if vocab.unknown is not None:
        found.setdefault(f"{KEY}unknown_token_id", vocab.unknown)
    return found | _other_ends(files, vocab, token_ids, found.get(f"{KEY}eos_token_id"))


def _other_ends(files: _Files, vocab: Vocab, token_ids: dict[str, Any], eos: int | None) -> dict[str, Any]:
    """Return the further ids that end a generation as end of turn and end of message, the two places GGUF has."""
    ends = []
    for source in (files.generation, token_ids):
        value = source.get("eos_token_id")
        for number in value if isinstance(value, list) else [value]:
            if type(number) is int and 0 <= number < len(vocab.tokens) and number != eos and number not in ends:
                ends.append(number)
    turns = [number for number in ends if vocab.tokens[number] in ("<|eot_id|>", "<|im_end|>", "<|end|>")]
    ordered = turns + [number for number in ends if number not in turns]
    return dict(zip((f"{KEY}eot_token_id", f"{KEY}eom_token_id"), ordered, strict=False))


def _added_ends(files: _Files, library: Any, vocab: Vocab, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return whether a text gets BOS before and EOS after it: as said in the config, else as the library does."""
    found: dict[str, Any] = {}
    whole = library.encode("a", add_special_tokens=True).ids if library is not None else []
    for name, at in (("bos", 0), ("eos", -1)):
        number = metadata.get(f"{KEY}{name}_token_id")
        said = files.config.get(f"add_{name}_token")
        if isinstance(said, bool):
            wanted = said
        elif library is not None:
            wanted = len(whole) > 1 and whole[at] == number
        else:
            wanted = name == "bos" and vocab.kind == "llama"
        found[f"{KEY}add_{name}_token"] = wanted and number is not None
    if vocab.kind == "llama":
        prefix = files.config.get("add_prefix_space")
        found[f"{KEY}add_space_prefix"] = vocab.space_prefix if vocab.space_prefix is not None else prefix is not False
    return found


def _chat_template(files: _Files) -> dict[str, Any]:
    """Return the chat template: chat_template.jinja's, else chat_template.json's, else tokenizer_config.json's."""
    jinja = files.folder / "chat_template.jinja"
    if jinja.is_file():
        if jinja.stat().st_size > 16 << 20:
            raise ConversionError(f"{jinja} is larger than 16 MiB: no chat template")
        try:
            template: Any = jinja.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConversionError(f"{jinja}: reading failed: {error}") from error
    else:
        beside = _table(files.folder / "chat_template.json") or {}
        template = beside.get("chat_template", files.config.get("chat_template"))
    if template is None:
        return {}
    if isinstance(template, str):
        return {"tokenizer.chat_template": template} if template else {}
    if not isinstance(template, list):
        raise ConversionError(f"{files.folder}: chat_template is a {type(template).__name__}; expected text or a list")
    found: dict[str, Any] = {}
    for item in template:
        name, text = (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str) or not name:
            raise ConversionError(f"{files.folder}: an entry of chat_template has no name and template")
        safe = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        found["tokenizer.chat_template" + ("" if name == "default" else f".{safe}")] = text
    others = sorted(key.rsplit(".", 1)[1] for key in found if key.count(".") > 1)
    return found | ({"tokenizer.chat_templates": others} if others else {})


def _compare(metadata: dict[str, Any], library: Any, path: Path) -> None:
    """Raise UnsupportedModel where kit's tokenizer refuses the metadata or gives other ids than the library."""
    try:
        ours = Tokenizer.from_metadata(metadata, str(path))
    except KitError as error:
        raise UnsupportedModel(f"{path}: {error}") from error
    for text in PROBES if library is not None else ():
        expected = library.encode(text, add_special_tokens=False).ids
        found = ours.encode(text, add_special=False)
        if found != expected:
            at = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), 0)
            raise UnsupportedModel(
                f"{path}: this tokenizer cannot be expressed in GGUF as {ours!r}: {text!r} gives {found[at : at + 4]} "
                f"from token {at} on, where the tokenizers library gives {expected[at : at + 4]}"
            )
