"""`format("anabranch")`: what Spark calls to read topics, and whom it asks for a writer.

Rules of the stream reader; Spark's own calls are not what one would expect (all seen in 4.3)
- `initialOffset` is asked for twice in batch 0, and again after a crash in it, and stored nowhere:
  it is remembered, and the end of batch 0 carries it (`offsets.FROM`), also when there is nothing
  in it, because Spark makes a batch 0 in any case.
- `commit` comes one batch late, and never for the last. But `latestOffset` gets the end of the last
  batch in the commit log, also when idle and at the end of AvailableNow: what is shown to the group
  is that.
- `latestOffset` is called every 10 ms while there is nothing to do: it waits for records, up to
  half a second.
- `partitions` may be called more than once for a batch, and again when it is replayed: the
  records that its splits have together are always the same, where they are cut may differ.
- `read` runs in executors, on a copy: readers hold plain data only.
"""

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from anabranch.spark import admission, offsets
from anabranch.spark.errors import OptionError
from anabranch.spark.options import SourceOptions, parse_options
from anabranch.spark.source_plan import Planner
from anabranch.spark.source_positions import Positions, describe
from anabranch.spark.source_schema import columns_of, kafka_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

LONG_POLL_MS = 500
Offset = dict[str, Any]


class AnabranchDataSource(DataSource):
    """Topics as a table or a stream, under the options of Spark's `kafka` source."""

    @classmethod
    def name(cls) -> str:
        return "anabranch"

    def schema(self) -> StructType:
        return kafka_schema(include_headers=self._checked_early().include_headers)

    def _checked_early(self) -> SourceOptions:
        """The options, refused by `load()` already if neither kind of query takes them."""
        try:
            return parse_options(self.options, is_streaming=True)
        except OptionError:
            return parse_options(self.options, is_streaming=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options, is_streaming=False)
        return BatchReader(options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options, is_streaming=True)
        return StreamReader(options, columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        writer: DataSourceWriter = _sink().batch_writer(self.options, schema, overwrite)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamWriter":
        writer: DataSourceStreamWriter = _sink().stream_writer(self.options, schema, overwrite)
        return writer


def _sink() -> Any:
    """The sink, whose module is imported where something is written."""
    return importlib.import_module("anabranch.spark.sink")


def _read(
    options: SourceOptions, columns: tuple[str, ...], partition: InputPartition
) -> Iterator[Any]:
    from anabranch.spark.source_read import read_split
    from anabranch.spark.worker_gc import freeze_gc_once

    freeze_gc_once()
    split, rule = partition.value
    return read_split(options, split, rule, columns)


class BatchReader(DataSourceReader):
    """A batch query: all records between two offsets of each partition."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        positions = Positions(self._options)
        places = positions.must_exist()
        start = positions.resolve(self._options.start, places)
        end = positions.resolve(self._options.end, places)
        return Planner(self._options, positions).partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, self._columns, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query; in the driver's process it remembers, in executors it only reads."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._positions: Positions | None = None
        self._planner: Planner | None = None
        self._initial: Offset | None = None
        self._has_planned = False
        self._target: dict[offsets.Place, int] | None = None
        self._ends: dict[offsets.Place, int] = {}
        self._topic_ids: dict[str, bytes] = {}
        self._batch_at = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        """What executors get: no more than they need to read."""
        return {"_options": self._options, "_columns": self._columns}

    @property
    def _known(self) -> Positions:
        if self._positions is None:
            self._positions = Positions(self._options)
        return self._positions

    # Where to begin, and how far to go ------------------------------------------------------------

    def initialOffset(self) -> Offset:
        if self._initial is None:
            places = self._known.must_exist()
            start = self._known.resolve(self._options.start, places)
            self._initial = offsets.to_json(start)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)  # of both there is no limit of Spark's; see `_admitted`
        return ReadMinRows(least) if least is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._known.ends(self._known.places())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        begun = offsets.from_json(start)
        self._known.commit_group(begun)
        until = time.monotonic() + LONG_POLL_MS / 1000
        while True:
            ends = self._readable_ends(begun)
            found = self._admitted(begun, ends, limit)
            if found is not None:
                self._batch_at = time.monotonic()
                return self._end_of_batch(start, found)
            left_ms = round((until - time.monotonic()) * 1000)
            if self._target is not None or left_ms <= 0:
                # The very same text: there is no batch. But Spark makes a batch 0 of nothing, too.
                return self._end_of_batch(start, begun) if self._is_first(start) else start
            self._known.wait(ends, left_ms)

    def _readable_ends(self, begun: Mapping[offsets.Place, int]) -> dict[offsets.Place, int]:
        """Up to where each partition may be read now; what is lost is told."""
        places = self._known.places()
        self._check_topics(places)
        gone = sorted(set(begun) - set(places))
        if gone:
            named = ", ".join(f"{topic}-{number}" for topic, number in gone[:5])
            self._known.lost(
                f"the checkpoint has offsets of partitions that this query"
                f" ({describe(self._options.subscription)}) does not read, or that are gone:"
                f" {named}"
            )
        if self._options.fail_on_data_loss:
            self._known.check_named(places)
        if self._target is not None:
            ends = {place: end for place, end in self._target.items() if place in places}
        else:
            ends = self._known.ends(places)
        self._ends = {**self._ends, **ends}
        for place, end in ends.items():
            if end < begun.get(place, 0):
                self._known.lost(
                    f"{place[0]}-{place[1]} ends at offset {end}, the checkpoint is at"
                    f" {begun[place]}: the topic was made again, or its log was cut"
                )
        return ends

    def _check_topics(self, places: Sequence[offsets.Place]) -> None:
        for topic in {topic for topic, _ in places}:
            topic_id = self._known.topic_id(topic)
            if self._topic_ids.setdefault(topic, topic_id) != topic_id:
                self._topic_ids[topic] = topic_id
                self._known.lost(f"topic {topic} was deleted and made again while the query ran")

    def _admitted(
        self,
        begun: dict[offsets.Place, int],
        ends: dict[offsets.Place, int],
        limit: ReadLimit,
    ) -> dict[offsets.Place, int] | None:
        """The end of a batch, or None when it is not time for one."""
        new = [place for place in ends if place not in begun]
        start = {**self._known.beginnings(new), **begun} if new else begun
        waiting = admission.waiting(start, ends)
        is_cut = any(end < begun.get(place, 0) for place, end in ends.items())
        # The engine's wish for everything goes first, and a query that ends waits for nothing.
        is_free = isinstance(limit, ReadAllAvailable) or self._target is not None
        least = None if is_free else self._options.min_offsets_per_trigger
        waited_ms = (time.monotonic() - self._batch_at) * 1000
        count = sum(waiting.values())
        if not is_cut and not admission.is_due(
            count, least, waited_ms, self._options.max_trigger_delay_ms
        ):
            return None
        if isinstance(limit, ReadMaxRows):
            return admission.limited(limit.max_rows, start, ends)
        return ends

    def _end_of_batch(self, start: Offset, end: dict[offsets.Place, int]) -> Offset:
        found = offsets.to_json(end, like=start)
        if self._is_first(start):
            return offsets.with_start(found, offsets.from_json(start))
        return found

    def _is_first(self, start: Offset) -> bool:
        """Whether the next batch is batch 0: one that is replayed was planned before this."""
        return not self._has_planned and start == self._initial

    def reportLatestOffset(self) -> Offset | None:
        return offsets.to_json(self._ends) if self._ends else None

    # Batches --------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if self._planner is None:
            self._planner = Planner(self._options, self._known)
        self._known.places()
        self._has_planned = True
        return self._planner.partitions(offsets.start_of(start, end), offsets.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, self._columns, partition)

    def commit(self, end: Offset) -> None:
        self._known.commit_group(offsets.from_json(end))

    def stop(self) -> None:
        if self._positions is not None:
            self._positions.link.close()
