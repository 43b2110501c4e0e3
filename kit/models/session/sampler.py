"""Choosing the next token from logits: bias, penalties, filters and temperature, in llama.cpp's default order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from kit.checks import is_whole
from kit.errors import ArgumentError, ShapeError


@dataclass(frozen=True, repr=False)
class Sampler:
    """Draws token ids; its settings are fixed, its random numbers are its own.

    What is set works on the logits in this order, which is llama.cpp's:

    logit_bias: added to the logits of single tokens, by id; -inf rules one out.
    repeat_penalty: a positive logit of a token among the last ``penalty_window`` (-1: all, 0: none) is divided
        by it, a negative one multiplied (1: off; Keskar et al. 2019, and llama.cpp for the negative ones).
    frequency_penalty: taken off once for each time the token is there; presence_penalty: once if it is there (0: off).
    top_k: how many of the most likely tokens stay (0: all).
    typical_p: those stay whose information is closest to the entropy, until their probabilities add up to more
        than this (1: all; Meister et al. 2022).
    top_p: the smallest set of tokens whose probabilities add up to this stays (1: all; Holtzman et al. 2019).
    min_p: tokens at least this fraction as likely as the most likely one stay (0: all; Nguyen et al. 2024).
    temperature: 0 takes the most likely token; 1 draws from the model's own distribution.
    seed: the same seed draws the same tokens from the same logits; None draws anew each time.

    Raises ArgumentError for a setting out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_window: int = 64
    logit_bias: Mapping[int, float] | None = None
    _random: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, math.inf)
        for name in ("top_p", "min_p", "typical_p"):
            _check_number(name, getattr(self, name), 1)
        _check_number("repeat_penalty", self.repeat_penalty, math.inf)
        if self.repeat_penalty == 0:
            raise ArgumentError("repeat_penalty is 0, expected a number above 0; 1 switches it off")
        for name in ("frequency_penalty", "presence_penalty"):
            _check_number(name, getattr(self, name), math.inf, -math.inf)
        _check_whole("top_k", self.top_k)
        _check_whole("penalty_window", self.penalty_window, -1)
        if self.seed is not None:
            _check_whole("seed", self.seed)
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        self.reset()

    def reset(self) -> None:
        """Start the random numbers again at the seed."""
        object.__setattr__(self, "_random", np.random.default_rng(self.seed))

    @property
    def memory(self) -> int:
        """How many of the last tokens `sample` wants to see; -1: all."""
        penalties = (self.repeat_penalty - 1, self.frequency_penalty, self.presence_penalty)
        return int(self.penalty_window) if any(penalties) else 0

    def sample(self, logits: npt.ArrayLike, recent: Sequence[int] = ()) -> int:
        """One token id for logits (n_vocab,), -inf rules a token out; ``recent``: tokens so far, for the penalties.

        Raises ShapeError for another shape, ArgumentError for NaN, +inf or nothing but -inf.
        """
        ids, probabilities = self.candidates(logits, recent)
        if len(ids) == 1:
            return int(ids[0])
        edges = probabilities.cumsum()
        chosen = int(np.searchsorted(edges, self._random.random() * edges[-1], side="right"))
        return int(ids[min(chosen, len(ids) - 1)])

    def candidates(
        self, logits: npt.ArrayLike, recent: Sequence[int] = ()
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The tokens that can be drawn, (n,) ids and (n,) probabilities, the most likely first.

        Equal logits go by id, the lower first. Raises as sample() does.
        """
        values = self._changed(_checked(logits), recent)
        if self.temperature == 0 and self.typical_p >= 1:
            return np.array([values.argmax()]), np.ones(1)
        ids = _largest(values, self.top_k)
        gaps = values[ids].astype(np.float64)
        if self.typical_p < 1:
            kept = _typical(gaps, self.typical_p)
            ids, gaps = ids[kept], gaps[kept]
        gaps -= gaps[0]
        if self.temperature == 0:
            return ids[:1], np.ones(1)
        n_kept = _count_top_p(gaps, self.top_p)
        if self.min_p > 0:
            n_kept = min(n_kept, int((gaps >= math.log(self.min_p)).sum()))
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the first to -inf
            weights = np.exp(gaps[:n_kept] / self.temperature)
        weights = weights[weights > 0]
        return ids[: len(weights)], weights / weights.sum()

    @np.errstate(over="ignore", invalid="ignore")  # what comes of it is looked at below
    def _changed(self, values: npt.NDArray[np.floating], recent: Sequence[int]) -> npt.NDArray[np.floating]:
        """The logits after bias and penalties; `values` is a copy already."""
        n_vocab = len(values)
        if self.logit_bias:
            largest = max(self.logit_bias)
            if largest >= n_vocab:
                raise ArgumentError(f"logit_bias names token {largest}, the vocabulary has {n_vocab}")
            values[list(self.logit_bias)] += list(self.logit_bias.values())
        if self.memory and len(recent):
            window = recent if self.memory < 0 else recent[-self.memory :]
            ids, counts = np.unique(np.asarray(window, np.int64), return_counts=True)
            if ids[0] < 0 or ids[-1] >= n_vocab:
                raise ArgumentError(f"the recent tokens reach from {ids[0]} to {ids[-1]}, the vocabulary has {n_vocab}")
            seen = values[ids]
            seen = np.where(seen <= 0, seen * self.repeat_penalty, seen / self.repeat_penalty)
            values[ids] = seen - counts * self.frequency_penalty - self.presence_penalty
        if not np.isfinite(values.max()):
            raise ArgumentError("bias and penalties rule out every token, or their sums are too large")
        return values

    def __repr__(self) -> str:
        shown = ("temperature", "top_k", "top_p", "min_p", "seed")
        own = [f for f in fields(self) if f.name in shown or (f.init and getattr(self, f.name) != f.default)]
        return f"Sampler({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in own)})"


def _largest(values: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.int64]:
    """Indices of the k largest values (all for k = 0), largest first, equal ones by index; no -inf."""
    n = len(values)
    floor = np.partition(values, n - k)[n - k] if 0 < k < n else -np.inf
    ids = np.flatnonzero(values >= floor) if floor > -np.inf else np.flatnonzero(values > -np.inf)
    order = np.argsort(-values[ids], kind="stable")
    return ids[order][: k or None]


def _typical(logits: npt.NDArray[np.float64], typical_p: float) -> npt.NDArray[np.int64]:
    """Positions of the locally typical tokens among sorted logits, in the order they had."""
    logs = logits - logits[0]
    logs -= math.log(np.exp(logs).sum())
    chances = np.exp(logs)
    # a chance of 0 carries no information, where the product would be NaN
    distance = np.abs(-logs + (chances * np.where(chances > 0, logs, 0)).sum())
    order = np.argsort(distance, kind="stable")
    n_kept = int(np.searchsorted(chances[order].cumsum(), typical_p, side="right")) + 1
    return np.sort(order[:n_kept])


def _count_top_p(gaps: npt.NDArray[np.float64], top_p: float) -> int:
    """How many of the sorted tokens it takes to reach the probability top_p; at least one."""
    if top_p >= 1:
        return len(gaps)
    sums = np.exp(gaps).cumsum()
    return min(int(np.searchsorted(sums, top_p * sums[-1])) + 1, len(gaps))


def _checked(logits: npt.ArrayLike) -> npt.NDArray[np.floating]:
    values = np.asarray(logits)
    if values.ndim != 1 or values.size == 0:
        raise ShapeError(f"logits have shape {values.shape}, expected (n_vocab,): pass one row")
    if values.dtype.kind not in "fiu":
        raise ArgumentError(f"logits are {values.dtype.name}, expected floating point numbers")
    values = values.astype(np.float32 if values.dtype == np.float16 else np.result_type(values, np.float32))
    top = values.max()  # NaN wins every max
    if np.isnan(top):
        at = int(np.flatnonzero(np.isnan(values))[0])
        raise ArgumentError(f"logits hold NaN, first at token {at}; look at the weights and edits")
    if np.isinf(top):
        raise ArgumentError(f"the largest logit is {top}, expected a finite number")
    return values


def _checked_bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise ArgumentError(f"logit_bias is {bias!r}, expected a dict of token id to number")
    for token, value in bias.items():
        _check_whole("a token of logit_bias", token)
        if value != -math.inf:
            _check_number(f"logit_bias[{token}]", value, math.inf, -math.inf)
    return {int(token): float(value) for token, value in bias.items()}


def _check_number(name: str, value: object, largest: float, least: float = 0) -> None:
    good = isinstance(value, (int, float, np.floating, np.integer)) and not isinstance(value, bool)
    try:
        number = float(value) if good else math.nan  # type: ignore[arg-type]
    except OverflowError:
        number = math.inf
    if not least <= number <= largest or math.isinf(number):
        reach = f"a number from {least:g} to {largest:g}"
        if math.isinf(largest):
            reach = "a finite number" if math.isinf(least) else f"a finite number, {least:g} or more"
        raise ArgumentError(f"{name} is {value!r:.80}, expected {reach}")


def _check_whole(name: str, value: object, least: int = 0) -> None:
    if not is_whole(value, least):
        raise ArgumentError(f"{name} is {value!r:.80}, expected a whole number, {least} or more")
