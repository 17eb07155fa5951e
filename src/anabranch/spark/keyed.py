"""Work by key inside the tasks, in the order of the topic, without a shuffle.

    def bill(key: bytes, rows: pa.Table) -> dict[str, object]:
        ...
    bills = keyed_map(orders, bill, "customer binary, total double")

The source puts all records of a key into one task, in offset order, and micro-batches run one after
the other; so a function that is called inside the tasks sees each key's records in order. Spark's
own grouping would first move every row to another task.

Rules
- The scope is the task. `each="key"` calls the function once for each key of the task, with all of
  its rows, however many Arrow batches they came in: they are kept until the task has been read.
- `each="record"` calls it for one row after the other as they come, and keeps nothing.
- Rows that Spark has moved before have no order to rely on. Offsets of a partition that go back
  inside a task are an error, where the columns that show it are there.
- Results have the types of the schema: what does not fit is an error that names the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructType,
    VariantType,
)

from anabranch.spark.worker_gc import freeze_gc_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_PER_BATCH = 10_000
# What shows that rows are still in the order of their topic.
_PLACE = ("topic", "partition")
_OFFSET = "offset"
_UNHASHABLE = (ArrayType, MapType, StructType, VariantType)

Each = Literal["key", "record"]
Rows = Iterator[pa.RecordBatch]


def keyed_map(
    df: DataFrame,
    fn: Callable[[Any, Any], Any],
    schema: StructType | str,
    *,
    key: str = "key",
    each: Each = "key",
) -> DataFrame:
    """A frame of what `fn` makes of the rows of each key, in their order, without a shuffle.

    `fn(key, rows)` gets the key and a `pyarrow.Table` of its rows; with `each="record"`,
    `fn(key, row)` gets one row as a dict. It returns or yields rows of `schema` (dicts, or tuples
    in its order) or Arrow tables and batches with its columns; one row alone will do, and `None`.

    `key` must be the column with the record's key, or one that the record's key determines:
    otherwise its rows are in several tasks. Rows without a key are one group in each task.
    Works on streams and batches, in classic sessions and through Spark Connect.
    """
    check_key(df.schema, key)
    if each not in ("key", "record"):
        raise ValueError(f"each must be 'key' or 'record', not {each!r}")
    result_schema = _parsed(df, schema)
    work = Work(fn, to_arrow_schema(result_schema, timezone="UTC"), key)
    return df.mapInArrow(work.by_key if each == "key" else work.by_record, result_schema)


def check_key(schema: StructType, key: str) -> None:
    """ValueError, saying what to do, when rows cannot be told apart by the column."""
    types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    if key not in types:
        raise ValueError(
            f"keyed_map needs the column {key!r}, and the frame has {', '.join(types) or 'none'};"
            " keep the source's key column in select(), or name another with key="
        )
    if isinstance(types[key], _UNHASHABLE):
        raise ValueError(
            f"keyed_map cannot tell keys apart by the column {key!r}, which is"
            f" {types[key].simpleString()}; take the record's key, or one of its fields"
        )


def _parsed(df: DataFrame, schema: StructType | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    # By the session, because only it can parse DDL, be it here or behind Spark Connect.
    return df.sparkSession.createDataFrame([], schema).schema


class Work:
    """The function with the types of its results; goes to the executors with the query."""

    def __init__(self, fn: Callable[[Any, Any], Any], schema: pa.Schema, key: str) -> None:
        self._fn = fn
        self._schema = schema
        self._key = key

    def by_key(self, batches: Rows) -> Rows:
        """The results for each key of a task, in the order in which keys first come up."""
        freeze_gc_once()
        order = _OrderCheck()
        chunks = [order.checked(batch) for batch in batches if batch.num_rows]
        if not chunks:
            return
        results = _Results(self._schema)
        for key, rows in groups(pa.Table.from_batches(chunks).combine_chunks(), self._key):
            try:
                results.add(self._fn(key, rows))
            except Exception as error:
                error.add_note(f"keyed_map: key {key!r}, {_where(rows.slice(0, 1).to_pylist()[0])}")
                raise
            yield from results.full()
        yield from results.rest()

    def by_record(self, batches: Rows) -> Rows:
        """The results for each row of a task, after each Arrow batch those of its rows."""
        freeze_gc_once()
        order = _OrderCheck()
        results = _Results(self._schema)
        for batch in batches:
            for row in order.checked(batch).to_pylist():
                try:
                    results.add(self._fn(row[self._key], row))
                except Exception as error:
                    error.add_note(f"keyed_map: key {row[self._key]!r}, {_where(row)}")
                    raise
            yield from results.rest()


def groups(table: pa.Table, key: str) -> Iterator[tuple[Any, pa.Table]]:
    """Each key with its rows, which stay in order; keys in the order of their first rows."""
    codes = table.column(key).combine_chunks().dictionary_encode("encode")
    numbers = codes.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=len(codes.dictionary)))
    grouped = table.take(pa.array(order))
    start = 0
    for value, end in zip(codes.dictionary.to_pylist(), ends.tolist(), strict=True):
        yield value, grouped.slice(start, end - start)
        start = end


def _where(row: Mapping[str, Any]) -> str:
    """The place of a row in its topic, as far as its columns tell."""
    known = [f"{name} {row[name]}" for name in (*_PLACE, _OFFSET) if row.get(name) is not None]
    return ", ".join(known) or "a row without a place"


class _Results:
    """Rows that functions returned, until they are Arrow batches."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = list(schema.names)
        self._known = frozenset(schema.names)
        self._rows: list[Mapping[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []

    def add(self, result: Any) -> None:
        if result is None:
            return
        if isinstance(result, (pa.Table, pa.RecordBatch)):
            self._flush()
            self._batches += self._typed(result)
        elif isinstance(result, (Mapping, tuple)):
            self._rows.append(self._row(result))
        elif isinstance(result, Iterable) and not isinstance(result, (str, bytes)):
            for one in result:
                if isinstance(one, (pa.Table, pa.RecordBatch)):
                    self.add(one)
                else:
                    self._rows.append(self._row(one))
        else:
            raise TypeError(
                f"a function of keyed_map returned {type(result).__name__}; it may return rows as"
                " dicts or tuples, an iterable of them, Arrow tables, or None"
            )

    def full(self) -> Rows:
        """What is worth sending already."""
        if len(self._rows) >= ROWS_PER_BATCH or self._batches:
            yield from self.rest()

    def rest(self) -> Rows:
        self._flush()
        ready, self._batches = self._batches, []
        yield from ready

    def _row(self, result: Any) -> Mapping[str, Any]:
        if isinstance(result, Mapping):
            if not result.keys() <= self._known:
                unknown = ", ".join(sorted(map(str, result.keys() - self._known)))
                raise ValueError(f"not in the schema of keyed_map: {unknown}")
            return result
        if isinstance(result, tuple):
            if len(result) != len(self._names):
                raise ValueError(
                    f"a row of {len(result)} values, where the schema of keyed_map has"
                    f" {len(self._names)}: {', '.join(self._names)}"
                )
            return dict(zip(self._names, result, strict=True))
        raise TypeError(f"a row must be a dict or a tuple, not {type(result).__name__}")

    def _flush(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._batches.append(pa.RecordBatch.from_pylist(rows, schema=self._schema))

    def _typed(self, result: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
        table = pa.Table.from_batches([result]) if isinstance(result, pa.RecordBatch) else result
        if missing := self._known - set(table.column_names):
            raise ValueError(f"columns of keyed_map's schema are missing: {sorted(missing)}")
        if not table.num_rows:
            return []
        typed = table.select(self._names).cast(self._schema)
        return cast(list[pa.RecordBatch], typed.combine_chunks().to_batches())


class _OrderCheck:
    """Offsets of each partition go up inside a task, or rows were moved before they came here."""

    def __init__(self) -> None:
        self._last: dict[tuple[Any, Any], int] = {}

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = set(batch.schema.names)
        if batch.num_rows and names.issuperset({*_PLACE, _OFFSET}):
            table = pa.Table.from_batches([batch]).select([*_PLACE, _OFFSET])
            for place, rows in _by_place(table):
                offsets = rows.column(_OFFSET).to_numpy()
                if offsets[0] <= self._last.get(place, -1) or (np.diff(offsets) <= 0).any():
                    raise ValueError(
                        f"rows of {place[0]}-{place[1]} are not in the order of their offsets: a"
                        " shuffle or a sort came before keyed_map, which relies on the order in"
                        " which the source delivers them; call it first"
                    )
                self._last[place] = int(offsets[-1])
        return batch


def _by_place(table: pa.Table) -> Iterator[tuple[tuple[Any, Any], pa.Table]]:
    """The rows of each partition; nearly always there is one, since a task reads one."""
    topics, partitions = (table.column(name).unique() for name in _PLACE)
    if len(topics) == len(partitions) == 1:
        yield (topics[0].as_py(), partitions[0].as_py()), table
        return
    for topic, of_topic in groups(table, "topic"):
        for partition, rows in groups(of_topic, "partition"):
            yield (topic, partition), rows
