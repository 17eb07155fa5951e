"""OffsetDelete through librdkafka's C interface.

librdkafka can delete committed offsets, and confluent-kafka, which brings it along, has no Python
method for it. Its functions are called directly instead: one client of our own in the same library,
one request, one answer. That keeps every way to reach a broker (TLS, SASL) that the other commands
have.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.connection import Troubles, client_config
from anabranch.cli.errors import CliError, refusal
from anabranch.cli.groups.lookup import TopicPartitionKey
from anabranch.cli.options import Connection

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_PRODUCER: Final = 0  # the kind of client that admin calls are made with
_CONF_OK: Final = 0
_ERROR_BYTES: Final = 512


class _TopicPartition(ctypes.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("error", ctypes.c_int),
        ("private", ctypes.c_void_p),
    )


class _TopicPartitionList(ctypes.Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = (
        ("count", ctypes.c_int),
        ("size", ctypes.c_int),
        ("elements", ctypes.POINTER(_TopicPartition)),
    )


_Function = Callable[..., Any]
_POINTER: Final = ctypes.c_void_p
_LIST_POINTER: Final = ctypes.POINTER(_TopicPartitionList)
_TEXT: Final = ctypes.c_char_p
_INT: Final = ctypes.c_int
_SIZE: Final = ctypes.c_size_t

# Result and arguments of what is called, under names without the common rd_kafka_.
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "conf_new": (_POINTER, ()),
    "conf_set": (_INT, (_POINTER, _TEXT, _TEXT, _TEXT, _SIZE)),
    "conf_destroy": (None, (_POINTER,)),
    "new": (_POINTER, (_INT, _POINTER, _TEXT, _SIZE)),
    "destroy": (None, (_POINTER,)),
    "queue_new": (_POINTER, (_POINTER,)),
    "queue_destroy": (None, (_POINTER,)),
    "queue_poll": (_POINTER, (_POINTER, _INT)),
    "event_destroy": (None, (_POINTER,)),
    "event_error": (_INT, (_POINTER,)),
    "event_DeleteConsumerGroupOffsets_result": (_POINTER, (_POINTER,)),
    "topic_partition_list_new": (_LIST_POINTER, (_INT,)),
    "topic_partition_list_add": (_POINTER, (_LIST_POINTER, _TEXT, ctypes.c_int32)),
    "topic_partition_list_destroy": (None, (_LIST_POINTER,)),
    "DeleteConsumerGroupOffsets_new": (_POINTER, (_TEXT, _LIST_POINTER)),
    "DeleteConsumerGroupOffsets_destroy": (None, (_POINTER,)),
    "DeleteConsumerGroupOffsets": (
        None,
        (_POINTER, ctypes.POINTER(_POINTER), _SIZE, _POINTER, _POINTER),
    ),
    "DeleteConsumerGroupOffsets_result_groups": (
        ctypes.POINTER(_POINTER),
        (_POINTER, ctypes.POINTER(_SIZE)),
    ),
    "group_result_error": (_POINTER, (_POINTER,)),
    "group_result_partitions": (_LIST_POINTER, (_POINTER,)),
    "error_code": (_INT, (_POINTER,)),
}


def _library() -> dict[str, _Function]:
    """librdkafka's functions; CliError where this build of confluent-kafka hides them."""
    from confluent_kafka import cimpl

    # Looked up through the extension module, whose dependencies are searched as well: wherever
    # librdkafka is, and whatever its file is called, this is the copy that is loaded already.
    library = ctypes.CDLL(str(cimpl.__file__))
    functions: dict[str, _Function] = {}
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, f"rd_kafka_{name}")
        except AttributeError:
            raise CliError(
                "Offsets cannot be deleted from here",
                "this build of confluent-kafka does not let its librdkafka be called",
                "install confluent-kafka from its published wheels, or use kafka-consumer-groups",
            ) from None
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


