"""A property worked out when it is first asked for, without a lock.

functools.cached_property holds one lock for all objects of a class while it works (before Python 3.12): a child forked
meanwhile would wait for it for ever. Here two threads may both work it out, and one of the results stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801 - it reads as the decorator it is
    """Decorator of a method without arguments; its result takes its place in the object's ``__dict__``."""

    def __init__(self, work: Callable[[Any], T]) -> None:
        self._work = work
        self.__doc__ = work.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> once[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> T | once[T]:
        if instance is None:
            return self
        result: T = instance.__dict__.setdefault(self._name, self._work(instance))
        return result
