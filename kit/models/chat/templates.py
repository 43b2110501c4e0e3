"""Chat templates: messages -> the text a model was trained to answer, from the template in the model's file."""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError as JinjaError
from jinja2 import TemplateSyntaxError

from kit.errors import ArgumentError, TemplateError
from kit.models.chat.forms import FORMS, form_for
from kit.models.chat.limits import MAX_CHARS, MAX_SOURCE, LimitError, rendering
from kit.models.chat.sandbox import TemplateEnvironment
from kit.models.text.vocabulary import KEY

if TYPE_CHECKING:
    from kit.core.gguf import GGUFFile
    from kit.models.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
_DEPTH = 32


class ChatTemplate:
    """A template, ready to render.

    >>> ChatTemplate("chatml").render([{"role": "user", "content": "Hi"}])
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'

    Args:
        source: jinja2 text, or the name of a built-in form: see `kit.models.chat.forms.FORMS`.
        bos_token, eos_token: texts of the tokens that begin and end a text, for templates that write them.
        name: what messages call the template.

    Raises:
        TemplateError: neither the name of a form nor jinja2 text; names the template and the line.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "", name: str = "") -> None:
        if not isinstance(source, str):
            raise ArgumentError(f"the template is a {type(source).__name__}; give text or the name of a form")
        built_in = source in FORMS
        self.name = name or (f"the built-in form {source}" if built_in else "the chat template")
        self.source = FORMS[source] if built_in else source
        self.bos_token = bos_token
        self.eos_token = eos_token
        if len(self.source) > MAX_SOURCE:
            raise TemplateError(f"{self.name} has {len(self.source)} characters; {MAX_SOURCE} are the most")
        if "{{" not in self.source and "{%" not in self.source:
            raise TemplateError(_no_form(source, name))
        self._template = self._compiled()

    @classmethod
    def from_gguf(cls, file: str | os.PathLike[str] | GGUFFile, name: str | None = None) -> ChatTemplate:
        """The template of a GGUF file, given as a path or open.

        Without ``name`` it is `tokenizer.chat_template`; with one, `tokenizer.chat_template.{name}`. A file that
        has none gets the built-in form its special tokens belong to.

        Raises:
            TemplateError: no template, and none of the built-in forms' tokens.
        """
        from kit.models.text.tokenizer import Tokenizer

        if isinstance(file, (str, os.PathLike)):
            from kit.core.gguf import GGUFFile

            file = GGUFFile(file)
        return cls.from_metadata(file.metadata, Tokenizer.from_gguf(file), str(file.path), name)

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], tokenizer: Tokenizer, source: str, name: str | None = None
    ) -> ChatTemplate:
        """As `from_gguf`, from metadata and a tokenizer made of it; ``source`` names the file in messages."""
        key = KEY.replace("ggml.", "chat_template") + (f".{name}" if name else "")
        text = metadata.get(key)
        shown = f"{key} of {source}"
        if text is None and name:
            raise TemplateError(f"{shown} is missing; leave the name out for the file's own template")
        if text is None:
            text = form_for(tokenizer)
            if text is None:
                raise TemplateError(f"{shown} is missing; give one of the built-in forms: {', '.join(FORMS)}")
            shown = f"the built-in form {text} for {source}"
        if not isinstance(text, str):
            raise TemplateError(f"{shown} is a {type(text).__name__}, expected a string")
        return cls(text, name=shown, **special_texts(tokenizer))

    def render(self, messages: Iterable[Message], *, add_generation_prompt: bool = True, **more: Any) -> str:
        """The text of a conversation.

        Args:
            messages: each with ``role`` and mostly ``content``; texts, numbers, lists and dicts only.
            add_generation_prompt: end with the head of the assistant's answer.
            more: what else the template reads, such as ``tools`` or ``date_string``.

        Raises:
            TemplateError: what the template raises itself or may not do; names the template and the line.
            ArgumentError: a message that is none.
        """
        values = plain_options(more)
        values |= {"messages": plain_messages(messages), "add_generation_prompt": bool(add_generation_prompt)}
        values = {"bos_token": self.bos_token, "eos_token": self.eos_token} | values
        with rendering():
            try:
                return self._run(values)
            except Exception as error:
                raise self._explained(error) from error

    def _run(self, values: dict[str, Any]) -> str:
        pieces, n_chars = [], 0
        for piece in self._template.root_render_func(self._template.new_context(values)):
            n_chars += len(piece)
            if n_chars > MAX_CHARS:
                raise LimitError(f"it writes more than {MAX_CHARS} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _compiled(self) -> Any:
        environment = TemplateEnvironment()
        try:
            code = environment.compile(self.source, name=self.name, filename=self.name)
            return environment.template_class.from_code(environment, code, environment.globals)
        except Exception as error:  # deep nesting ends in RecursionError, MemoryError or SyntaxError
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> TemplateError:
        """The error with the template's name and line; jinja2 leaves the line in the traceback."""
        line = error.lineno if isinstance(error, TemplateSyntaxError) else self._line_of(error)
        told = str(error) if isinstance(error, (JinjaError, LimitError)) else f"{type(error).__name__}: {error}"
        return TemplateError(f"{self.name}{'' if line is None else f', line {line}'}: {told}")

    def _line_of(self, error: Exception) -> int | None:
        environment = self._template.environment if hasattr(self, "_template") else None
        if environment is None:
            return None
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.name]
        return self._template.get_corresponding_lineno(lines[-1]) if lines and lines[-1] else None

    def __repr__(self) -> str:
        return f"ChatTemplate({self.name}: {len(self.source)} characters)"


def special_texts(tokenizer: Tokenizer) -> dict[str, str]:
    """The names of a vocabulary's BOS and EOS tokens, as `ChatTemplate` takes them."""
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    return {key: "" if token is None else tokenizer.token(token) for key, token in ids.items()}


def plain_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Copies of messages, made of plain values; ArgumentError for what is none."""
    if not isinstance(messages, Iterable):
        raise ArgumentError(f"messages is {_short(messages)}; give a list of dicts")
    plain = [_message(i, message) for i, message in enumerate(messages)]
    if not plain:
        raise ArgumentError("there are no messages; give at least one, as {'role': 'user', 'content': '...'}")
    return plain


def plain_options(more: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of what else a template reads, made of plain values."""
    if "messages" in more:
        raise ArgumentError("messages is given twice; the conversation is the first argument")
    return {key: _plain(value, key) for key, value in more.items()}


def _message(i: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ArgumentError(
            f"messages[{i}] is {_short(message)}; give a dict with a role, as {{'role': 'user', 'content': '...'}}"
        )
    plain: dict[str, Any] = _plain(message, f"messages[{i}]")
    return plain


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy made of Python's own plain types: a template never holds an object of the caller's."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if depth < _DEPTH and isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    if depth < _DEPTH and isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise ArgumentError(f"{where} is {_short(value)}; a template takes texts, numbers, lists and dicts, {_DEPTH} deep")


def _no_form(source: str, name: str) -> str:
    """What to say of a text without anything of jinja2: mostly the name of a form, mistyped."""
    near = difflib.get_close_matches(source[:60].lower(), FORMS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"{name + ': ' if name else ''}there is no form {_short(source)}; {hint}"
        f"The forms are {', '.join(FORMS)}; the text of a template writes messages with {{{{ }}}}"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
