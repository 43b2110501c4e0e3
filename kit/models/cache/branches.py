"""Branches: several sequences in one cache that go on from what a session has seen, run together in one batch.

What they share is stored once; each adds cells of its own. A pass over all of them costs little more than over one,
because the weights are read once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from kit.checks import is_whole, whole
from kit.core.scope import scope
from kit.errors import ArgumentError, ClosedError
from kit.models.cache.cache import KVCache
from kit.models.cache.cells import MAIN
from kit.models.session.generation import generate
from kit.models.session.prompts import Prompt, is_empty, prompt_ids, prompt_list
from kit.models.session.run import Run
from kit.models.session.sampler import Sampler
from kit.models.session.walk import refuse_reentry

if TYPE_CHECKING:
    from kit.models.session.session import Session
    from kit.models.text.streaming import Token


class Branch:
    """One of several sequences; `kit.models.session.generation` drives it as it does a session."""

    def __init__(self, branches: Branches, sequence: int, tokens: Sequence[int]) -> None:
        self.sequence = sequence
        self.seen = list(tokens)
        self.unseen: list[int] = []
        self.row: npt.NDArray[np.float32] | None = None
        self._branches = branches

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens of the sequence, those it shares and generated ones included."""
        return (*self.seen, *self.unseen)

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._branches.session.tokenizer

    @property
    def model(self) -> Any:
        """The model."""
        return self._branches.session.model

    @property
    def cache(self) -> KVCache:
        """The cache it shares."""
        return self._branches.session.cache

    def ids(self, prompt: Prompt) -> list[int]:
        """Return ``prompt`` as token ids, checked, to go on from what the branch has seen."""
        return prompt_ids(self.model, prompt, at_start=not self.tokens)

    def check_room(self, n_tokens: int) -> None:
        """Raise CacheFull unless ``n_tokens`` more fit."""
        self.cache.room_for(n_tokens)

    def next_logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        """Return the logits after ``ids``; they are computed for every branch that waits, in one batch."""
        self.unseen += ids
        if self.unseen or self.row is None:
            self._branches.advance()
        assert self.row is not None
        return self.row

    def promise(self, token: int) -> None:
        """Note a token that was given out and is not in the cache yet."""
        self.unseen.append(token)


