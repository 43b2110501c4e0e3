"""Prompts: text or token ids, turned into ids that are in the vocabulary."""

from __future__ import annotations

import contextlib
import operator
import reprlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from kit.errors import ArgumentError

if TYPE_CHECKING:
    from kit.models.model import Model

Prompt = str | Sequence[int]
_Given = TypeVar("_Given")  # prompts, or prompts and None


def prompt_ids(model: Model, prompt: Prompt, at_start: bool) -> list[int]:
    """Return ``prompt`` as token ids; where it is text ``at_start``, with the special tokens the file asks for.

    Raises:
        ArgumentError: no tokens, no text, or ids that are not in the vocabulary.
    """
    text = isinstance(prompt, str)
    ids = model.tokenizer.encode(str(prompt), add_special=at_start) if text else _whole_numbers(prompt)
    if not ids:
        raise ArgumentError("the prompt has no tokens; give some text or token ids")
    n_vocab = model.config.n_vocab
    bad = next((token for token in ids if not 0 <= token < n_vocab), None)
    if bad is not None:
        raise ArgumentError(f"token {bad} is not in the vocabulary of {n_vocab}")
    return ids


def is_empty(prompt: Prompt) -> bool:
    """Whether ``prompt`` is an empty text or list; ArgumentError for what is neither text nor list."""
    try:
        return len(prompt) == 0
    except TypeError:
        raise ArgumentError(_no_prompt(prompt)) from None


def prompt_list(prompts: Iterable[_Given]) -> list[_Given]:
    """Return ``prompts`` as a list; ArgumentError for one text, or what is no list."""
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Iterable):
        raise ArgumentError(f"prompts is {reprlib.repr(prompts)}; give a list of prompts")
    return list(prompts)


def _whole_numbers(prompt: Prompt) -> list[int]:
    if not isinstance(prompt, (bytes, bytearray)):
        with contextlib.suppress(TypeError):
            return [operator.index(token) for token in prompt]  # type: ignore[arg-type] # text never comes here
    raise ArgumentError(_no_prompt(prompt))


def _no_prompt(prompt: object) -> str:
    return f"the prompt is {reprlib.repr(prompt)}; give text, or token ids as whole numbers"
