"""What the handlers of group APIs share: a command goes to the coordinator, its answer comes back.

The answer may be there at once, or later (the request is parked, or its records have to reach the
disk first), or never: then a KafkaError stands for it. `convert` turns whichever it is into the
response.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.coordinator.group.commands import Command
from anabranch.coordinator.runtime.result import WaiterId
from anabranch.model.errors import KafkaError

T = TypeVar("T")

PROTOCOL_IS_OFF = (
    "The consumer protocol is turned off on this broker. Use group.protocol=classic, or have "
    "consumer added to group.coordinator.rebalance.protocols."
)


def answer(
    broker: Broker,
    group_id: str,
    command: Command,
    convert: Callable[[Any], T],
    waiter: WaiterId | None = None,
) -> T | Deferred[T]:
    """Submit a command and turn its answer, or the KafkaError in its place, into a response."""
    try:
        outcome = broker.groups.submit(group_id, command, waiter)
    except KafkaError as error:
        return convert(error)
    return outcome.then(convert) if isinstance(outcome, Deferred) else convert(outcome)


def gather(outcomes: Sequence[T | Deferred[T]], convert: Callable[[list[T]], Any]) -> Any:
    """One response out of several outcomes, as soon as the last of them is there."""
    values: list[Any] = list(outcomes)
    waiting = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Deferred)]
    if not waiting:
        return convert(values)
    response: Deferred[Any] = Deferred()
    left = len(waiting)

    def take(number: int, value: T) -> None:
        nonlocal left
        values[number] = value
        left -= 1
        if not left:
            response.complete(convert(values))

    for number in waiting:
        outcome: Any = outcomes[number]
        outcome.deliver_to(lambda value, number=number: take(number, value), response.fail)
    return response
