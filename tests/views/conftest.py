"""Pictures of hand-made data: no ggml, no model. Texts are as hostile as a file may make them."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass

import numpy as np
import pytest

from kit.core.ledger import Resource
from kit.models.session.run import LensEntry, Run
from kit.models.weights.read_trace import Read, ReaderTrace, ReadTrace
from kit.views import AttentionView, GrowthView, LensGrid, PurposeBars, ReadsView, RunView, StageTable, View
from kit.views.stage_table import StageRow

HOSTILE = ("<img src=x onerror=alert(1)>", "\x1b[31mred\n\u202eturned", '"><script>$x_1$</script>', "日本語 🙂 \ud7ff")
N_BLOCKS, N_HEADS = 3, 4


@pytest.fixture(scope="session")
def run() -> Run:
    """Four hostile tokens through three blocks of four heads; row sums of the scores are one."""
    n = len(HOSTILE)
    rng = np.random.default_rng(7)
    stages = {}
    for block in range(N_BLOCKS):
        scores = np.tril(rng.random((N_HEADS, n, n), dtype=np.float32) + 0.1)
        stages[f"blk.{block}.attn.scores"] = scores / scores.sum(-1, keepdims=True)
        stages[f"blk.{block}.resid"] = rng.standard_normal((n, 8), dtype=np.float32)

    def lens(residual: np.ndarray, k: int) -> list[list[LensEntry]]:
        return [[LensEntry(i, HOSTILE[i % n], 1.0, (i + 1) / 10)] * k for i in range(len(residual))]

    return Run(tuple(range(n)), rng.standard_normal((n, 50), dtype=np.float32), stages, 1, HOSTILE, lens)


@pytest.fixture(scope="session")
def stage_table() -> StageTable:
    rows = [StageRow("embed", (4, 8), 1_000, 1.0, HOSTILE[0], 0.5)]
    for block in range(N_BLOCKS):
        rows.append(StageRow(f"blk.{block}.attn.q", (4, 2, 4), 20_000 + block, 2.0))
        rows.append(StageRow(f"blk.{block}.resid", (4, 8), 3_000_000, 3.0 + block, HOSTILE[2], 0.25))
    rows.append(StageRow("logits", (4, 50), 4_000, 5.0, HOSTILE[3], 0.9))
    return StageTable(HOSTILE, tuple(rows))


@pytest.fixture(scope="session")
def bars() -> PurposeBars:
    return PurposeBars.of(
        [
            Resource("mapping", 3 << 20, HOSTILE[0], "weights", "weights", "mapped file"),
            Resource("buffer", 0, "over it", "weights", "weights", "CPU_Mapped"),
            Resource("buffer", 1 << 20, "cache", HOSTILE[1], "kv cache", "CPU"),
            Resource("context", 512, "x", "x", HOSTILE[2]),
        ]
    )


@pytest.fixture(
    scope="session", params=["lens", "attention", "run", "next", "stages", "bars", "nothing", "growth", "reads"]
)
def view(request: pytest.FixtureRequest, run: Run, stage_table: StageTable, bars: PurposeBars) -> View:
    """Every kind of picture in turn."""
    made: dict[str, View] = {
        "lens": LensGrid.of(run),
        "attention": AttentionView.of(run, 1),
        "run": RunView.of(run),
        "next": RunView.of(Run(run.tokens, run.logits, {}, 1, HOSTILE)),
        "stages": stage_table,
        "bars": bars,
        "nothing": PurposeBars(()),
        "growth": GrowthView(HOSTILE[0], (0, 16, 17, 40), (1, 1, 2, 2), (100, 100, 300, 300)),
        "reads": ReadsView.of(
            ReadTrace(
                tuple(
                    ReaderTrace(
                        n, tuple(Read(pathlib.Path(HOSTILE[n % 3]), 100 * i, 100, 9 * i, 9 * i + 8) for i in range(9))
                    )
                    for n in (1, 2, 3)
                )
            )
        ),
    }
    return made[str(request.param)]


@dataclass(frozen=True)
class Forms:
    """A picture and what it was drawn as, once for all tests: drawing takes most of their time."""

    view: View
    png: bytes
    svg: str
    html: str
    bundle: dict[str, str]


@pytest.fixture(scope="session")
def forms(view: View) -> Forms:
    return Forms(view, view.png(), view.svg(), view.html(), view._repr_mimebundle_())
