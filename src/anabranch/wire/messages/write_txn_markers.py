"""WriteTxnMarkers (key 27): end a transaction in partitions, sent by coordinators and by
administrators who abort a transaction that hangs (KIP-98, KIP-664).

Version 1 is flexible, 2 says by which rules the transaction was made (KIP-1228).
"""

from anabranch.wire.api import api
from anabranch.wire.schema import Bool, Int8, Int16, Int32, Int64, String, at, struct


@struct
class WritableTxnMarkerTopic:
    name: String = at("0+")
    partition_indexes: list[Int32] = at("0+")


@struct
class WritableTxnMarker:
    producer_id: Int64 = at("0+")
    producer_epoch: Int16 = at("0+")
    transaction_result: Bool = at("0+")
    topics: list[WritableTxnMarkerTopic] = at("0+")
    coordinator_epoch: Int32 = at("0+")
    transaction_version: Int8 = at("2+", ignorable=True)


@struct
class WriteTxnMarkersRequest:
    markers: list[WritableTxnMarker] = at("0+")


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: Int32 = at("0+")
    error_code: Int16 = at("0+")


@struct
class WritableTxnMarkerTopicResult:
    name: String = at("0+")
    partitions: list[WritableTxnMarkerPartitionResult] = at("0+")


@struct
class WritableTxnMarkerResult:
    producer_id: Int64 = at("0+")
    topics: list[WritableTxnMarkerTopicResult] = at("0+")


@struct
class WriteTxnMarkersResponse:
    markers: list[WritableTxnMarkerResult] = at("0+")


WRITE_TXN_MARKERS = api(
    27,
    "WriteTxnMarkers",
    request=WriteTxnMarkersRequest,
    response=WriteTxnMarkersResponse,
    versions="1-2",
    flexible="1+",
)
