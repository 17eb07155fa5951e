"""What `log dump` finds, as JSON objects with stable fields."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from anabranch.cli.log.files import Batch, Finding, OffsetEntry, TimeEntry
from anabranch.cli.output import text_field
from anabranch.log.producer_state import ProducerDescription
from anabranch.wire.compression import codec_name


def document_of(found: Finding) -> dict[str, Any]:
    """A batch, an index entry or a producer."""
    match found:
        case Batch(position, header, _):
            return {
                "type": "batch",
                "position": position,
                "base_offset": header.base_offset,
                "last_offset": header.last_offset,
                "records_count": header.records_count,
                "size_bytes": header.size_bytes,
                "codec": codec_name(header.codec),
                "timestamp_type": ("LogAppendTime" if header.is_log_append_time else "CreateTime"),
                "base_timestamp": header.base_timestamp,
                "max_timestamp": header.max_timestamp,
                "partition_leader_epoch": header.partition_leader_epoch,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
                "last_sequence": header.last_sequence,
                "is_transactional": header.is_transactional,
                "is_control": header.is_control,
                "has_delete_horizon": header.has_delete_horizon,
                "crc": header.crc,
            }
        case OffsetEntry(offset, position):
            return {"type": "offset_entry", "offset": offset, "position": position}
        case TimeEntry(timestamp, offset):
            return {"type": "time_entry", "timestamp": timestamp, "offset": offset}
        case ProducerDescription():
            return {"type": "producer", **asdict(found)}
    raise AssertionError(f"{found!r} is told in another way")


def record_documents(found: Finding) -> Iterator[dict[str, Any]]:
    """The records of a batch, where they were read."""
    if not isinstance(found, Batch):
        return
    for record in found.records or ():
        yield {
            "type": "record",
            "offset": record.offset,
            "timestamp": record.timestamp,
            **text_field("key", record.key),
            **text_field("value", record.value),
            "headers": [
                {"key": key, **text_field("value", value)} for key, value in record.headers
            ],
        }
