"""Counting connections and the bytes of unfinished requests."""

from dataclasses import replace

from fake_wire import LIMITS

from anabranch.server.admission import Admission

LIMIT_BYTES = 1000


class Guest:
    """A connection as far as admission sees it."""

    def __init__(self, host: str = "10.0.0.1") -> None:
        self.client_host = host
        self.is_held = False

    def hold_reading(self, hold: bool) -> None:
        assert hold != self.is_held
        self.is_held = hold


def _admission(**limits: int) -> Admission:
    return Admission(replace(LIMITS, **limits))


def _guests(count: int) -> list[Guest]:
    return [Guest() for _ in range(count)]


def test_connections_per_broker() -> None:
    """The limit is the broker's, whatever address clients come from; leaving makes room."""
    admission = _admission(connections_max=2)
    first, second, third = Guest("a"), Guest("b"), Guest("c")
    assert admission.admit(first) is None
    assert admission.admit(second) is None
    assert admission.admit(third) == "there are 2 connections (max.connections)"
    admission.forget(third)  # it was never in
    assert admission.admit(third) is not None
    admission.forget(first)
    assert admission.admit(third) is None


def test_connections_per_address() -> None:
    """One address cannot take the places of the others."""
    admission = _admission(connections_per_ip_max=1)
    first = Guest("a")
    assert admission.admit(first) is None
    assert admission.admit(Guest("a")) == "a has 1 connections (max.connections.per.ip)"
    assert admission.admit(Guest("b")) is None
    admission.forget(first)
    assert admission.admit(Guest("a")) is None


def test_no_limit() -> None:
    """Without queued.max.request.bytes nobody is ever held."""
    admission = _admission(queued_request_max_bytes=-1)
    for guest in _guests(10):
        admission.reserve(guest, 10**9)
        assert not guest.is_held


def test_one_is_never_held() -> None:
    """A single request may be larger than the limit; a second one waits for it."""
    admission = _admission(queued_request_max_bytes=LIMIT_BYTES)
    first, second = _guests(2)
    admission.reserve(first, 5 * LIMIT_BYTES)
    assert not first.is_held
    admission.reserve(second, 10)
    assert second.is_held
    admission.release(first, 5 * LIMIT_BYTES)
    assert not second.is_held


def test_held_in_order() -> None:
    """Those who wait go on in the order in which they came."""
    admission = _admission(queued_request_max_bytes=LIMIT_BYTES)
    first, *others = _guests(4)
    admission.reserve(first, LIMIT_BYTES + 1)
    for guest in others:
        admission.reserve(guest, LIMIT_BYTES)
    assert [guest.is_held for guest in others] == [True, True, True]
    admission.release(first, LIMIT_BYTES + 1)
    assert [guest.is_held for guest in others] == [False, True, True]
    admission.release(others[0], LIMIT_BYTES)
    assert [guest.is_held for guest in others] == [False, False, True]


def test_held_that_leaves() -> None:
    """A connection that is lost while it is held is not waited for."""
    admission = _admission(queued_request_max_bytes=LIMIT_BYTES)
    first, second, third = _guests(3)
    for guest in (first, second, third):
        admission.reserve(guest, LIMIT_BYTES)
    admission.release(second, LIMIT_BYTES)
    admission.release(first, LIMIT_BYTES)
    assert not third.is_held
    admission.release(third, LIMIT_BYTES)
    admission.reserve(first, LIMIT_BYTES)
    assert not first.is_held


def test_stuck_sender() -> None:
    """When nothing moved between two looks, who waits longest goes on to the end."""
    admission = _admission(queued_request_max_bytes=LIMIT_BYTES)
    stuck, second, third = _guests(3)
    for guest in (stuck, second, third):
        admission.reserve(guest, LIMIT_BYTES)
    admission.free_one_if_stuck()  # the first look only notes that nothing was finished
    assert second.is_held
    admission.free_one_if_stuck()
    assert not second.is_held and third.is_held
    admission.reserve(second, LIMIT_BYTES)  # its buffer grows, and it is not held again
    assert not second.is_held
    admission.release(second, 2 * LIMIT_BYTES)
    admission.free_one_if_stuck()
    assert third.is_held  # something moved
    admission.free_one_if_stuck()
    assert not third.is_held
