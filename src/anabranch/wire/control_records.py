"""Transaction markers: control batches of one record that end a producer's transaction (KIP-98).

The record's key is a version and a type, its value a version and the epoch of the coordinator that
had it written.
"""

from struct import Struct
from typing import Final

from anabranch.wire.record_batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    Record,
    build_batch,
    iter_records,
)

ABORT: Final = 0
COMMIT: Final = 1

_VERSION = 0
_KEY = Struct(">hh")
_VALUE = Struct(">hi")


def build_marker(
    control_type: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
) -> bytes:
    """The batch that commits or aborts a producer's transaction in one partition."""
    record = Record(
        offset=0,
        timestamp=timestamp,
        key=_KEY.pack(_VERSION, control_type),
        value=_VALUE.pack(_VERSION, coordinator_epoch),
    )
    return build_batch(
        [record],
        base_offset=0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=CONTROL_FLAG | TRANSACTIONAL_FLAG,
    )


def read_marker(batch: bytes | memoryview) -> tuple[int, int]:
    """The type of a control batch, and its coordinator's epoch; -1 where it says neither.

    Other types than those above are of other uses than transactions.
    """
    record = next(iter(iter_records(batch)), None)
    if record is None or record.key is None or len(record.key) < _KEY.size:
        return -1, -1
    _, control_type = _KEY.unpack_from(record.key)
    if record.value is None or len(record.value) < _VALUE.size:
        return control_type, -1
    return control_type, _VALUE.unpack_from(record.value)[1]
