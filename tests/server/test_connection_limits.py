"""Limits on connections: how many, how idle, how many bytes of unfinished requests."""

import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from victim import Attacker, Victim, api_versions, fetch_request, request

from anabranch.wire.messages.produce import PRODUCE
from support.raw_client import batch_of, produce_request

MakeVictim = Callable[..., Victim]
LITTLE_ROOM = {"queued.max.request.bytes": "600000", "socket.request.max.bytes": "600000"}


def test_max_connections(make_victim: MakeVictim) -> None:
    """Connections above max.connections are closed at once with a line; the others live on."""
    victim = make_victim(**{"max.connections": "5"})
    inside = [victim.connect() for _ in range(5)]
    for attacker in inside:
        attacker.send(api_versions())
        assert attacker.receive_id() == 1
    for _ in range(10):
        assert victim.connect().is_closed_by_broker()
    victim.expect_closed(r"there are 5 connections \(max\.connections\)", times=10)
    inside[0].send(api_versions(2))
    assert inside[0].receive_id() == 2
    _leave(inside[1])


def test_max_connections_per_ip(make_victim: MakeVictim) -> None:
    """The same for connections of one address; a place is free again when one leaves."""
    victim = make_victim(**{"max.connections.per.ip": "2"})
    first, second = victim.connect(), victim.connect()
    for attacker in (first, second):
        attacker.send(api_versions())
        assert attacker.receive_id() == 1
    assert victim.connect().is_closed_by_broker()
    victim.expect_closed(r"127\.0\.0\.1 has 2 connections \(max\.connections\.per\.ip\)")
    for _ in range(20):
        _leave(first)
        first = victim.connect()
        first.send(api_versions())
        assert first.receive_id() == 1
    _leave(first)


def _leave(attacker: Attacker) -> None:
    """Close and wait until the broker noticed: it answers the end of the stream with its own."""
    attacker.shut_writing()
    assert attacker.is_closed_by_broker()
    attacker.close()


def test_connection_flood(make_victim: MakeVictim) -> None:
    """Hundreds of connections that send nothing are accepted up to the limit and no further."""
    victim = make_victim(**{"max.connections": "50", "socket.listen.backlog.size": "1000"})
    flood = [victim.connect() for _ in range(300)]
    victim.expect_closed(r"there are 50 connections \(max\.connections\)", times=250)
    for attacker in flood:
        attacker.close()


def test_idle_connections(make_victim: MakeVictim) -> None:
    """Silence ends a connection after connections.max.idle.ms; a parked fetch is not silence."""
    # Long enough for a busy machine to go on within it.
    victim = make_victim(**{"connections.max.idle.ms": "2000"})
    with victim.client() as client:
        client.metadata("idle", auto_create=True)
    began_s = time.monotonic()
    silent, half, parked = victim.connect(), victim.connect(), victim.connect()
    parked.send(fetch_request("idle", max_wait_ms=5_000))
    half.send(api_versions()[:9])
    assert silent.is_closed_by_broker()
    assert time.monotonic() - began_s > 1.9
    assert half.is_closed_by_broker()
    victim.expect_closed(r"it was silent for .* \(connections\.max\.idle\.ms\)", times=2)
    assert parked.receive_id() == 1
    assert time.monotonic() - began_s >= 4.9
    parked.send(api_versions(2))
    assert parked.receive_id() == 2
    parked.close()


def test_idle_with_unread_answers(make_victim: MakeVictim) -> None:
    """A client that stopped reading counts as idle, and is dropped with what it did not read."""
    victim = make_victim(**{"connections.max.idle.ms": "300"})
    batch = batch_of([bytes(64 * 1024)] * 8)
    with victim.client() as client:
        client.metadata("unread", auto_create=True)
        for _ in range(16):
            assert client.produce("unread", 0, batch).error_code == 0
    deaf = victim.connect(receive_buffer_bytes=4096)
    deaf.send(b"".join(fetch_request("unread", correlation_id=i) for i in range(50)))
    victim.expect_closed(r"it was silent for .* \(connections\.max\.idle\.ms\)")


@pytest.mark.parametrize("senders", [2, 8])
def test_queued_request_bytes(make_victim: MakeVictim, senders: int) -> None:
    """Many large requests at once, in turns, are all served though only one of them has room."""
    victim = make_victim(**LITTLE_ROOM)
    with victim.client() as client:
        client.metadata("queued", auto_create=True)
    whole = request(PRODUCE, 9, produce_request("queued", 0, batch_of([bytes(500_000)])))
    attackers = [victim.connect() for _ in range(senders)]
    step = 50_000
    for start in range(0, len(whole), step):
        for attacker in attackers:
            attacker.send(whole[start : start + step])
    for attacker in attackers:
        assert attacker.receive_id() == 1
        attacker.close()


def test_queued_request_bytes_with_stuck_senders(make_victim: MakeVictim) -> None:
    """Senders that stop in the middle, and hold all the room, do not stop the others."""
    victim = make_victim(**LITTLE_ROOM)
    with victim.client() as client:
        client.metadata("queued", auto_create=True)
    whole = request(PRODUCE, 9, produce_request("queued", 0, batch_of([bytes(500_000)])))
    stuck = [victim.connect() for _ in range(3)]
    for attacker in stuck:
        attacker.send(whole[:400_000])
    victim.check_serves()  # a request that arrives whole needs no room
    honest = victim.connect()
    honest.send(whole)
    assert honest.receive_id() == 1
    for attacker in stuck:
        attacker.close()
    victim.expect_closed("the client left in the middle of a request", times=3)


def test_growing_buffers(victim: Victim) -> None:
    """A large request that comes in small pieces is put together whole."""
    with victim.client() as client:
        client.metadata("pieces", auto_create=True)
    value = struct.pack(">200000I", *range(200_000))
    whole = request(PRODUCE, 9, produce_request("pieces", 0, batch_of([value])))
    attacker = victim.connect()
    for start in range(0, len(whole), 7919):
        attacker.send(whole[start : start + 7919])
    assert attacker.receive_id() == 1
    attacker.send(fetch_request("pieces"))
    assert value in bytes(attacker.receive())


def test_limits_can_be_altered_while_the_broker_runs(make_broker: Callable[..., Any]) -> None:
    """max.connections.per.ip set by a client counts for the next connection."""
    broker = make_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    entry = ConfigEntry("max.connections.per.ip", "1", incremental_operation=AlterConfigOpType.SET)
    (future,) = admin.incremental_alter_configs(
        [ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])]
    ).values()
    future.result(60)
    with socket.create_connection(("127.0.0.1", broker.port)) as late:
        late.settimeout(60)
        assert late.recv(1) == b""
    assert "max.connections.per.ip" in broker.log_text
