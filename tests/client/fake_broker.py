"""A broker of one process and no disk, whose coordinator does what a test says.

It speaks through the real codecs over a real socket. Acknowledgements are judged by the broker's
own rules (`take_acks`), so that what it takes a real broker would take.
"""

import asyncio
import functools
import ssl
import struct
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from anabranch.branch.slots import slot_of_key, slot_of_offset
from anabranch.coordinator.cooperative.acks import Ack, Holdings, LogFacts, take_acks
from anabranch.coordinator.cooperative.progress import (
    Attempt,
    PartitionProgress,
    new_progress,
    with_attempt,
    without_lost,
)
from anabranch.model.errors import ErrorCode
from anabranch.model.units import ALL_SLOTS, SlotRange, Unit, hashes_of, slots_between
from anabranch.wire.header import frame_response, read_request_header, skip_header_tags
from anabranch.wire.messages import (
    api_versions,
    consumer_group_heartbeat,
    cooperation,
    describe_configs,
    fetch,
    find_coordinator,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
)
from anabranch.wire.messages.table import APIS
from anabranch.wire.offset_set import decode, encode
from anabranch.wire.record_batch import Record, build_batch

_SIZE = struct.Struct(">i")
NODE = 7


@dataclass
class FakeTopic:
    name: str
    topic_id: bytes
    logs: list[list[Record]]
    configs: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeMember:
    member_id: str
    number: int
    epoch: int = 1
    target: dict[Unit, int] = field(default_factory=dict)
    held: dict[Unit, int] = field(default_factory=dict)
    is_news: bool = True
    topics: list[str] = field(default_factory=list)
    loads: list[cooperation.RangeLoad] = field(default_factory=list)
    is_fenced: bool = False


