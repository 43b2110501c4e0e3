"""Carrying out batches: pieces of at most one pass, logits where they are asked for, stages copied and changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from kit.core import transfer
from kit.core.backend import Backend
from kit.core.compute import turn
from kit.core.watch import Watch
from kit.errors import GgmlAbort
from kit.models.architecture.attention import Choice
from kit.models.architecture.config import LlamaConfig
from kit.models.cache.cache import KVCache
from kit.models.cache.cells import MAIN, Batch
from kit.models.cache.scrub import scrub
from kit.models.cache.shift import shift
from kit.models.session.passes import BuiltPass, PassBuilder, PassKey
from kit.models.session.patches import Patch, watch
from kit.models.weights.prepared import Prepared

Values = dict[str, npt.NDArray[np.float32]]


class Runner:
    """The passes of one session over its cache. A batch that fails leaves no token in the cache."""

    def __init__(
        self, backend: Backend, config: LlamaConfig, weights: Prepared, cache: KVCache, choice: Choice, n_pass: int
    ) -> None:
        self.backend = backend
        self.weights = weights
        self.cache = cache
        self.choice = choice
        self.n_pass = n_pass
        self.passes = PassBuilder(backend, config, weights, cache, n_pass, "session")

    def reserve(self) -> None:
        """Grow the compute buffer to the worst case now, so that no later pass has to."""
        for n_tokens in (self.n_pass, 1):
            built = self.passes.build(PassKey(n_tokens, self.cache.n_cells, n_tokens, self.choice.kind))
            try:
                self.backend.reserve(built.graph)
            finally:
                built.close()

    def rows(self, batch: Batch, *, again: bool = False) -> npt.NDArray[np.float32]:
        """Run ``batch``; return the logits of its out rows. ``again``: its tokens are in their cells already."""
        found: list[npt.NDArray[np.float32]] = []
        entered: list[Batch] = []
        scrub(self.passes, self.n_pass)
        try:
            for part in batch.parts(self.n_pass):
                built = self.passes.get(self._key(part))
                built.fill(part, self.cache.cells)
                with turn():  # until the logits are read, nobody else may use the compute buffer
                    self.backend.compute(built.graph)
                    if len(part.out_rows):
                        found.append(transfer.read(built.logits))
                        if not np.isfinite(found[-1][:, 0]).all():  # the norm spreads a NaN over the whole row
                            self.cache.cells.stain(batch)
                if not again:
                    entered.append(part)
                    self.cache.cells.enter(part)
        except BaseException as error:
            self._leave(entered)
            if isinstance(error, GgmlAbort):
                raise self.weights.explained(error) from None
            raise
        return found[0] if len(found) == 1 else np.concatenate(found)

    def observed(
        self, batch: Batch, kept: Collection[str], patches: Mapping[str, Patch]
    ) -> tuple[npt.NDArray[np.float32], Values]:
        """Run ``batch``, copying and changing stages on the way; a patch sees all tokens, in one pass."""
        rows: list[npt.NDArray[np.float32]] = []
        values: list[Values] = []
        entered: list[Batch] = []
        scrub(self.passes, self.n_pass)
        if patches:
            self.cache.cells.stain(batch)
        try:
            for part in batch.parts(len(batch) if patches else self.n_pass):
                logits, copies = self._observed_part(part, kept, patches)
                rows += [logits] if len(part.out_rows) else []
                values.append(copies)
                entered.append(part)
                self.cache.cells.enter(part)
        except BaseException as error:
            self._leave(entered)
            if isinstance(error, GgmlAbort):
                raise self.weights.explained(error) from None
            raise
        pieces = {name: [part[name] for part in values if name in part] for name in kept}
        return np.concatenate(rows), {name: _joined(name, parts) for name, parts in pieces.items()}

    def apart(self, batch: Batch) -> BuiltPass:
        """Return a pass over ``batch`` with inputs of its own, for a walk; the caller closes it."""
        scrub(self.passes, self.n_pass)
        return self.passes.build(self._key(batch), apart=True)

    def cells_seen(self, batch: Batch) -> npt.NDArray[np.int64]:
        """Return the cells of the main sequence once ``batch`` is in them, by position."""
        return np.concatenate([self.cache.cells.of(MAIN), batch.cells])

    def shift(self, n_keep: int, n_discard: int) -> None:
        """See `kit.models.cache.shift`."""
        shift(self.passes, self.n_pass, n_keep, n_discard)

    def close(self) -> None:
        """Free all passes and their inputs."""
        self.passes.close()

    def _observed_part(
        self, batch: Batch, kept: Collection[str], patches: Mapping[str, Patch]
    ) -> tuple[npt.NDArray[np.float32], Values]:
        wanted = {*kept, *patches}
        built = self.passes.get(self._key(batch, scores=any(name.endswith(".scores") for name in wanted)))
        built.fill(batch, self.cache.cells)
        stages = built.seen(self.cells_seen(batch))
        flat = {name: np.empty(stages[name].shape, np.float32) for name in kept}
        watched = [watch(stages[name], flat.get(name), patches.get(name)) for name in sorted(wanted)]
        with turn():
            Watch(watched).compute(built.graph)
            logits = transfer.read(built.logits)
        told = [name for name in kept if len(batch.out_rows) or name not in ("norm", "logits")]
        return logits, {name: np.ascontiguousarray(stages[name].show(flat[name])) for name in told}

    def _key(self, batch: Batch, scores: bool = False) -> PassKey:
        kind = "plain" if scores and self.choice.kind == "flash" else self.choice.kind
        top = max(self.cache.cells.top, int(batch.cells.max()) + 1)
        return PassKey(len(batch), self.cache.padded(top), max(len(batch.out_rows), 1), kind)

    def _leave(self, entered: list[Batch]) -> None:
        for part in reversed(entered):
            self.cache.cells.leave(part)


def _joined(name: str, parts: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return the pieces of a stage as one; scores (heads, tokens, cells) of earlier pieces reach less far."""
    if len(parts) == 1:
        return parts[0]
    if not name.endswith(".scores"):
        return np.concatenate(parts)
    reach = parts[-1].shape[-1]
    return np.concatenate([np.pad(part, ((0, 0), (0, 0), (0, reach - part.shape[-1]))) for part in parts], axis=1)
