"""A conversation in a terminal: answers as they come, and a line read for each message."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from kit.errors import CacheFull, TemplateError
from kit.views.tokens import line_text

if TYPE_CHECKING:
    from kit.models.session.session import Session
    from kit.models.text.streaming import Token


class Speaker:
    """Writes tokens to stdout as they come, with nothing in them that steers the terminal; keeps them."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self._took_s = 0.0

    @property
    def text(self) -> str:
        """All that was said."""
        return "".join(token.text for token in self.tokens)

    def say(self, tokens: Iterable[Token]) -> None:
        """Write until the tokens end; what was said before an error is kept."""
        started = time.perf_counter()
        try:
            for token in tokens:
                self.tokens.append(token)
                click.echo(line_text(token.text), nl=False)
                sys.stdout.flush()
        finally:
            self._took_s += time.perf_counter() - started
            click.echo()

    def figures(self) -> str:
        """Count and rate of the tokens."""
        count = len(self.tokens)
        return f"{count} tokens, {count / max(self._took_s, 1e-9):.1f} a second"


class Conversation:
    """Reads a line, writes the answer, until the input ends; ``asked`` goes to `kit.Session.chat`."""

    def __init__(self, session: Session, system: str | None, asked: dict[str, Any]) -> None:
        self._session = session
        self._asked = asked
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        self._n_fixed = len(self.messages)

    def run(self) -> None:
        """Talk until the end of the input (Ctrl-D). Ctrl-C ends the answer, or a line half written."""
        prompt = "> " if sys.stdin.isatty() else ""
        while True:
            try:
                line = input(prompt)
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:
                click.echo("Ctrl-D ends the chat", err=True)
                continue
            if line.strip():
                self._answer(line)

    def _answer(self, line: str) -> None:
        self.messages.append({"role": "user", "content": line})
        speaker = Speaker()
        try:
            speaker.say(self._tokens())
        except KeyboardInterrupt:
            pass  # what was said stays part of the conversation
        except (CacheFull, TemplateError) as error:
            if not speaker.tokens:
                self.messages.pop()
                if isinstance(error, TemplateError):
                    raise
            click.echo(click.style("kit: ", fg="red", bold=True) + str(error), err=True)
            if not speaker.tokens:
                return
        self.messages.append({"role": "assistant", "content": speaker.text})
        click.echo(click.style(speaker.figures(), dim=True), err=True)

    def _tokens(self) -> Iterable[Token]:
        """The answer; where the conversation no longer fits, its oldest exchanges are left out."""
        kept = list(self.messages)
        while True:
            try:
                tokens = self._session.chat(kept, **self._asked)
            except CacheFull:
                if len(kept) < self._n_fixed + 3:
                    raise
                del kept[self._n_fixed : self._n_fixed + 2]
            else:
                if len(kept) < len(self.messages):
                    click.echo("the conversation no longer fits: its oldest messages are left out", err=True)
                self.messages = kept
                return tokens
