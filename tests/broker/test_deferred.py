"""An answer that comes later: once, at once, or never."""

from anabranch.broker.deferred import Deferred


class Receiver:
    """Notes what is delivered."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.errors: list[Exception] = []

    def take(self, deferred: Deferred[str]) -> None:
        deferred.deliver_to(self.values.append, self.errors.append)


def test_completed_later() -> None:
    """The receiver is called within `complete`, not a turn of the loop later."""
    deferred: Deferred[str] = Deferred()
    receiver = Receiver()
    receiver.take(deferred)
    assert not deferred.is_done
    deferred.complete("value")
    assert deferred.is_done
    assert receiver.values == ["value"]


def test_completed_before() -> None:
    """A value that is already there is delivered when the receiver is named."""
    deferred: Deferred[str] = Deferred()
    deferred.complete("value")
    receiver = Receiver()
    receiver.take(deferred)
    assert receiver.values == ["value"]


def test_failed_later_and_before() -> None:
    """A failure goes to the other receiver, whichever comes first."""
    error = ValueError("no")
    for is_before in (True, False):
        deferred: Deferred[str] = Deferred()
        receiver = Receiver()
        if is_before:
            deferred.fail(error)
            receiver.take(deferred)
        else:
            receiver.take(deferred)
            deferred.fail(error)
        assert receiver.values == []
        assert receiver.errors == [error]


def test_only_the_first_counts() -> None:
    """Whoever loses the race, a timer for example, changes nothing."""
    deferred: Deferred[str] = Deferred()
    receiver = Receiver()
    receiver.take(deferred)
    deferred.complete("first")
    deferred.complete("second")
    deferred.fail(ValueError())
    deferred.cancel()
    assert receiver.values == ["first"]
    assert receiver.errors == []


def test_cancelled() -> None:
    """Nobody is told of a value that nobody waits for, but what was parked is freed, once."""
    freed: list[bool] = []
    deferred: Deferred[str] = Deferred()
    deferred.on_cancel = lambda: freed.append(True)
    receiver = Receiver()
    receiver.take(deferred)
    deferred.cancel()
    deferred.cancel()
    deferred.complete("late")
    assert freed == [True]
    assert receiver.values == []


def test_completed_is_not_cancelled() -> None:
    """What was answered has nothing left to free."""
    freed: list[bool] = []
    deferred: Deferred[str] = Deferred()
    deferred.on_cancel = lambda: freed.append(True)
    deferred.complete("value")
    deferred.cancel()
    assert freed == []


def test_a_conversion_that_breaks_is_a_failure() -> None:
    """Whoever waits for the converted value hears of it; whoever completed the first does not."""
    first: Deferred[int] = Deferred()
    values: list[int] = []
    errors: list[Exception] = []
    first.then(lambda value: 1 // value).deliver_to(values.append, errors.append)
    first.complete(0)
    assert values == []
    assert [type(error) for error in errors] == [ZeroDivisionError]
