"""Counting requests: how many of which API, how long they took, what was wrong, how many bytes.

Every request passes here, so nothing is looked up or made for one that is answered at once and
without error: two looks at the clock, an addition to a histogram, and a function written for the
API that finds the first error in an answer. Requests that are parked cost an object more.

The errors of an answer are wherever its schema has an `error_code`; the functions are written from
the schema, as codecs are.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, TypeVar

from anabranch.broker.broker import Broker
from anabranch.broker.deferred import Deferred
from anabranch.handlers.route import Handler, RequestContext
from anabranch.model.errors import ErrorCode, KafkaError
from anabranch.observe import broker_metrics as b
from anabranch.observe.metrics import Histogram, Metric, Values
from anabranch.wire.api import Api
from anabranch.wire.messages.fetch import FETCH, FetchResponse
from anabranch.wire.schema import fields_of

T = TypeVar("T")
FindError = Callable[[Any], int]

_ERROR_FIELD = "error_code"
_DEPTH_MAX = 4


class ApiCounts:
    """What is counted of one API."""

    __slots__ = ("errors", "immediate", "parked", "parked_local")

    def __init__(self) -> None:
        # Of requests that were answered at once; of the others, until they were parked, and in all.
        self.immediate = Histogram(Histogram.FINE_BOUNDS_S)
        self.parked_local = Histogram(Histogram.FINE_BOUNDS_S)
        self.parked = Histogram(Histogram.FINE_BOUNDS_S)
        self.errors: Counter[int] = Counter()


class RequestMetrics:
    """The requests of one broker; lives on the event loop."""

    def __init__(self) -> None:
        self._apis: dict[str, ApiCounts] = {}
        # How much topics gave, by name or id as clients asked for them.
        self.bytes_out: dict[str | bytes, int] = {}

    def counted(self, api: Api, handle: Handler) -> Handler:
        """The handler of an API, with its requests counted."""
        counts = self._apis.setdefault(api.name, ApiCounts())
        find_error = self._fetch_error if api is FETCH else error_finder(api.response)
        immediate, errors = counts.immediate, counts.errors
        buckets, bounds_s = immediate.counts, immediate.bounds_s

        def handled(broker: Broker, context: RequestContext, request: Any) -> Any:
            began_s = perf_counter()
            try:
                answer = handle(broker, context, request)
            except Exception as error:
                _failed(counts, immediate, began_s, error)
                raise
            if isinstance(answer, Deferred):
                return _parked(counts, find_error, answer, began_s)
            took_s = perf_counter() - began_s
            buckets[bisect_left(bounds_s, took_s)] += 1
            immediate.sum_s += took_s
            if answer is not None and (code := find_error(answer)):
                errors[code] += 1
            return answer

        return handled

    def _fetch_error(self, answer: FetchResponse) -> int:
        """The first error of a fetch; its bytes are counted on the way."""
        code = answer.error_code
        for topic in answer.responses:
            size = 0
            for data in topic.partitions:
                if data.records:
                    size += len(data.records)
                if data.error_code and not code:
                    code = data.error_code
            if size:
                key = topic.topic or topic.topic_id
                self.bytes_out[key] = self.bytes_out.get(key, 0) + size
        return code

    def collect(self, broker: Broker) -> Iterator[tuple[Metric, Values]]:
        """What was counted; APIs that nobody has used are left out."""
        used = {name: counts for name, counts in sorted(self._apis.items()) if _count(counts)}
        requests: dict[tuple[str, ...], float] = {}
        for name, counts in used.items():
            requests[name, ErrorCode.NONE.name] = _count(counts) - counts.errors.total()
            for code, count in sorted(counts.errors.items()):
                requests[name, _name_of(code)] = count
        yield b.REQUESTS, requests
        yield (
            b.REQUEST_DURATION,
            {(name,): _sum(one.immediate, one.parked) for name, one in used.items()},
        )
        yield (
            b.REQUEST_LOCAL_DURATION,
            {(name,): _sum(one.immediate, one.parked_local) for name, one in used.items()},
        )
        yield b.BYTES_OUT, _by_name(broker, self.bytes_out)


def _parked(
    counts: ApiCounts, find_error: FindError, answer: Deferred[T], began_s: float
) -> Deferred[T]:
    """An answer that comes later, counted when it does; nothing is counted if nobody waits."""
    local_s = perf_counter() - began_s
    later: Deferred[T] = Deferred()
    later.on_cancel = answer.cancel

    def deliver(value: T) -> None:
        counts.parked_local.observe(local_s)
        counts.parked.observe(perf_counter() - began_s)
        if value is not None and (code := find_error(value)):
            counts.errors[code] += 1
        later.complete(value)

    def fail(error: Exception) -> None:
        counts.parked_local.observe(local_s)
        _failed(counts, counts.parked, began_s, error)
        later.fail(error)

    answer.deliver_to(deliver, fail)
    return later


def _failed(counts: ApiCounts, histogram: Histogram, began_s: float, error: Exception) -> None:
    histogram.observe(perf_counter() - began_s)
    code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
    counts.errors[int(code)] += 1


def _count(counts: ApiCounts) -> int:
    return counts.immediate.count + counts.parked.count


def _sum(one: Histogram, other: Histogram) -> Histogram:
    total = Histogram(one.bounds_s)
    total.counts = [a + c for a, c in zip(one.counts, other.counts, strict=True)]
    total.sum_s = one.sum_s + other.sum_s
    return total


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR.name


def _by_name(broker: Broker, counted: dict[str | bytes, int]) -> dict[tuple[str, ...], float]:
    """Bytes by the name of a topic; topics that are gone are forgotten."""
    found: dict[tuple[str, ...], float] = {}
    for key, size in list(counted.items()):
        topic = broker.topics.get(key) if isinstance(key, str) else broker.topics.get_by_id(key)
        if topic is None:
            del counted[key]
        else:
            found[(topic.name,)] = found.get((topic.name,), 0) + size
    return dict(sorted(found.items()))


# Finding errors -----------------------------------------------------------------------------------


def error_finder(response: type[Any]) -> FindError:
    """A function that gives the first error code of a response which is not 0, or 0."""
    lines = ["def find(a0):", *_search(response, 0), "    return 0"]
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    found: FindError = names["find"]
    return found


def _search(cls: type[Any], depth: int) -> list[str]:
    """The lines that look through one struct, indented for their depth."""
    indent, value = "    " * (depth + 1), f"a{depth}"
    lines: list[str] = []
    for field in fields_of(cls):
        if field.name == _ERROR_FIELD and not field.is_array:
            lines += [
                f"{indent}if {value}.{field.name}:",
                f"{indent}    return {value}.{field.name}",
            ]
        elif hasattr(field.element, "__wire_fields__") and depth < _DEPTH_MAX:
            assert isinstance(field.element, type)
            inner = _search(field.element, depth + 1)
            if inner:
                each = f"{value}.{field.name}"
                some = (
                    f"{each} or ()" if field.is_array else f"(() if {each} is None else ({each},))"
                )
                lines += [f"{indent}for a{depth + 1} in {some}:", *inner]
    return lines
