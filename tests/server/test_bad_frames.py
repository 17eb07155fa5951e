"""Bytes that are no requests: the connection ends with one line that says why."""

import random
import struct

import pytest
from victim import REQUEST_MAX_BYTES, Victim, api_versions, frame, header, request

from anabranch.wire.messages.metadata import METADATA, MetadataRequest


@pytest.mark.parametrize("size", [0, -1, -(2**31), 7, 2**31 - 1, REQUEST_MAX_BYTES + 1])
def test_impossible_size(victim: Victim, size: int) -> None:
    """A size that no request can have ends the connection before anything else is read."""
    attacker = victim.connect()
    attacker.try_send(struct.pack(">i", size) + bytes(1000))
    assert attacker.is_closed_by_broker()
    victim.expect_closed(f"a request of {size} bytes was announced; between 8 and")


def test_size_byte_by_byte(victim: Victim) -> None:
    """A size prefix that arrives in four pieces is one, whether it is good or bad."""
    attacker = victim.connect()
    for byte in api_versions(77):
        attacker.send(bytes([byte]))
    assert attacker.receive_id() == 77
    for byte in struct.pack(">i", 3):
        attacker.send(bytes([byte]))
    assert attacker.is_closed_by_broker()
    victim.expect_closed("a request of 3 bytes was announced")


def test_largest_request(victim: Victim) -> None:
    """A request of exactly socket.request.max.bytes is served."""
    attacker = victim.connect()
    body = header(18, 0)
    attacker.send(frame(body + bytes(REQUEST_MAX_BYTES - len(body))))
    assert attacker.receive_id() == 1


def test_request_split_anywhere(victim: Victim) -> None:
    """Two requests, cut in two at every byte, are two requests."""
    both = api_versions(1) + request(METADATA, 12, MetadataRequest(topics=[]), 2)
    for cut in range(len(both) + 1):
        attacker = victim.connect()
        attacker.send(both[:cut])
        if cut >= len(api_versions(1)):
            # The answer shows that the first piece was read before the second is sent.
            assert attacker.receive_id() == 1
            attacker.send(both[cut:])
        else:
            attacker.send(both[cut:])
            assert attacker.receive_id() == 1
        assert attacker.receive_id() == 2
        attacker.close()


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes(victim: Victim, seed: int) -> None:
    """Noise ends the connection with a reason, or waits for the rest of what it announced."""
    chance = random.Random(seed)
    attacker = victim.connect()
    attacker.try_send(chance.randbytes(chance.randrange(1, 4000)))
    attacker.shut_writing()
    assert attacker.is_closed_by_broker()
    victim.expect_closed("was announced|left in the middle|is not served|cannot be read")


@pytest.mark.parametrize("seed", range(20))
def test_random_body(victim: Victim, seed: int) -> None:
    """A frame of the right size with noise in it ends the connection with a reason."""
    chance = random.Random(seed)
    attacker = victim.connect()
    attacker.try_send(frame(chance.randbytes(chance.randrange(8, 4000))))
    assert attacker.is_closed_by_broker()
    victim.expect_closed("is not served|cannot be read")


@pytest.mark.parametrize("kept", [1, 3, 4, 5, 11, 15])
def test_truncated_request(victim: Victim, kept: int) -> None:
    """A client that leaves in the middle of a request is noted, and its bytes are forgotten."""
    attacker = victim.connect()
    attacker.send(api_versions()[:kept])
    attacker.close()
    victim.expect_closed("the client left in the middle of a request")


def test_reset_in_a_request(victim: Victim) -> None:
    """A connection reset in the middle of a request ends in the same line."""
    attacker = victim.connect()
    attacker.send(struct.pack(">i", 100_000) + bytes(50_000))
    attacker.reset()
    victim.expect_closed("the client left in the middle of a request: .* of 100004 bytes missing")


def test_nothing_sent(victim: Victim) -> None:
    """A client that connects and leaves is worth no line."""
    victim.connect().close()
    victim.connect().reset()


@pytest.mark.parametrize("size", range(8, 10))
def test_shorter_than_a_header(victim: Victim, size: int) -> None:
    """A frame too short for a request header is refused."""
    attacker = victim.connect()
    attacker.send(frame(bytes(size)))
    assert attacker.is_closed_by_broker()
    victim.expect_closed("the request is shorter than a request header")


def test_answers_before_the_end(victim: Victim) -> None:
    """What was asked before the nonsense is answered before the connection closes."""
    attacker = victim.connect()
    attacker.send(api_versions(1) + api_versions(2) + struct.pack(">i", -5))
    assert attacker.receive_id() == 1
    assert attacker.receive_id() == 2
    assert attacker.is_closed_by_broker()
    victim.expect_closed("a request of -5 bytes was announced")


def test_announced_size_is_not_allocated(victim: Victim) -> None:
    """A size prefix alone costs the broker no memory, however many clients send one."""
    victim.check_serves()
    before = victim.rss_bytes()
    attackers = [victim.connect() for _ in range(40)]
    for attacker in attackers:
        attacker.send(struct.pack(">i", REQUEST_MAX_BYTES) + header(0, 9))
    victim.check_serves()
    assert victim.rss_bytes() - before < 40 * 100_000
    for attacker in attackers:
        attacker.close()
    victim.expect_closed("the client left in the middle of a request", times=40)