class Branches(Sequence[Branch]):
    """Sequences that go on from one prefix; made by `kit.Session.fork`. ``close()`` frees what each added."""

    def __init__(self, session: Session, n: int, tokens: Sequence[int]) -> None:
        n = whole("n", n)
        self.session = session
        self.closed = False
        self._cells = session.cache.cells
        self._all = [Branch(self, sequence, tokens) for sequence in self._cells.open_sequences(n)]
        for branch in self._all:
            self._cells.share(MAIN, branch.sequence)

    def run(self, prompts: Sequence[Prompt | None], *, logits: Literal["all", "last"] = "last") -> list[Run]:
        """Run a prompt on each branch, all in one batch; None leaves a branch as it is. Return a `Run` for each.

        Raises:
            ArgumentError: not one prompt per branch. CacheFull: no room for all; no branch has moved.
        """
        self._require_open()
        prompts = prompt_list(prompts)
        if len(prompts) != len(self):
            raise ArgumentError(f"{len(prompts)} prompts for {len(self)} branches; give one each, None for nothing")
        if logits not in ("all", "last"):
            raise ArgumentError(f"logits is {logits!r}; give 'all' or 'last'")
        new = [[] if prompt is None else branch.ids(prompt) for branch, prompt in zip(self, prompts, strict=True)]
        wanted = [len(more) if logits == "all" else min(len(more), 1) for more in new]
        started = time.perf_counter_ns()
        rows = self._rows([[*branch.unseen, *more] for branch, more in zip(self, new, strict=True)], wanted)
        took = time.perf_counter_ns() - started
        model = self.session.model
        return [Run(tuple(i), row, {}, took, model.pieces(i)) for i, row in zip(new, rows, strict=True)]

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int = 128,
        sampler: Sampler | Sequence[Sampler] | None = None,
        stop: Sequence[str] = (),
    ) -> Iterator[tuple[int, Token]]:
        """Yield (branch, token) for all branches at once, as `kit.Session.generate` does for one.

        The prompts are taken now and run with the first token. ``sampler``: one for all, or one for each; an empty
        prompt goes on from what the branch has seen.
        """
        self._require_open()
        given = prompt_list(prompts)
        if len(given) != len(self):
            raise ArgumentError(f"{len(given)} prompts for {len(self)} branches; give one each")
        one = Sampler() if sampler is None else sampler
        samplers = list(one) if isinstance(one, Sequence) else [one] * len(self)
        if len(samplers) != len(self):
            raise ArgumentError(f"{len(samplers)} samplers for {len(self)} branches; give one for all, or one each")
        new = [[] if is_empty(prompt) else branch.ids(prompt) for branch, prompt in zip(self, given, strict=True)]
        if not all(branch.tokens or ids for branch, ids in zip(self, new, strict=True)):
            raise ArgumentError("there is nothing to continue; give each branch a prompt")
        self._cells.room_for(sum(map(len, new)))
        for branch, ids in zip(self, new, strict=True):
            branch.unseen += ids  # so that the first to ask for logits gets them for all
        try:
            streams = [generate(branch, "", max_tokens, one, stop) for branch, one in zip(self, samplers, strict=True)]
        except BaseException:
            for branch, ids in zip(self, new, strict=True):
                del branch.unseen[len(branch.unseen) - len(ids) :]
            raise
        return _interleaved(streams)

    def keep(self, index: int) -> None:
        """Let the session go on as branch ``index``, and close them all."""
        self._require_open()
        if not is_whole(index, -len(self), len(self) - 1):
            raise ArgumentError(f"index is {index!r}; give the number of a branch, 0 to {len(self) - 1}")
        self.session.become(self._all[index])
        self.close()

    def advance(self) -> None:
        """Run what waits in each branch, all in one batch; one that has nothing new runs its last token again."""
        self._require_open()
        waiting = [list(branch.unseen) for branch in self]
        rows = self._rows(waiting, [min(len(ids), 1) for ids in waiting])
        repeated: dict[int, npt.NDArray[np.float32]] = {}
        for branch, row in zip(self, rows, strict=True):
            if len(row):
                branch.row = row[-1]
            elif branch.row is None and branch.seen:
                batch = self._cells.last(branch.seen[-1], branch.sequence)
                cell = int(batch.cells[0])
                if cell not in repeated:
                    repeated[cell] = self.session.run_batch(batch, again=True)[-1]
                branch.row = repeated[cell]

    def close(self) -> None:
        """Free the cells that only branches see; a second call does nothing."""
        if not self.closed:
            refuse_reentry(self.session.busy, "close() its branches")
            self.closed = True
            if self in self.session.branches:
                self.session.branches.remove(self)
            self._cells.close_sequences([branch.sequence for branch in self._all])

    def _rows(self, ids: list[list[int]], wanted: list[int]) -> list[npt.NDArray[np.float32]]:
        """Run ``ids`` of each branch; return the logits of its last ``wanted`` tokens."""
        session = self.session
        found = np.empty((0, session.model.config.n_vocab), np.float32)
        for branch in self:
            self._cells.agree(branch.sequence, len(branch.seen))
        if any(ids):
            with scope("batch"):
                found = session.run_batch(self._cells.joined([branch.sequence for branch in self], ids, wanted))
        for branch, new in zip(self, ids, strict=True):
            if new:
                branch.seen += new
                branch.unseen.clear()
                branch.row = None
        return np.split(found, np.cumsum(wanted)[:-1])

    def _require_open(self) -> None:
        if self.closed or self.session.closed:
            raise ClosedError("these branches were closed, or their session was closed or reset; fork() again")

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "Branches(closed)"
        own = ", ".join(str(len(branch.tokens)) for branch in self._all)
        return f"Branches({len(self)} of {self.session!r}, tokens {own})"


def generate_batch(
    session: Session,
    prompts: Sequence[Prompt],
    max_tokens: int,
    sampler: Sampler | Sequence[Sampler] | None,
    stop: Sequence[str],
) -> list[list[Token]]:
    """See `Session.generate_batch`."""
    given = prompt_list(prompts)
    made: list[list[Token]] = [[] for _ in given]
    with session.fork(len(made)) as branches:
        for index, token in branches.generate(given, max_tokens=max_tokens, sampler=sampler, stop=stop):
            made[index].append(token)
    return made


def _interleaved(streams: list[Iterator[Token]]) -> Iterator[tuple[int, Token]]:
    live = dict(enumerate(streams))
    while live:
        for index in list(live):
            token = next(live[index], None)
            if token is None:
                del live[index]
            else:
                yield index, token
