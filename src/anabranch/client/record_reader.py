"""Records out of what a fetch brought."""

from collections.abc import Iterator

from anabranch.client.errors import CorruptRecordsError
from anabranch.client.workload import FetchedRecord
from anabranch.model.errors import KafkaError


def read_records(content: bytes | memoryview) -> Iterator[tuple[list[FetchedRecord], int]]:
    """The records of each batch, and the offset after it; CorruptRecordsError when one is broken.

    A batch that was cut off by the end of the answer comes again with the next fetch.
    """
    if not content:
        return
    # Late, because it brings the libraries for compressed records with it.
    from anabranch.wire.record_batch import crc_ok, iter_headers, iter_records

    view = memoryview(content)
    try:
        for position, header in iter_headers(view):
            size = header.size_bytes
            if not crc_ok(view, position, size):
                raise CorruptRecordsError(
                    f"the batch at offset {header.base_offset} does not match its checksum"
                )
            if header.is_control:
                yield [], header.next_offset
                continue
            records = [
                FetchedRecord._make(record)
                for record in iter_records(view[position : position + size])
            ]
            yield records, header.next_offset
    except KafkaError as error:
        raise CorruptRecordsError(error.message) from error
