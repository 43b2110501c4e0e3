"""Choosing the next token from logits: top-k, top-p, min-p, temperature, in llama.cpp's default order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kit.errors import ArgumentError, ShapeError


@dataclass(frozen=True)
class Sampler:
    """Draws token ids; its settings are fixed, its random numbers are its own.

    temperature: 0 takes the most likely token; 1 draws from the model's own distribution.
    top_k: how many of the most likely tokens stay (0: all).
    top_p: the smallest set of tokens whose probabilities add up to this stays (1: all).
    min_p: tokens at least this fraction as likely as the most likely one stay (0: all).
    seed: the same seed draws the same tokens from the same logits; None draws anew each time.

    Raises ArgumentError for a setting out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    _random: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, math.inf)
        _check_number("top_p", self.top_p, 1)
        _check_number("min_p", self.min_p, 1)
        _check_whole("top_k", self.top_k)
        if self.seed is not None:
            _check_whole("seed", self.seed)
        self.reset()

    def reset(self) -> None:
        """Start the random numbers again at the seed."""
        object.__setattr__(self, "_random", np.random.default_rng(self.seed))

    def sample(self, logits: npt.ArrayLike) -> int:
        """One token id for logits (n_vocab,); -inf rules a token out.

        Raises ShapeError for another shape, ArgumentError for NaN, +inf or nothing but -inf.
        """
        ids, probabilities = self.candidates(logits)
        if len(ids) == 1:
            return int(ids[0])
        edges = probabilities.cumsum()
        chosen = int(np.searchsorted(edges, self._random.random() * edges[-1], side="right"))
        return int(ids[min(chosen, len(ids) - 1)])

    def candidates(self, logits: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The tokens that can be drawn, (n,) ids and (n,) probabilities, the most likely first.

        Equal logits go by id, the lower first. Raises as sample() does.
        """
        values = _checked(logits)
        if self.temperature == 0:
            return np.array([values.argmax()]), np.ones(1)
        ids = _largest(values, self.top_k)
        gaps = values[ids].astype(np.float64)
        gaps -= gaps[0]
        n_kept = _count_top_p(gaps, self.top_p)
        if self.min_p > 0:
            n_kept = min(n_kept, int((gaps >= math.log(self.min_p)).sum()))
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the first to -inf
            weights = np.exp(gaps[:n_kept] / self.temperature)
        weights = weights[weights > 0]
        return ids[: len(weights)], weights / weights.sum()


def _largest(values: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.int64]:
    """Indices of the k largest values (all for k = 0), largest first, equal ones by index; no -inf."""
    n = len(values)
    floor = np.partition(values, n - k)[n - k] if 0 < k < n else -np.inf
    ids = np.flatnonzero(values >= floor) if floor > -np.inf else np.flatnonzero(values > -np.inf)
    order = np.argsort(-values[ids], kind="stable")
    return ids[order][: k or None]


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


def _check_number(name: str, value: object, largest: float) -> None:
    good = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    if not good or not 0 <= float(value) <= largest or math.isinf(float(value)):  # type: ignore[arg-type]
        reach = "a finite number, 0 or more" if math.isinf(largest) else f"a number from 0 to {largest:g}"
        raise ArgumentError(f"{name} is {value!r}, expected {reach}")


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise ArgumentError(f"{name} is {value!r}, expected a whole number, 0 or more")
