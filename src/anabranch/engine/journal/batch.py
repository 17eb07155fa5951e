"""Keys and values of one decision as one record batch, and back.

One batch, because what a decision writes is whole or absent after a crash.
"""

from collections.abc import Iterator, Sequence

from anabranch.engine.journal.errors import JournalError
from anabranch.model.errors import KafkaError
from anabranch.wire.record_batch import Record, build_batch, iter_records, read_header

Entry = tuple[bytes, bytes | None]


def build_entries(
    entries: Sequence[Entry], *, timestamp_ms: int, base_offset: int = 0, leader_epoch: int = 0
) -> bytes:
    """A batch of `entries`, all of one time, as a log takes it."""
    return build_batch(
        [
            Record(base_offset + delta, timestamp_ms, key, value)
            for delta, (key, value) in enumerate(entries)
        ],
        base_offset=base_offset,
        partition_leader_epoch=leader_epoch,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
    )


def iter_entries(batch: bytes | bytearray | memoryview) -> Iterator[Entry]:
    """The keys and values of a batch in order; a control batch has none.

    The CRC is the caller's to check; whatever the bytes are, the only exception is JournalError.
    """
    try:
        if read_header(batch).is_control:
            return
        for record in iter_records(batch):
            if record.key is None:
                raise JournalError(f"the record at offset {record.offset} has no key")
            yield record.key, record.value
    except KafkaError as error:
        raise JournalError(f"a batch cannot be read: {error}") from error