class FakeBroker:
    """Use as `async with FakeBroker() as broker`."""

    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.members: dict[str, FakeMember] = {}
        self.progress: dict[tuple[bytes, int], PartitionProgress] = {}
        self.heartbeat_interval_ms = 20
        self.lease_ms = 30_000
        self.fetch_max_records = 100_000
        self.leader_epoch = 0
        # Where earlier leader epochs ended, in all logs alike.
        self.epoch_ends: dict[int, int] = {}
        # What a test meddles with: by API name.
        self.without_tags: set[str] = set()
        self.level = 1
        self.finalized_level = 1
        self.errors: dict[str, deque[int]] = defaultdict(deque)
        self.gates: dict[str, asyncio.Event] = {}
        # How many requests came to a gate, whether or not it was open.
        self.at_gates: Counter[str] = Counter()
        # How many fetches wait for records at the end of a log.
        self.fetches_waiting = 0
        self.on_join: Callable[[FakeMember], None] = lambda member: None
        self.requests: list[tuple[str, Any]] = []
        self._changed = asyncio.Event()
        self._appended = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._now_ms = 0

    # The test's side ------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, **configs: str) -> FakeTopic:
        topic_id = (len(self.topics) + 1).to_bytes(16, "big")
        names = {key.replace("_", "."): value for key, value in configs.items()}
        topic = FakeTopic(name, topic_id, [[] for _ in range(partitions)], names)
        self.topics[name] = topic
        return topic

    def append(
        self,
        name: str,
        keys: Iterable[bytes | None],
        partition: int = 0,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> None:
        """Records whose value is their offset."""
        log = self.topics[name].logs[partition]
        for key in keys:
            offset = len(log)
            log.append(Record(offset, 1000 + offset, key, b"%d" % offset, headers))
        self._appended.set()
        self._appended = asyncio.Event()

    def die(self, name: str, end: int) -> None:
        """The broker died and is back: a log may have lost its end, the leader epoch is new."""
        topic = self.topics[name]
        topic.logs = [[one for one in log if one.offset < end] for log in topic.logs]
        self.epoch_ends[self.leader_epoch] = end
        self.leader_epoch += 1
        for place, known in list(self.progress.items()):
            if place[0] == topic.topic_id:
                self.progress[place] = without_lost(known, end)
        self.drop_connections()

    def unit(self, name: str, slots: SlotRange = ALL_SLOTS, partition: int = 0) -> Unit:
        return Unit(self.topics[name].topic_id, partition, slots)

    def give(self, member: FakeMember, target: dict[Unit, int]) -> None:
        """What the member shall have from the next heartbeat on."""
        member.target = target
        member.epoch = max([member.epoch, *target.values()])
        member.is_news = True

    def fence(self, member: FakeMember) -> None:
        """The member's session ended."""
        member.is_fenced = True

    async def until(self, condition: Callable[[], Any], timeout_s: float = 60) -> None:
        """Wait until a request made something true."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def sent(self, api_name: str) -> list[Any]:
        """The requests of one API so far."""
        return [request for name, request in self.requests if name == api_name]

    def stable_offset(self, name: str, partition: int = 0) -> int:
        place = (self.topics[name].topic_id, partition)
        return self.progress[place].stable_offset if place in self.progress else -1

    def drop_connections(self) -> None:
        for writer in list(self._connections):
            writer.close()

    # The server -----------------------------------------------------------------------------------

    async def __aenter__(self) -> "FakeBroker":
        await self.listen()
        return self

    async def listen(self, tls: ssl.SSLContext | None = None) -> None:
        if self._server is not None:
            self._server.close()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_connections()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while True:
                (size,) = _SIZE.unpack(await reader.readexactly(4))
                writer.writelines(await self._answer(memoryview(await reader.readexactly(size))))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            self._connections.discard(writer)
            self._serving.discard(task)
            writer.close()

    async def _answer(self, frame: memoryview) -> list[bytes | memoryview]:
        key, version, correlation_id, _, position = read_request_header(frame)
        api = APIS[key]
        if api.is_flexible(version):
            position = skip_header_tags(frame, position)
        request, _ = api.decode_request(version)(frame, position)
        gate = self.gates.get(api.name)
        if gate is not None:
            self.at_gates[api.name] += 1
            self._changed.set()
            await gate.wait()
        code = self.errors[api.name].popleft() if self.errors[api.name] else 0
        answer = getattr(self, f"_{api.name}")(request, code)
        if isinstance(answer, Coroutine):
            answer = await answer
        self.requests.append((api.name, request))
        self._changed.set()
        parts = api.encode_response(version)(answer)
        return frame_response(parts, correlation_id, tagged=api.has_tagged_response_header(version))

    # APIs -----------------------------------------------------------------------------------------

    def _ApiVersions(self, request: Any, code: int) -> Any:
        served = [
            api_versions.ApiVersion(
                api_key=api.key, min_version=api.versions.first, max_version=api.versions.last
            )
            for api in APIS.values()
        ]
        answer = api_versions.ApiVersionsResponse(error_code=code, api_keys=served)
        if "ApiVersions" not in self.without_tags:
            answer.supported_features = [
                api_versions.SupportedFeatureKey(
                    name=cooperation.COOPERATION_FEATURE, min_version=1, max_version=self.level
                )
            ]
            answer.finalized_features = [
                api_versions.FinalizedFeatureKey(
                    name=cooperation.COOPERATION_FEATURE, max_version_level=self.finalized_level
                )
            ]
        return answer

    def _Metadata(self, request: Any, code: int) -> Any:
        names = {one.name for one in request.topics or ()}
        ids = {one.topic_id for one in request.topics or ()}
        leader = functools.partial(
            metadata.MetadataResponsePartition, leader_id=NODE, leader_epoch=self.leader_epoch
        )
        return metadata.MetadataResponse(
            brokers=[
                metadata.MetadataResponseBroker(node_id=NODE, host="127.0.0.1", port=self.port)
            ],
            topics=[
                metadata.MetadataResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[leader(partition_index=i) for i in range(len(topic.logs))],
                )
                for topic in self.topics.values()
                if topic.name in names or topic.topic_id in ids
            ],
        )

    def _FindCoordinator(self, request: Any, code: int) -> Any:
        found = find_coordinator.Coordinator(
            key=request.coordinator_keys[0],
            node_id=NODE,
            host="127.0.0.1",
            port=self.port,
            error_code=code,
        )
        return find_coordinator.FindCoordinatorResponse(coordinators=[found])

    def _DescribeConfigs(self, request: Any, code: int) -> Any:
        (asked,) = request.resources
        configs = self.topics[asked.resource_name].configs
        found = [
            describe_configs.DescribeConfigsResourceResult(name=name, value=value)
            for name, value in configs.items()
        ]
        result = describe_configs.DescribeConfigsResult(
            error_code=code, resource_name=asked.resource_name, configs=found
        )
        return describe_configs.DescribeConfigsResponse(results=[result])

    def _ListOffsets(self, request: Any, code: int) -> Any:
        (topic,) = request.topics
        (asked,) = topic.partitions
        log = self.topics[topic.name].logs[asked.partition_index]
        offset = len(log) if asked.timestamp == list_offsets.LATEST else self._start_of(log)
        found = list_offsets.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index, offset=offset, error_code=code
        )
        return list_offsets.ListOffsetsResponse(
            topics=[list_offsets.ListOffsetsTopicResponse(name=topic.name, partitions=[found])]
        )

    def _OffsetForLeaderEpoch(self, request: Any, code: int) -> Any:
        (topic,) = request.topics
        (asked,) = topic.partitions
        log = self.topics[topic.topic].logs[asked.partition]
        end_offset = self.epoch_ends.get(asked.leader_epoch, log[-1].offset + 1 if log else 0)
        found = offset_for_leader_epoch.EpochEndOffset(
            partition=asked.partition,
            error_code=code,
            leader_epoch=asked.leader_epoch,
            end_offset=end_offset,
        )
        return offset_for_leader_epoch.OffsetForLeaderEpochResponse(
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopicResult(
                    topic=topic.topic, partitions=[found]
                )
            ]
        )

    def _start_of(self, log: list[Record]) -> int:
        return log[0].offset if log else 0

    def _ConsumerGroupHeartbeat(self, request: Any, code: int) -> Any:
        response = consumer_group_heartbeat.ConsumerGroupHeartbeatResponse(
            error_code=code, heartbeat_interval_ms=self.heartbeat_interval_ms
        )
        if code:
            return response
        member = self._member(request)
        if member is None:
            response.error_code = ErrorCode.UNKNOWN_MEMBER_ID
            return response
        if request.member_epoch < 0:
            del self.members[member.member_id]
            response.member_epoch = request.member_epoch
            return response
        response.member_id = member.member_id
        response.member_epoch = member.epoch
        asked = request.cooperation
        if asked is None or "ConsumerGroupHeartbeat" in self.without_tags:
            return response
        member.loads += asked.loads
        self._take_held(member, asked)
        response.cooperation = cooperation.CooperationAnswer(lease_ms=self.lease_ms)
        if member.is_news:
            member.is_news = False
            member.held = _cut({**member.held, **member.target})
            response.cooperation.assigned = _assigned(member.target)
        return response

    def _member(self, request: Any) -> FakeMember | None:
        member = self.members.get(request.member_id)
        if request.member_epoch == 0 and (member is None or member.is_fenced):
            member = FakeMember(request.member_id, len(self.members))
            self.members[request.member_id] = member
            member.topics = list(request.subscribed_topic_names)
            self.on_join(member)
        if member is None or member.is_fenced:
            return None
        if request.subscribed_topic_names is not None:
            member.topics = list(request.subscribed_topic_names)
        return member

    def _take_held(self, member: FakeMember, asked: Any) -> None:
        if asked.held is None:
            return
        said = {
            (partition.topic_id, partition.partition): [
                slots_between(one.first_hash, one.last_hash) for one in partition.ranges
            ]
            for partition in asked.held
        }
        member.held = {
            unit: epoch
            for unit, epoch in member.held.items()
            if any(
                unit[:2] == one[:2] and one.slots.first <= unit.slots.first < one.slots.end
                for one in member.target
            )
            or any(
                one.first < unit.slots.end and unit.slots.first < one.end
                for one in said.get(unit[:2], [])
                if one is not None
            )
        }

    async def _Fetch(self, request: Any, code: int) -> Any:
        if code:
            return fetch.FetchResponse(error_code=code)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.max_wait_ms / 1000
        while True:
            appended = self._appended
            answers = [
                fetch.FetchableTopicResponse(
                    topic_id=topic.topic_id,
                    partitions=[self._read(topic.topic_id, one) for one in topic.partitions],
                )
                for topic in request.topics
            ]
            has_news = any(
                data.records or data.error_code for one in answers for data in one.partitions
            )
            if has_news or loop.time() >= deadline:
                return fetch.FetchResponse(responses=answers)
            self.fetches_waiting += 1
            self._changed.set()
            try:
                async with asyncio.timeout(deadline - loop.time()):
                    await appended.wait()
            except TimeoutError:
                pass
            finally:
                self.fetches_waiting -= 1

    def _read(self, topic_id: bytes, asked: Any) -> Any:
        data = fetch.PartitionData(partition_index=asked.partition, error_code=0)
        if self.errors["Fetch partition"]:
            data.error_code = self.errors["Fetch partition"].popleft()
            data.range_fetch = cooperation.RangeFetchAnswer()
            return data
        if asked.current_leader_epoch != self.leader_epoch:
            data.error_code = ErrorCode.FENCED_LEADER_EPOCH
            data.range_fetch = cooperation.RangeFetchAnswer()
            return data
        topic = next(one for one in self.topics.values() if one.topic_id == topic_id)
        log = topic.logs[asked.partition]
        start = self._start_of(log)
        data.high_watermark = log[-1].offset + 1 if log else 0
        data.log_start_offset = start
        if asked.fetch_offset < start or asked.fetch_offset > data.high_watermark:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            data.range_fetch = cooperation.RangeFetchAnswer()
            return data
        covered = min(asked.fetch_offset + self.fetch_max_records, data.high_watermark)
        ranges = [slots_between(one.first_hash, one.last_hash) for one in asked.range_fetch.ranges]
        found = [
            record
            for record in log
            if asked.fetch_offset <= record.offset < covered
            and any(s and s.first <= self.slot(topic, record) < s.end for s in ranges)
            and not self._is_withheld(topic_id, asked, self.slot(topic, record), record.offset)
        ]
        if found:
            data.records = build_batch(
                found, base_offset=found[0].offset, partition_leader_epoch=self.leader_epoch
            )
        if "Fetch" not in self.without_tags:
            data.range_fetch = cooperation.RangeFetchAnswer(
                covered_offset=covered, ranges=asked.range_fetch.ranges
            )
        return data

    def slot(self, topic: FakeTopic, record: Record) -> int:
        header = topic.configs.get("branch.ordering.key.header")
        key = next((v for k, v in reversed(record.headers) if k == header), None) or record.key
        if key is not None:
            return slot_of_key(key)
        is_ordered = topic.configs.get("branch.null.key") == "ordered"
        return 0 if is_ordered else slot_of_offset(record.offset)

    def _is_withheld(self, topic_id: bytes, asked: Any, slot: int, offset: int) -> bool:
        known = self.progress.get((topic_id, asked.partition))
        return bool(asked.range_fetch.group_id and known and known.is_done(slot, offset))

    def _OffsetFetch(self, request: Any, code: int) -> Any:
        (group,) = request.groups
        topics = [
            offset_fetch.OffsetFetchResponseTopics(
                topic_id=topic.topic_id,
                name=topic.name,
                partitions=[
                    self._progress_of(topic.topic_id, index) for index in topic.partition_indexes
                ],
            )
            for topic in group.topics
        ]
        found = offset_fetch.OffsetFetchResponseGroup(
            group_id=group.group_id, topics=topics, error_code=code
        )
        return offset_fetch.OffsetFetchResponse(groups=[found])

    def _progress_of(self, topic_id: bytes, partition: int) -> Any:
        known = self.progress.get((topic_id, partition))
        answer = offset_fetch.OffsetFetchResponsePartitions(
            partition_index=partition,
            committed_offset=known.stable_offset if known is not None else -1,
            metadata="",
        )
        if "OffsetFetch" in self.without_tags:
            return answer
        answer.individual = cooperation.IndividualProgress(
            stable_offset=known.stable_offset if known is not None else -1
        )
        if known is None:
            first_hash, last_hash = hashes_of(ALL_SLOTS)
            answer.individual.ranges = [
                cooperation.RangeProgress(first_hash=first_hash, last_hash=last_hash, watermark=-1)
            ]
            return answer
        for interval in known.intervals:
            first_hash, last_hash = hashes_of(interval.slots)
            answer.individual.ranges.append(
                cooperation.RangeProgress(
                    first_hash=first_hash,
                    last_hash=last_hash,
                    watermark=interval.watermark,
                    done=encode(interval.done),
                )
            )
        for offset, attempt in known.attempts.items():
            answer.individual.retried.append(
                cooperation.RetriedRecord(
                    offset=offset,
                    attempts=attempt.count,
                    not_before_ms=attempt.not_before_ms,
                    reason=attempt.reason,
                )
            )
        return answer

    def _OffsetCommit(self, request: Any, code: int) -> Any:
        member = self.members.get(request.member_id)
        answers = []
        for topic in request.topics:
            partitions = [
                self._take_commit(member, topic.topic_id, one, code) for one in topic.partitions
            ]
            answers.append(
                offset_commit.OffsetCommitResponseTopic(
                    topic_id=topic.topic_id, name=topic.name, partitions=partitions
                )
            )
        return offset_commit.OffsetCommitResponse(topics=answers)

    def _take_commit(
        self, member: FakeMember | None, topic_id: bytes, asked: Any, code: int
    ) -> Any:
        answer = offset_commit.OffsetCommitResponsePartition(
            partition_index=asked.partition_index, error_code=code
        )
        if code:
            return answer
        place = (topic_id, asked.partition_index)
        known = self.progress.get(place) or new_progress(0)
        log = next(one for one in self.topics.values() if one.topic_id == topic_id).logs[place[1]]
        end = log[-1].offset + 1 if log else 0
        acks = [
            Ack(
                slots_between(one.first_hash, one.last_hash) or ALL_SLOTS,
                one.epoch,
                one.watermark,
                decode(one.done),
            )
            for one in asked.individual.acks
        ]
        holdings = Holdings(-1, {ALL_SLOTS: -1})
        if member is not None:
            mine = {unit.slots: e for unit, e in member.held.items() if unit[:2] == place}
            holdings = Holdings(member.epoch, mine)
        epoch_end = self.epoch_ends.get(asked.individual.leader_epoch, end)
        known, outcomes = take_acks(known, acks, holdings, LogFacts(0, end, end, epoch_end))
        for one in asked.individual.failures:
            count = known.attempts[one.offset].count if one.offset in known.attempts else 0
            attempt = Attempt(one.key_hash >> 47, count + 1, one.retry_after_ms, one.reason)
            known = with_attempt(known, one.offset, attempt)
        self.progress[place] = known
        if "OffsetCommit" not in self.without_tags:
            answer.individual = cooperation.IndividualCommitAnswer(
                stable_offset=known.stable_offset,
                outcomes=[
                    cooperation.RangeOutcome(
                        first_hash=hashes_of(one.slots)[0],
                        last_hash=hashes_of(one.slots)[1],
                        error_code=one.error_code,
                        sub_code=one.sub_code,
                    )
                    for one in outcomes
                ],
            )
            # The acknowledgements' come first, then one for each failure.
            answer.individual.outcomes += [
                cooperation.RangeOutcome(first_hash=one.key_hash, last_hash=one.key_hash)
                for one in asked.individual.failures
            ]
        return answer


def _assigned(target: dict[Unit, int]) -> list[cooperation.AssignedPartition]:
    found: dict[tuple[bytes, int], cooperation.AssignedPartition] = {}
    for unit, epoch in sorted(target.items()):
        partition = found.setdefault(
            unit[:2],
            cooperation.AssignedPartition(topic_id=unit.topic_id, partition=unit.partition),
        )
        first_hash, last_hash = hashes_of(unit.slots)
        partition.ranges.append(
            cooperation.OwnedRange(first_hash=first_hash, last_hash=last_hash, epoch=epoch)
        )
    return list(found.values())


def _cut(units: dict[Unit, int]) -> dict[Unit, int]:
    """The same slots, cut wherever one of the units begins or ends; the later ones count."""
    found: dict[Unit, int] = {}
    for unit, epoch in units.items():
        edges = {edge for one in units if one[:2] == unit[:2] for edge in one.slots}
        inside = sorted(edge for edge in edges if unit.slots.first <= edge <= unit.slots.end)
        for first, end in pairwise(inside):
            found[Unit(*unit[:2], SlotRange(first, end))] = epoch
    return found
