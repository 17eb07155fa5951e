"""A blocking client that speaks through our own codecs, for requests that no stock client sends."""

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from anabranch.wire.api import Api
from anabranch.wire.header import write_request_header
from anabranch.wire.messages.delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from anabranch.wire.messages.delete_topics import (
    DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from anabranch.wire.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from anabranch.wire.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from anabranch.wire.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from anabranch.wire.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from anabranch.wire.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from anabranch.wire.primitives import read_uvarint, skip_tags
from anabranch.wire.record_batch import Record, build_batch, crc_ok, iter_headers, iter_records

_SIZE = struct.Struct(">i")


class RawClient:
    """One connection; `send` waits for the response, `post` and `receive` do it in two steps."""

    def __init__(self, bootstrap: str, *, client_id: str = "raw", timeout_s: float = 60) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.client_id = client_id
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._last_id = 0

    def send(self, api: Api, version: int, request: Any) -> Any:
        """Send one request and return its decoded response."""
        return self.receive(api, version, self.post(api, version, request))

    def post(self, api: Api, version: int, request: Any) -> int:
        """Send one request without waiting; returns its correlation id."""
        self._last_id += 1
        parts = [
            write_request_header(
                api.key,
                version,
                self._last_id,
                self.client_id,
                flexible=api.is_flexible(version),
            ),
            *api.encode_request(version)(request),
        ]
        self.post_bytes(b"".join(map(bytes, parts)))
        return self._last_id

    def receive(self, api: Api, version: int, correlation_id: int) -> Any:
        """The next response, which must be the one to `correlation_id`."""
        frame = self.receive_bytes()
        (found_id,) = _SIZE.unpack_from(frame)
        assert found_id == correlation_id, f"response {found_id} came before {correlation_id}"
        position = 4
        if api.has_tagged_response_header(version):
            count, position = read_uvarint(frame, position)
            position = skip_tags(frame, position, count)
        message, end = api.decode_response(version)(frame, position)
        assert end == len(frame), f"{len(frame) - end} bytes follow the response"
        return message

    def post_bytes(self, body: bytes) -> None:
        """Send one frame with any content."""
        self._socket.sendall(_SIZE.pack(len(body)) + body)

    def receive_bytes(self) -> memoryview:
        """One frame, without its size; EOFError when the broker closed the connection."""
        (size,) = _SIZE.unpack(self._exactly(4))
        return memoryview(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            more = self._socket.recv(size - len(content))
            if not more:
                raise EOFError(f"the connection ended after {len(content)} of {size} bytes")
            content += more
        return bytes(content)

    def fileno(self) -> int:
        """The socket, to ask whether something can be read."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # What most tests need

    def metadata(self, *topics: str, auto_create: bool = False) -> Any:
        """Metadata of the topics named, or of all."""
        asked = [MetadataRequestTopic(name=name) for name in topics] or None
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=auto_create)
        return self.send(METADATA, 12, request)

    def new_producer_id(self) -> int:
        response = self.send(
            INIT_PRODUCER_ID, 4, InitProducerIdRequest(transaction_timeout_ms=60_000)
        )
        assert response.error_code == 0
        producer_id: int = response.producer_id
        return producer_id

    def produce(
        self, topic: str, partition: int, batch: bytes, *, acks: int = -1
    ) -> PartitionProduceResponse:
        """Send one batch and return the partition's part of the response."""
        response = self.send(PRODUCE, 9, produce_request(topic, partition, batch, acks=acks))
        found: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return found

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int = 10_000_000) -> Any:
        """One fetch that does not wait; returns the partition's part of the response."""
        asked = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
        )
        request = FetchRequest(
            min_bytes=0, max_bytes=max_bytes, topics=[FetchTopic(topic=topic, partitions=[asked])]
        )
        return self.send(FETCH, 11, request).responses[0].partitions[0]

    def read_all(self, topic: str, partition: int, offset: int = 0) -> list[Record]:
        """Every record from `offset` to the end; CRCs are checked."""
        records: list[Record] = []
        while True:
            data = self.fetch(topic, partition, offset)
            assert data.error_code == 0, f"fetching {topic}-{partition} at {offset}"
            content = memoryview(data.records or b"")
            for position, header in iter_headers(content):
                assert crc_ok(content, position, header.size_bytes)
                batch = content[position : position + header.size_bytes]
                records += [record for record in iter_records(batch) if record.offset >= offset]
            if offset == data.high_watermark:
                return records
            assert records and records[-1].offset >= offset, f"no records at {offset}"
            offset = records[-1].offset + 1

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> tuple[int, int]:
        """(offset, timestamp) that ListOffsets finds; special places are negative times."""
        asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
        found = self.send(LIST_OFFSETS, 7, request).topics[0].partitions[0]
        assert found.error_code == 0
        return found.offset, found.timestamp

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Delete the records before an offset; returns the new log start."""
        asked = DeleteRecordsPartition(partition_index=partition, offset=before)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[asked])], timeout_ms=10_000
        )
        found = self.send(DELETE_RECORDS, 2, request).topics[0].partitions[0]
        assert found.error_code == 0
        low_watermark: int = found.low_watermark
        return low_watermark

    def delete_topic(self, topic: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000)
        assert self.send(DELETE_TOPICS, 6, request).responses[0].error_code == 0


def produce_request(
    topic: str, partition: int, batch: bytes, *, acks: int = -1, timeout_ms: int = 10_000
) -> ProduceRequest:
    """A request with one batch for one partition, by topic name (versions below 13)."""
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def batch_of(
    values: Sequence[bytes | None],
    *,
    timestamp: int = 1_700_000_000_000,
    key: bytes | None = b"key",
    producer_id: int = -1,
    producer_epoch: int | None = None,
    base_sequence: int | None = None,
    codec: int = 0,
) -> bytes:
    """A batch as a producer sends it; with a producer id, epoch and sequence begin at 0."""
    is_idempotent = producer_id >= 0
    return build_batch(
        [Record(i, timestamp + i, key, value) for i, value in enumerate(values)],
        base_offset=0,
        partition_leader_epoch=-1,
        producer_id=producer_id,
        producer_epoch=producer_epoch if producer_epoch is not None else is_idempotent - 1,
        base_sequence=base_sequence if base_sequence is not None else is_idempotent - 1,
        codec=codec,
    )
