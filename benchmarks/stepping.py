"""What looking costs: stepping through every stage, and keeping every residual, against a run nobody looks into."""

from __future__ import annotations

import kit
from benchmarks.measure import Figure, interleaved

N_TOKENS = 32


def run(rounds: int, scale: float) -> list[Figure]:
    """One pass over ``N_TOKENS`` tokens of the demo model per round."""
    ids = list(range(1000, 1000 + max(2, int(N_TOKENS * scale))))
    with kit.load("smollm2-135m", progress=False) as model, model.session(n_ctx=256, n_batch=64) as session:

        def plain() -> None:
            session.reset()
            session.run(ids)

        def keep(patterns: str) -> None:
            session.reset()
            session.run(ids, keep=patterns)

        def step(level: str, look: bool) -> None:
            session.reset()
            for pause in session.steps(ids, level=level):  # type: ignore[arg-type]
                if look:
                    pause.value  # noqa: B018

        times = interleaved(
            {
                "plain": plain,
                "residuals": lambda: keep("blk.*.resid"),
                "all": lambda: keep("*"),
                "blocks": lambda: step("block", True),
                "stages": lambda: step("stage", False),
                "values": lambda: step("stage", True),
            },
            rounds,
        )
    lines = {
        "residuals": ("keeping all residuals", 1.1),
        "all": ("keeping all stages", None),
        "blocks": ("stepping through blocks, looking at each", None),
        "stages": ("stepping through all stages", None),
        "values": ("stepping through all stages, looking at each", None),
    }
    return [
        Figure(f"{text}, {len(ids)} tokens", times[name], times["plain"], "plain run", bound, rounds)
        for name, (text, bound) in lines.items()
    ]
