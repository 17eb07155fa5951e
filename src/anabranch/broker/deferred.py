"""An answer that comes later.

A parked request returns a `Deferred`; whoever can answer completes it. It is not an asyncio
Future: completing one runs its callback at once instead of scheduling it, which spares a turn of
the event loop on every long-polled fetch.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Deferred(Generic[T]):
    """A value that is completed once and delivered to one callback."""

    __slots__ = ("_callback", "_done", "_error", "_on_failure", "_value", "on_cancel")

    def __init__(self) -> None:
        self._callback: Callable[[T], None] | None = None
        self._on_failure: Callable[[Exception], None] | None = None
        self._done = False
        self._value: T | None = None
        self._error: Exception | None = None
        # Called when nobody waits any more (the connection closed), to free what was parked.
        self.on_cancel: Callable[[], None] | None = None

    @property
    def is_done(self) -> bool:
        return self._done

    def complete(self, value: T) -> None:
        """Deliver the value; a second completion is ignored, for timers that lost a race."""
        if self._done:
            return
        self._done = True
        self._value = value
        if self._callback is not None:
            self._callback(value)

    def fail(self, error: Exception) -> None:
        """There will be no value: what should have made it raised."""
        if self._done:
            return
        self._done = True
        self._error = error
        if self._on_failure is not None:
            self._on_failure(error)

    def deliver_to(
        self,
        callback: Callable[[T], None],
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        """Name the receivers; they are called at once when the outcome is already there."""
        self._callback = callback
        self._on_failure = on_failure
        if self._error is not None:
            if on_failure is not None:
                on_failure(self._error)
        elif self._done:
            value: Any = self._value
            callback(value)

    def then(self, convert: Callable[[T], U]) -> "Deferred[U]":
        """The same outcome in another form; a failure when it cannot be converted."""
        converted: Deferred[U] = Deferred()
        converted.on_cancel = self.cancel

        def deliver(value: T) -> None:
            try:
                outcome = convert(value)
            except Exception as error:
                converted.fail(error)
            else:
                converted.complete(outcome)

        self.deliver_to(deliver, converted.fail)
        return converted

    def cancel(self) -> None:
        """Nobody waits any more."""
        if not self._done:
            self._done = True
            if self.on_cancel is not None:
                self.on_cancel()


async def awaited(deferred: Deferred[T]) -> T:
    """The value of a Deferred, for coroutines."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def deliver(value: T) -> None:
        if not future.done():
            future.set_result(value)

    def fail(error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    deferred.deliver_to(deliver, fail)
    return await future
