"""Members for pages about groups: stock consumers in threads, and one that can be killed."""

import asyncio
import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from confluent_kafka import Consumer, TopicPartition
from page_kit import LIMIT_S, Answer, PageSite

# Sessions that outlast a busy machine; only who is killed is to be missed.
SESSION_MS = 30_000
# Short enough to wait for.
KILLED_SESSION_MS = 8_000
# What `commit` stores beside an offset.
METADATA = "by hand"
OVERRIDES = (
    "group.min.session.timeout.ms=1000",
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    "group.consumer.min.session.timeout.ms=1000",
    "group.consumer.heartbeat.interval.ms=500",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.assignment.interval.ms=0",
    "group.consumer.min.assignment.interval.ms=0",
    "console.read.only=false",
)


def member_config(
    site: PageSite, group: str, name: str, protocol: str, session_ms: int = SESSION_MS
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": site.bootstrap,
        "group.id": group,
        "client.id": name,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if protocol == "classic":
        config |= {"session.timeout.ms": session_ms, "heartbeat.interval.ms": 500}
    return config


@dataclass
class StockMember:
    """A stock consumer that polls in a thread and knows what it has."""

    thread: threading.Thread
    stopping: threading.Event
    # What it said last that it has; the client must not be asked in the broker's own thread.
    known: list[set[tuple[str, int]]]

    def owned(self) -> set[tuple[str, int]]:
        return self.known[0]

    async def close(self) -> None:
        self.stopping.set()
        await asyncio.to_thread(self.thread.join, LIMIT_S)
        assert not self.thread.is_alive()


@contextlib.asynccontextmanager
async def stock_member(
    site: PageSite, group: str, name: str, protocol: str, *topics: str
) -> AsyncIterator[StockMember]:
    """A member of a group until it is left, or closed before."""
    consumer = Consumer(member_config(site, group, name, protocol))
    consumer.subscribe(list(topics))
    stopping, known = threading.Event(), [set[tuple[str, int]]()]

    def work() -> None:
        while not stopping.is_set():
            consumer.poll(0.05)
            known[0] = {(one.topic, one.partition) for one in consumer.assignment()}
        consumer.close()

    thread = threading.Thread(target=work)
    thread.start()
    member = StockMember(thread, stopping, known)
    try:
        yield member
    finally:
        await member.close()


_KILLED = """
import json, sys
from confluent_kafka import Consumer, TopicPartition
consumer = Consumer(json.loads(sys.argv[1]))
consumer.subscribe(sys.argv[2:])
while True:
    consumer.poll(0.1)
"""


@contextlib.contextmanager
def member_process(site: PageSite, group: str, name: str, protocol: str, topic: str) -> Any:
    """A member in a process of its own, to be killed."""
    config = json.dumps(member_config(site, group, name, protocol, KILLED_SESSION_MS))
    process = subprocess.Popen([sys.executable, "-c", _KILLED, config, topic])
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)


async def commit(site: PageSite, group: str, **offsets: int) -> None:
    """Commit as a reader that is no member; `orders_0=5` is an offset of orders-0."""
    consumer = Consumer(member_config(site, group, "by hand", "classic"))
    places = []
    for name, offset in offsets.items():
        topic, _, partition = name.rpartition("_")
        places.append(TopicPartition(topic, int(partition), offset, METADATA))
    try:
        await asyncio.to_thread(consumer.commit, offsets=places, asynchronous=False)
    finally:
        await asyncio.to_thread(consumer.close)


async def post(site: PageSite, path: str, **fields: str) -> Answer:
    """A form as a browser sends it."""

    def talk() -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=LIMIT_S)
        try:
            headers = {"content-type": "application/x-www-form-urlencoded"}
            connection.request("POST", path, urlencode(fields), headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read().decode())
        finally:
            connection.close()

    return await asyncio.to_thread(talk)
