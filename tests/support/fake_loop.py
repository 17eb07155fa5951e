"""An event loop in which nothing happens by itself: tests let time pass and threads finish.

Code under test finds it with `asyncio.get_running_loop()`; it knows only what that code calls.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any


class Alarm:
    """What `call_later` returned."""

    def __init__(self, due_ms: float, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.due_ms = due_ms
        self.is_cancelled = False
        self.has_rung = False
        self._callback = callback
        self._args = args

    @property
    def is_armed(self) -> bool:
        return not self.is_cancelled and not self.has_rung

    def cancel(self) -> None:
        self.is_cancelled = True

    def ring(self) -> None:
        assert self.is_armed
        self.has_rung = True
        self._callback(*self._args)


class Job:
    """What `run_in_executor` returned: work for a thread, done when the test says so."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def exception(self) -> BaseException | None:
        return self._error

    def cancelled(self) -> bool:
        return False

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def finish(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        for callback in self._callbacks:
            callback(self)


class FakeLoop:
    """Alarms go off when `pass_ms` reaches them, jobs when `finish_jobs` is called."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.alarms: list[Alarm] = []
        self.jobs: list[Job] = []
        # Told of every step of the time, for clocks that go with it.
        self.on_time: Callable[[float], None] = lambda step_ms: None

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> Alarm:
        self.alarms.append(Alarm(self.now_ms + delay_s * 1000, callback, args))
        return self.alarms[-1]

    def time(self) -> float:
        return self.now_ms / 1000

    def call_soon(self, callback: Callable[..., None], *args: Any) -> Alarm:
        return self.call_later(0, callback, *args)

    def run_in_executor(self, executor: object, work: Callable[..., Any], *args: Any) -> Job:
        self.jobs.append(Job(functools.partial(work, *args)))
        return self.jobs[-1]

    @property
    def armed(self) -> list[Alarm]:
        """The alarms that are still to come, the nearest first."""
        return sorted((a for a in self.alarms if a.is_armed), key=lambda alarm: alarm.due_ms)

    def pass_ms(self, delay_ms: float) -> None:
        """Let time pass; what is due on the way goes off at its time."""
        end_ms = self.now_ms + delay_ms
        rung = 0
        while (armed := self.armed) and armed[0].due_ms <= end_ms:
            self._step_to(max(armed[0].due_ms, self.now_ms))
            armed[0].ring()
            rung += 1
            assert rung < 10_000, "an alarm goes off without end"
        self._step_to(end_ms)

    def _step_to(self, now_ms: float) -> None:
        step_ms, self.now_ms = now_ms - self.now_ms, now_ms
        self.on_time(step_ms)

    def finish_jobs(self) -> int:
        """Let the threads finish what they were given so far; returns how much that was."""
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job.finish()
        return len(jobs)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run what has to be awaited in a loop of its own."""
        itself: Any = self
        asyncio._set_running_loop(None)
        try:
            return asyncio.run(work)
        finally:
            asyncio._set_running_loop(itself)


@contextlib.contextmanager
def fake_loop() -> Iterator[FakeLoop]:
    """A fake loop that the code under test takes for the running one."""
    loop: Any = FakeLoop()
    asyncio._set_running_loop(loop)
    try:
        yield loop
    finally:
        asyncio._set_running_loop(None)
