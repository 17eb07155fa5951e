"""What a decision is: records to write, an answer to give, timers to set, waiters to wake.

A coordinator looks at its state, a command and the time, and returns a `Result`; it changes
nothing. The broker appends the durable records to the journal, replays all records into the state
(the only way state changes), sets the timers, and lets the answers go. If the append fails, the
state is dropped and loaded again from the journal, so there is nothing to roll back.

Records come in two kinds. Durable ones are in the journal and rebuild the state after a restart.
The others carry what only the living process knows (who waits for an answer, who has rejoined so
far); they pass through `replay` too, so that there is one mutator, but are not written.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

# A parked request, numbered by the broker when it came in.
WaiterId = int

TimerKey = Hashable


@dataclass(frozen=True, slots=True)
class TimerChange:
    """Set the timer `key` to `deadline_ms`, replacing what it was, or cancel it with None.

    With `only_if_absent` a timer that runs already is left alone.
    """

    key: TimerKey
    deadline_ms: int | None
    only_if_absent: bool = False


@dataclass(frozen=True, slots=True)
class Wake:
    """The answer to a request that was parked earlier."""

    waiter: WaiterId
    response: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One decision. `response` None means that the request is parked and will be woken.

    `tasks` are pieces of work that take too long for a decision; what comes out of each returns as
    a command of its own.
    """

    records: tuple[Any, ...] = ()
    response: Any = None
    timers: tuple[TimerChange, ...] = ()
    wakes: tuple[Wake, ...] = ()
    tasks: tuple[Any, ...] = ()
