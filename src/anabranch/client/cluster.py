"""The brokers of a cluster: who leads which partition, who coordinates a group, and how to reach
them.

Connections are opened when they are needed and kept. Fetches have connections of their own, since a
broker answers a connection's requests in order, and a fetch that waits for records would hold up
whatever is behind it. So have heartbeats, which must not wait for the disk behind a commit. A
broker that does not announce cooperative consumption, or has it turned off for groups, is refused
when it is connected to.
"""

import asyncio
import random
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from anabranch.client.connection import Connection, open_connection
from anabranch.client.errors import (
    BrokerConnectionError,
    ConsumerError,
    CooperationNotSupportedError,
    broker_error,
)
from anabranch.client.records import TopicPartition
from anabranch.model.errors import ErrorCode
from anabranch.model.sub_codes import SubCode
from anabranch.wire.api import Api
from anabranch.wire.messages.cooperation import COOPERATION_FEATURE, COOPERATION_VERSION
from anabranch.wire.messages.find_coordinator import (
    FIND_COORDINATOR,
    KEY_TYPE_GROUP,
    FindCoordinatorRequest,
)
from anabranch.wire.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

_MANY_COORDINATORS_VERSION = 4
_TOPIC_IDS_VERSION = 12
CONTROL_LANE = -1
HEARTBEAT_LANE = -2


class ClusterSettings(Protocol):
    """What has to be known to reach a cluster."""

    @property
    def servers(self) -> list[tuple[str, int]]: ...
    @property
    def client_id(self) -> str: ...
    @property
    def tls(self) -> ssl.SSLContext | None: ...
    @property
    def request_timeout_s(self) -> float: ...
    @property
    def group_id(self) -> str | None: ...


class Coordinated(NamedTuple):
    """A group or a transactional id, which has a coordinator."""

    key: str
    key_type: int = KEY_TYPE_GROUP


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition, since which epoch."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with the leaders of its partitions that have one."""

    name: str
    topic_id: bytes
    leaders: dict[int, Leader]


