"""A blocking client: who leads which partition, where logs begin and end, who coordinates a group.

One for each process and purpose, kept between tasks (`link_of`): connections are opened when they
are needed and reused. Nothing here is for several threads.

Whatever may pass by itself (a broker that is restarted, a leader that moved) is tried again by
`retrying`, with everything forgotten that may be out of date, for as long as the option allows that
the error then names.
"""

import os
import random
import select
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from anabranch.model.errors import ErrorCode
from anabranch.spark.errors import (
    BrokerRefusal,
    LinkBrokenError,
    LinkError,
    LinkTimeoutError,
    is_worth_retrying,
)
from anabranch.spark.link_connection import Connection, Ticket
from anabranch.spark.link_settings import LinkSettings
from anabranch.wire.api import Api
from anabranch.wire.messages.cooperation import COOPERATION_FEATURE, COOPERATION_VERSION
from anabranch.wire.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from anabranch.wire.messages.find_coordinator import (
    FIND_COORDINATOR,
    KEY_TYPE_GROUP,
    FindCoordinatorRequest,
)
from anabranch.wire.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from anabranch.wire.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic

T = TypeVar("T")
Place = tuple[str, int]
"""A topic and a partition of it."""

API_TIMEOUT_OPTION = "kafka.default.api.timeout.ms"
_MANY_COORDINATORS_VERSION = 4
_BY_NAME_VERSION = 12  # of Fetch: the last that has names, and the first with tags
_NO_TOPIC = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as a broker described it."""

    name: str
    topic_id: bytes
    leaders: dict[int, int]
    """The node that leads each partition; -1 where none does."""
    is_internal: bool = False


class Link:
    """Connections to the brokers of one cluster, and what is known of it."""

    def __init__(self, settings: LinkSettings) -> None:
        self.settings = settings
        self._nodes: dict[int, tuple[str, int]] = {}
        self._topics: dict[str, TopicView] = {}
        self._coordinators: dict[tuple[int, str], tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], Connection] = {}

    def close(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all connections, and whatever was learned through them."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._topics.clear()
        self._coordinators.clear()

    def retrying(
        self,
        what: str,
        work: Callable[[], T],
        *,
        limit_ms: int | None = None,
        option: str = API_TIMEOUT_OPTION,
    ) -> T:
        """Do some work, again after failures that may pass, until the option's time is over."""
        limit_ms = self.settings.api_timeout_ms if limit_ms is None else limit_ms
        ends_at = time.monotonic() + limit_ms / 1000
        failures = 0
        while True:
            try:
                return work()
            except LinkError as error:
                if not is_worth_retrying(error):
                    raise
                self.forget()
                failures += 1
                delay_s = self.backoff_s(failures)
                if time.monotonic() + delay_s > ends_at:
                    raise LinkTimeoutError(
                        f"{what} was tried for {limit_ms} ms, as long as option '{option}' allows:"
                        f" {error}"
                    ) from error
                time.sleep(delay_s)

    def backoff_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        doubled_ms: float = self.settings.retry_backoff_ms * 2.0 ** min(failures - 1, 32)
        plain_ms = min(doubled_ms, self.settings.retry_backoff_max_ms)
        return plain_ms * random.uniform(0.8, 1.2) / 1000

    # Asking ---------------------------------------------------------------------------------------

    def ask_any(self, api: Api, message: Any, *, least_version: int = 0) -> Any:
        """Ask whichever broker answers; LinkBrokenError when none does."""
        failures: list[str] = []
        for host, port in self._candidates():
            try:
                return self._connected(host, port).ask(api, message, least_version=least_version)
            except LinkBrokenError as error:
                failures.append(str(error))
        raise LinkBrokenError("; ".join(failures) or "there is no broker to ask")

    def _candidates(self) -> list[tuple[str, int]]:
        connected = [place for place, one in self._connections.items() if not one.is_closed]
        known = list(self._nodes.values())
        random.shuffle(known)
        return list(dict.fromkeys([*connected, *known, *self.settings.servers]))

    def address_of(self, node_id: int) -> tuple[str, int]:
        place = self._nodes.get(node_id)
        if place is None:
            raise LinkBrokenError(f"broker {node_id} is not known")
        return place

    def connection_to(self, node_id: int) -> Connection:
        """A connection to a broker on which nothing is waited for."""
        return self._connected(*self.address_of(node_id))

    def ask_node(self, node_id: int, api: Api, message: Any, *, least_version: int = 0) -> Any:
        return self.connection_to(node_id).ask(api, message, least_version=least_version)

    def ask_coordinator(
        self,
        key: str,
        api: Api,
        message: Any,
        *,
        key_type: int = KEY_TYPE_GROUP,
        least_version: int = 0,
        most_version: int = 1 << 15,
    ) -> Any:
        """Ask the coordinator of a group, or of a transactional id."""
        place = self._coordinators.get((key_type, key))
        if place is None:
            place = self._coordinators[key_type, key] = self._find_coordinator(key, key_type)
        try:
            return self._connected(*place).ask(
                api, message, least_version=least_version, most_version=most_version
            )
        except LinkBrokenError:
            self._coordinators.pop((key_type, key), None)
            raise

    def forget_coordinators(self) -> None:
        """Look them up again before the next question."""
        self._coordinators.clear()

    def _find_coordinator(self, key: str, key_type: int) -> tuple[str, int]:
        request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
        answer = self.ask_any(FIND_COORDINATOR, request, least_version=_MANY_COORDINATORS_VERSION)
        (found,) = answer.coordinators
        if found.error_code:
            raise BrokerRefusal(
                found.error_code, f"looking up the coordinator of {key}", found.error_message
            )
        return found.host, found.port

    def _connected(self, host: str, port: int) -> Connection:
        connection = self._connections.get((host, port))
        if connection is None or connection.is_closed or not connection.is_idle:
            # Somebody may have gone away without the answers that he asked for.
            if connection is not None:
                connection.close()
            connection = Connection(host, port, self.settings)
            self._connections[host, port] = connection
        return connection

    def knows_key_ranges(self, node_id: int) -> bool:
        """Whether a broker announces that it can be asked for key ranges."""
        features = self.connection_to(node_id).supported_features
        first, last = features.get(COOPERATION_FEATURE, (0, -1))
        return first <= COOPERATION_VERSION <= last

    # Topics and logs ------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None) -> dict[str, TopicView]:
        """Topics as they are now, all of them for None; those that do not exist are left out."""
        wanted = None
        if names is not None:
            wanted = [MetadataRequestTopic(name=name) for name in sorted(set(names))]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = self.ask_any(METADATA, request, least_version=4)
        if answer.error_code:
            raise BrokerRefusal(answer.error_code, "Metadata")
        self._nodes = {one.node_id: (one.host, one.port) for one in answer.brokers}
        found: dict[str, TopicView] = {}
        for topic in answer.topics:
            if topic.name is None or topic.error_code in _NO_TOPIC:
                continue
            if topic.error_code:
                raise BrokerRefusal(topic.error_code, f"asking for topic {topic.name}")
            leaders = {one.partition_index: one.leader_id for one in topic.partitions}
            found[topic.name] = TopicView(
                topic.name, topic.topic_id, dict(sorted(leaders.items())), topic.is_internal
            )
        self._topics.update(found)
        for name in names or ():
            if name not in found:
                self._topics.pop(name, None)
        return found

    def topic(self, name: str) -> TopicView | None:
        """A topic as it was when it was last asked for, or is now."""
        known = self._topics.get(name)
        return known if known is not None else self.topics([name]).get(name)

    def leader_of(self, place: Place) -> int:
        topic = self.topic(place[0])
        node_id = topic.leaders.get(place[1], -1) if topic is not None else -1
        if node_id < 0:
            self._topics.pop(place[0], None)
            raise BrokerRefusal(
                ErrorCode.LEADER_NOT_AVAILABLE, f"reading {place[0]}-{place[1]}", "nobody leads it"
            )
        return node_id

    def by_leader(self, places: Iterable[Place]) -> dict[int, list[Place]]:
        found: dict[int, list[Place]] = {}
        for place in places:
            found.setdefault(self.leader_of(place), []).append(place)
        return found

    def list_offsets(
        self, timestamps: Mapping[Place, int], isolation_level: int = 0
    ) -> dict[Place, int]:
        """The first offset at or after each time, or -1; at -1 where a log ends, at -2 begins."""
        found: dict[Place, int] = {}
        for node_id, places in self.by_leader(timestamps).items():
            topics: dict[str, list[ListOffsetsPartition]] = {}
            for topic, partition in places:
                asked = ListOffsetsPartition(
                    partition_index=partition, timestamp=timestamps[topic, partition]
                )
                topics.setdefault(topic, []).append(asked)
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation_level,
                topics=[ListOffsetsTopic(name=t, partitions=p) for t, p in topics.items()],
            )
            answer = self.ask_node(node_id, LIST_OFFSETS, request)
            for one in answer.topics:
                for partition in one.partitions:
                    if partition.error_code:
                        self._topics.pop(one.name, None)
                        raise BrokerRefusal(
                            partition.error_code,
                            f"asking for offsets of {one.name}-{partition.partition_index}",
                        )
                    found[one.name, partition.partition_index] = partition.offset
        return found

    def wait_for_records(
        self, ends: Mapping[Place, int], max_wait_ms: int, isolation_level: int = 0
    ) -> None:
        """Wait until there is something to read at one of these ends of logs, or time is up."""
        sent = self._send_fetches(ends, 1, max_wait_ms, isolation_level)
        if len(sent) > 1:
            select.select([connection for connection, _ in sent], [], [], max_wait_ms / 1000)
        for connection, ticket in sent:
            if len(sent) == 1 or select.select([connection], [], [], 0)[0]:
                connection.receive(ticket, extra_s=max_wait_ms / 1000)
            # A connection whose answer is not waited for is closed when it is needed next.

    def sample(
        self, starts: Mapping[Place, int], max_bytes: int, isolation_level: int = 0
    ) -> dict[Place, memoryview]:
        """A few records of each partition from an offset on; of some perhaps none."""
        found: dict[Place, memoryview] = {}
        for connection, ticket in self._send_fetches(starts, max_bytes, 0, isolation_level):
            for topic in connection.receive(ticket).responses:
                for one in topic.partitions:
                    if not one.error_code and one.records:
                        found[topic.topic, one.partition_index] = memoryview(one.records)
        return found

    def _send_fetches(
        self, starts: Mapping[Place, int], max_bytes: int, max_wait_ms: int, isolation_level: int
    ) -> list[tuple[Connection, Ticket]]:
        sent = []
        for node_id, places in self.by_leader(starts).items():
            topics: dict[str, list[FetchPartition]] = {}
            for topic, partition in places:
                asked = FetchPartition(
                    partition=partition,
                    fetch_offset=starts[topic, partition],
                    partition_max_bytes=max_bytes,
                )
                topics.setdefault(topic, []).append(asked)
            request = FetchRequest(
                max_wait_ms=max_wait_ms,
                min_bytes=1,
                max_bytes=max_bytes * len(places),
                isolation_level=isolation_level,
                topics=[FetchTopic(topic=t, partitions=p) for t, p in topics.items()],
            )
            connection = self.connection_to(node_id)
            ticket = connection.send(FETCH, request, most_version=_BY_NAME_VERSION)
            sent.append((connection, ticket))
        return sent


_links: dict[tuple[int, str, LinkSettings], Link] = {}


def link_of(settings: LinkSettings, lane: str = "") -> Link:
    """The link of this process with these settings; `lane` tells purposes apart."""
    # A child that was forked must not talk through its parent's sockets.
    key = (os.getpid(), lane, settings)
    link = _links.get(key)
    if link is None:
        link = _links[key] = Link(settings)
    return link
