"""Progress bars: their library is loaded when the first one is shown, which saves a tenth of a second elsewhere."""

from __future__ import annotations

from typing import Any, Protocol, Self


class Bar(Protocol):
    """What a bar does; a context manager that closes it."""

    n: Any
    total: Any

    def update(self, n: float = 1) -> Any:
        """Go on by ``n``."""

    def close(self) -> None:
        """End it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class _Unseen:
    """A bar nobody asked for."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.n: float = 0

    def update(self, n: float = 1) -> None:
        self.n += n

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def byte_bar(title: str, nbytes: int, *, shown: bool, leave: bool = True) -> Bar:
    """Return a bar over ``nbytes`` bytes; one that shows nothing unless ``shown``."""
    if not shown:
        return _Unseen(nbytes)
    from tqdm.auto import tqdm

    bar: Any = tqdm(total=nbytes, unit="B", unit_scale=True, desc=title, leave=leave)
    return bar  # type: ignore[no-any-return]
