"""How kit is set up where it is measured: one line for each way to load and open a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from kit.core.libraries import backends_folder


@dataclasses.dataclass(frozen=True)
class Setting:
    """A name for a way to run kit.

    load and session are keyword arguments of ``kit.load`` and ``Model.session``, env is added to the environment of
    the process. ``plain`` says that nothing was built and no second copy of the weights is kept: what is promised of
    prefill is less there.
    """

    name: str
    load: dict[str, Any] = dataclasses.field(default_factory=dict)
    session: dict[str, Any] = dataclasses.field(default_factory=dict)
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    plain: bool = True


def _built() -> Iterator[Setting]:
    """Yield the setting with a ggml made for this machine, where `kit backend build cpu` has made one."""
    if (backends_folder() / "cpu").is_dir():
        yield Setting("native build", env={"KIT_BACKEND": "cpu"}, plain=False)


OURS: tuple[Setting, ...] = (
    Setting("as in the file", load={"prepare": "none"}, env={"KIT_BACKEND": "wheel"}),
    Setting("default", env={"KIT_BACKEND": "wheel"}, plain=False),
    *_built(),
)
"""Each takes part in every comparison."""