def delete_committed_offsets(
    connection: Connection, group: str, partitions: list[TopicPartitionKey]
) -> "dict[TopicPartitionKey, KafkaError]":
    """Delete; the partitions that were refused, or CliError when the group was."""
    from confluent_kafka import KafkaError

    call = _library()
    with _client(call, connection) as client, _queue(call, client) as queue:
        with _request(call, group, partitions) as request:
            requests = (_POINTER * 1)(request)
            call["DeleteConsumerGroupOffsets"](client, requests, 1, None, queue)
        with _answer(call, queue, connection) as event:
            code = call["event_error"](event)
            refused: dict[TopicPartitionKey, KafkaError] = {}
            if not code:
                code, refused = _outcome(call, event)
    if code:
        raise refusal(f"Offsets of group {group!r} were not deleted", KafkaError(code))
    return refused


def _outcome(
    call: dict[str, _Function], event: int
) -> "tuple[int, dict[TopicPartitionKey, KafkaError]]":
    """The group's error code, and the partitions with an error of their own."""
    from confluent_kafka import KafkaError

    result = call["event_DeleteConsumerGroupOffsets_result"](event)
    count = _SIZE()
    group = call["DeleteConsumerGroupOffsets_result_groups"](result, ctypes.byref(count))[0]
    error = call["group_result_error"](group)
    if error:
        return call["error_code"](error), {}
    found = call["group_result_partitions"](group).contents
    elements = [found.elements[i] for i in range(found.count)]
    return 0, {
        (each.topic.decode(), each.partition): KafkaError(each.error)
        for each in elements
        if each.error
    }


# What the library hands out is given back in the reverse order ----------------------------------


@contextmanager
def _client(call: dict[str, _Function], connection: Connection) -> Iterator[int]:
    properties = client_config(connection, Troubles())
    properties["socket.timeout.ms"] = max(10, int(connection.timeout_s * 1000))
    why = ctypes.create_string_buffer(_ERROR_BYTES)
    conf = call["conf_new"]()
    for name, value in properties.items():
        if callable(value):
            continue
        if (
            call["conf_set"](conf, name.encode(), str(value).encode(), why, _ERROR_BYTES)
            != _CONF_OK
        ):
            call["conf_destroy"](conf)
            raise _unusable(why)
    client = call["new"](_PRODUCER, conf, why, _ERROR_BYTES)
    if not client:
        call["conf_destroy"](conf)
        raise _unusable(why)
    try:
        yield client
    finally:
        call["destroy"](client)


@contextmanager
def _queue(call: dict[str, _Function], client: int) -> Iterator[int]:
    queue = call["queue_new"](client)
    try:
        yield queue
    finally:
        call["queue_destroy"](queue)


@contextmanager
def _request(
    call: dict[str, _Function], group: str, partitions: list[TopicPartitionKey]
) -> Iterator[int]:
    listed = call["topic_partition_list_new"](len(partitions))
    for topic, partition in partitions:
        call["topic_partition_list_add"](listed, topic.encode(), partition)
    request = call["DeleteConsumerGroupOffsets_new"](group.encode(), listed)
    call["topic_partition_list_destroy"](listed)  # copied into the request
    try:
        yield request
    finally:
        call["DeleteConsumerGroupOffsets_destroy"](request)


@contextmanager
def _answer(call: dict[str, _Function], queue: int, connection: Connection) -> Iterator[int]:
    """The result event; short waits in between keep Ctrl-C working."""
    deadline_s = time.monotonic() + connection.timeout_s + 5
    event = None
    while not event and time.monotonic() < deadline_s:
        event = call["queue_poll"](queue, 100)
    if not event:
        raise CliError("Offsets were not deleted", "the broker did not answer", "raise --timeout")
    try:
        yield event
    finally:
        call["event_destroy"](event)


def _unusable(why: Any) -> CliError:
    reason = why.value.decode(errors="replace")
    return CliError(
        "Cannot set up the Kafka client", reason, "correct it in the --command-config file"
    )