class Cluster:
    """What is known of a cluster, and connections to its brokers."""

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        is_reader: bool = False,
        needs_cooperation: bool = True,
    ) -> None:
        """A reader only asks about the group: it commits nothing."""
        self._settings = settings
        self._is_reader = is_reader
        self._needs_cooperation = needs_cooperation
        self._group = Coordinated(settings.group_id or "")
        # What is turned on, as the broker said that was connected to last.
        self.finalized_features: dict[str, int] = {}
        self.takes_individual_commits = False
        self._tls = settings.tls
        self._nodes: dict[int, tuple[str, int]] = {}
        self._topics: dict[bytes, Topic] = {}
        self._coordinators: dict[Coordinated, tuple[int, str, int]] = {}
        self._connections: dict[tuple[str, int, int], Connection] = {}
        self._opening: dict[tuple[str, int, int], asyncio.Task[Connection]] = {}
        self._is_closed = False

    # What is known --------------------------------------------------------------------------------

    def place_of(self, topic_id: bytes, partition: int) -> TopicPartition | None:
        topic = self._topics.get(topic_id)
        return TopicPartition(topic.name, partition) if topic is not None else None

    def topic(self, name: str) -> Topic | None:
        return next((topic for topic in self._topics.values() if topic.name == name), None)

    def leader_of(self, topic_id: bytes, partition: int) -> Leader | None:
        topic = self._topics.get(topic_id)
        return topic.leaders.get(partition) if topic is not None else None

    async def refresh(
        self,
        *,
        names: Iterable[str] = (),
        ids: Iterable[bytes] = (),
        may_create: bool = False,
    ) -> None:
        """Ask for topics by name or id; those that do not exist are forgotten."""
        names, ids = sorted(set(names)), sorted(set(ids))
        # A broker is asked by one of both, never by both.
        for wanted, version in (
            ([MetadataRequestTopic(name=name) for name in names], 0),
            ([MetadataRequestTopic(topic_id=one, name=None) for one in ids], _TOPIC_IDS_VERSION),
        ):
            if wanted or (version == 0 and not ids):
                request = MetadataRequest(topics=wanted, allow_auto_topic_creation=may_create)
                answer = await self.ask_any(METADATA, request, least_version=version)
                self._learn(answer, set(names) if version == 0 else set(), set(ids))

    def _learn(self, answer: MetadataResponse, names: set[str], ids: set[bytes]) -> None:
        if answer.error_code:
            raise broker_error(answer.error_code, "Metadata")
        self._nodes = {one.node_id: (one.host, one.port) for one in answer.brokers}
        found: dict[bytes, Topic] = {}
        for topic in answer.topics:
            if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise broker_error(topic.error_code, f"reading topic {topic.name}")
            if topic.error_code or topic.name is None:
                continue
            leaders = {
                one.partition_index: Leader(one.leader_id, one.leader_epoch)
                for one in topic.partitions
                if one.leader_id >= 0
            }
            found[topic.topic_id] = Topic(topic.name, topic.topic_id, leaders)
        kept = {
            topic_id: topic
            for topic_id, topic in self._topics.items()
            if topic.name not in names and topic_id not in ids
        }
        self._topics = {**kept, **found}

    # Asking ---------------------------------------------------------------------------------------

    async def ask_any(self, api: Api, message: Any, *, least_version: int = 0) -> Any:
        """Ask whichever broker answers; BrokerConnectionError when none does."""
        failures: list[str] = []
        for host, port in self._candidates():
            try:
                connection = await self._connected(host, port, CONTROL_LANE)
                return await connection.request(
                    api,
                    message,
                    least_version=least_version,
                    timeout_s=self._settings.request_timeout_s,
                )
            except BrokerConnectionError as error:
                failures.append(str(error))
        raise BrokerConnectionError("; ".join(failures) or "there is no broker to ask")

    def _candidates(self) -> list[tuple[str, int]]:
        connected = [key[:2] for key, one in self._connections.items() if not one.is_closed]
        known = list(self._nodes.values())
        random.shuffle(known)
        return list(dict.fromkeys([*connected, *known, *self._settings.servers]))

    async def ask_node(
        self,
        node_id: int,
        lane: int,
        api: Api,
        message: Any,
        *,
        least_version: int = 0,
        most_version: int | None = None,
        extra_s: float = 0.0,
    ) -> Any:
        """Ask one broker; `lane` tells connections for different purposes apart."""
        place = self._nodes.get(node_id)
        if place is None:
            raise BrokerConnectionError(f"broker {node_id} is not known")
        connection = await self._connected(*place, lane)
        timeout_s = self._settings.request_timeout_s + extra_s
        return await connection.request(
            api,
            message,
            least_version=least_version,
            most_version=most_version,
            timeout_s=timeout_s,
        )

    async def ask_coordinator(
        self,
        api: Api,
        message: Any,
        *,
        least_version: int = 0,
        most_version: int | None = None,
        lane: int = CONTROL_LANE,
        of: Coordinated | None = None,
    ) -> Any:
        """Ask the coordinator of the group, or of something else, which is looked up if need be."""
        of = of or self._group
        if of not in self._coordinators:
            self._coordinators[of] = await self._find_coordinator(of)
        _, host, port = self._coordinators[of]
        try:
            connection = await self._connected(host, port, lane)
            return await connection.request(
                api,
                message,
                least_version=least_version,
                most_version=most_version,
                timeout_s=self._settings.request_timeout_s,
            )
        except BrokerConnectionError:
            self.forget_coordinator(of)
            raise

    def forget_coordinator(self, of: Coordinated | None = None) -> None:
        """Look it up again before the next question."""
        self._coordinators.pop(of or self._group, None)

    async def _find_coordinator(self, of: Coordinated) -> tuple[int, str, int]:
        request = FindCoordinatorRequest(coordinator_keys=[of.key], key_type=of.key_type)
        answer = await self.ask_any(
            FIND_COORDINATOR, request, least_version=_MANY_COORDINATORS_VERSION
        )
        found = answer.coordinators[0]
        if found.error_code:
            raise broker_error(
                found.error_code, f"looking up the coordinator of {of.key}", found.error_message
            )
        return found.node_id, found.host, found.port

    # Connections ----------------------------------------------------------------------------------

    def place_of_node(self, node_id: int) -> str:
        host, port = self._nodes.get(node_id, ("?", 0))
        return f"{host}:{port}"

    @property
    def coordinator_place(self) -> str:
        found = self._coordinators.get(self._group)
        return f"{found[1]}:{found[2]}" if found is not None else "?"

    async def _connected(self, host: str, port: int, lane: int) -> Connection:
        key = (host, port, lane)
        found = self._connections.get(key)
        if found is not None and not found.is_closed:
            return found
        if self._is_closed:
            raise BrokerConnectionError("the client is closed")
        # Whoever asks at the same time waits for the same connection.
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.ensure_future(self._open(key))
            self._opening[key] = opening
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(opening)

    async def _open(self, key: tuple[str, int, int]) -> Connection:
        host, port, _ = key
        connection = await open_connection(
            host,
            port,
            client_id=self._settings.client_id,
            tls=self._tls,
            timeout_s=self._settings.request_timeout_s,
        )
        if self._is_closed:
            connection.close()
        self.finalized_features = connection.finalized_features
        try:
            self._check_features(connection)
        except ConsumerError:
            connection.close()
            raise
        self._connections[key] = connection
        return connection

    def _check_features(self, connection: Connection) -> None:
        """Say at once what the broker cannot do, or may not."""
        if not self._needs_cooperation:
            return
        first, last = connection.supported_features.get(COOPERATION_FEATURE, (0, -1))
        if not first <= COOPERATION_VERSION <= last:
            lacking = f"without the feature {COOPERATION_FEATURE} in version {COOPERATION_VERSION}"
            raise CooperationNotSupportedError("ApiVersions", connection.place, lacking)
        level = connection.finalized_features.get(COOPERATION_FEATURE, 0)
        self.takes_individual_commits = level >= COOPERATION_VERSION
        will_commit = self._settings.group_id is not None and not self._is_reader
        if will_commit and not self.takes_individual_commits:
            raise broker_error(
                ErrorCode.INVALID_REQUEST,
                f"connecting to {connection.place} for group {self._settings.group_id}",
                None,
                SubCode.INDIVIDUAL_COMMIT_NOT_ALLOWED,
            )

    async def close(self) -> None:
        self._is_closed = True
        openings: Sequence[asyncio.Task[Connection]] = list(self._opening.values())
        for opening in openings:
            opening.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections = {}


def is_worth_retrying(error: ConsumerError) -> bool:
    """Whether a request that ended so may be answered when it is sent again."""
    return isinstance(error, BrokerConnectionError) or bool(
        getattr(getattr(error, "code", None), "retriable", False)
    )
