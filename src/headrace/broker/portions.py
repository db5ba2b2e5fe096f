"""Long administrative work in portions, so that nobody else waits for it.

A call that may look at millions of messages is written as a generator. Between portions it yields one of

    nanoseconds     how long to wait before the next portion (0: only let the others have their turn)
    a function      something that may block (reading sealed files): it is run where it holds nobody up, and its
                    result is what the yield gives back

and in the end it returns the result. What is small is over within its first portion, and its caller notices nothing.
Otherwise the reply of the call is a ``Portions``, and the host that made the call goes on with it: whatever ``aside``
asks for, a wait, the next ``step``, until the reply is something else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from headrace.errors import HeadraceError
from headrace.shard.core import Core, Done

__all__ = ["Portions", "Work", "portioned"]

Aside = Callable[[], Any]
Work = Generator[int | Aside, Any, Any]
_P = ParamSpec("_P")


class _WithCore(Protocol):
    core: Core


_S = TypeVar("_S", bound=_WithCore)


class Portions:
    """Work that is not over yet."""

    __slots__ = ("_answer", "_core", "_refusal", "_work", "aside", "wait_ns")

    def __init__(self, core: Core, work: Work) -> None:
        self._core = core
        self._work = work
        self._answer: Any = None
        self._refusal: HeadraceError | None = None
        self.wait_ns = 0
        self.aside: Aside | None = None

    def step(self) -> Done:
        """Do the next portion. The reply is the result, or again the work where that is not over."""
        journal = self._core.journal
        before = journal.end_position
        answer, self._answer = self._answer, None
        refusal, self._refusal = self._refusal, None
        try:
            wanted = self._work.send(answer) if refusal is None else self._work.throw(refusal)
        except StopIteration as over:
            # What the result speaks of may have been appended in an earlier portion, or a moment ago by someone else.
            return Done(over.value, journal.end_position)
        if isinstance(wanted, int):
            self.aside, self.wait_ns = None, max(0, wanted)
        else:
            self.aside, self.wait_ns = wanted, 0
        return Done(self, journal.end_position if journal.end_position != before else 0)

    def run_aside(self) -> None:
        """Do what may block; the next step takes it up. May be called in any thread."""
        if self.aside is not None:
            try:
                self._answer = self.aside()
            except HeadraceError as error:
                self._refusal = error


def portioned(method: Callable[Concatenate[_S, _P], Work]) -> Callable[Concatenate[_S, _P], Done]:
    """A generator method as a call."""

    @wraps(method)
    def call(self: _S, *args: _P.args, **kwargs: _P.kwargs) -> Done:
        return Portions(self.core, method(self, *args, **kwargs)).step()

    return cast("Callable[Concatenate[_S, _P], Done]", call)
