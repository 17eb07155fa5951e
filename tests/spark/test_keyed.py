"""keyed_map without Spark: groups, order, types of results, and what is refused."""

import collections
import random
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from anabranch.spark import keyed
from anabranch.spark.keyed import Work, check_key, groups
from anabranch.spark.source_schema import kafka_schema

COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
RESULT = pa.schema([("key", pa.binary()), ("total", pa.int64())])


def rows(keys: Iterable[bytes | None], *, first: int = 0, partition: int = 0) -> pa.RecordBatch:
    """One Arrow batch; the value of a row is its offset."""
    content = [
        {
            "key": key,
            "value": str(offset).encode(),
            "topic": "orders",
            "partition": partition,
            "offset": offset,
        }
        for offset, key in enumerate(keys, start=first)
    ]
    return pa.RecordBatch.from_pylist(content, schema=COLUMNS)


def by_key(fn: Callable[[Any, Any], Any], *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    made = Work(fn, RESULT, "key").by_key(iter(batches))
    return [row for batch in made for row in checked(batch).to_pylist()]


def by_record(fn: Callable[[Any, Any], Any], *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    made = Work(fn, RESULT, "key").by_record(iter(batches))
    return [row for batch in made for row in checked(batch).to_pylist()]


def checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Spark takes each batch as it is: its schema must be the declared one to the letter."""
    assert batch.schema.equals(RESULT)
    return batch


def sums(key: bytes | None, table: pa.Table) -> tuple[bytes | None, int]:
    return key, sum(int(value) for value in table.column("value").to_pylist())


# Groups and order ---------------------------------------------------------------------------------


def test_each_key_is_called_once_with_all_its_rows_in_order() -> None:
    """A key whose rows came in several Arrow batches is one call, with its offsets ascending."""
    chosen = random.Random(8)
    keys = [chosen.choice([b"a", b"b", b"", None, b"hot"]) for _ in range(1000)]
    batches = [rows(keys[i : i + 70], first=i) for i in range(0, 1000, 70)]
    seen: dict[bytes | None, list[int]] = {}

    def note(key: bytes | None, table: pa.Table) -> None:
        assert key not in seen
        assert set(table.column("key").to_pylist()) == {key}
        seen[key] = table.column("offset").to_pylist()

    assert by_key(note, *batches) == []
    expected: dict[bytes | None, list[int]] = collections.defaultdict(list)
    for offset, key in enumerate(keys):
        expected[key].append(offset)
    assert seen == expected
    assert list(seen) == list(expected), "keys come in the order of their first rows"


def test_each_record_is_called_as_it_comes() -> None:
    """Row after row; the results of a batch are out before the next one is asked for."""
    seen: list[int] = []

    def note(key: bytes, row: dict[str, Any]) -> tuple[bytes, int]:
        assert row["key"] == key
        seen.append(row["offset"])
        return key, row["offset"]

    source = iter([rows([b"a", b"b"]), rows([b"a"], first=2)])
    made = Work(note, RESULT, "key").by_record(source)
    assert next(made).num_rows == 2
    assert seen == [0, 1], (
        "the second batch is not asked for before the first one's results are out"
    )
    assert [batch.num_rows for batch in made] == [1]
    assert seen == [0, 1, 2]


def test_groups_of_other_types_and_of_one_row() -> None:
    """Keys may be strings or numbers, and a single row is a group."""
    table = pa.table({"key": ["b", "a", "b", None], "n": [1, 2, 3, 4]})
    found = [(key, group.column("n").to_pylist()) for key, group in groups(table, "key")]
    assert found == [("b", [1, 3]), ("a", [2]), (None, [4])]
    assert [key for key, _ in groups(pa.table({"n": [7]}), "n")] == [7]


def test_a_task_without_rows_has_no_results() -> None:
    """Neither form calls its function, or sends an empty batch."""

    def refuse(key: object, rows: object) -> None:
        raise AssertionError

    assert by_key(refuse) == by_key(refuse, rows([])) == by_record(refuse, rows([])) == []


def test_many_results_are_sent_in_several_batches() -> None:
    """Results do not pile up until the end of the task."""
    keys = [b"%d" % number for number in range(2 * keyed.ROWS_PER_BATCH + 5)]
    made = Work(lambda key, _: (key, 1), RESULT, "key").by_key(iter([rows(keys)]))
    sizes = [batch.num_rows for batch in made]
    assert sizes == [keyed.ROWS_PER_BATCH, keyed.ROWS_PER_BATCH, 5]


# Rows that were moved -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batches",
    [
        [rows([b"a"], first=5), rows([b"a"], first=4)],
        [rows([b"a"], first=5), rows([b"a"], first=5)],
        [rows([b"a", b"b", b"a"]).take(pa.array([0, 2, 1]))],
        [rows([b"a", b"b", b"a"]).take(pa.array([0, 1, 1]))],
    ],
)
def test_offsets_that_go_back_are_refused(batches: list[pa.RecordBatch]) -> None:
    """Rows that a shuffle has mixed are an error that says what came before keyed_map."""
    with pytest.raises(ValueError, match=r"orders-0 are not in the order.*call it first"):
        by_key(sums, *batches)
    with pytest.raises(ValueError, match="orders-0 are not in the order"):
        by_record(lambda key, row: None, *batches)


def test_a_task_may_have_several_partitions() -> None:
    """A coalesced task reads one partition after the other, or by turns: each is in order."""
    mixed = pa.concat_batches([rows([b"a", b"b"], partition=1), rows([b"a", b"c"], partition=0)])
    later = rows([b"a"], first=2, partition=1)
    found = {row["key"]: row["total"] for row in by_key(sums, mixed, later)}
    assert found == {b"a": 2, b"b": 1, b"c": 1}


def test_frames_without_offsets_are_taken_as_they_are() -> None:
    """Where the columns that show the order were left out, nothing is checked."""
    batch = rows([b"a", b"a"]).select(["key", "value"]).take(pa.array([1, 0]))
    assert by_key(sums, batch) == [{"key": b"a", "total": 1}]


# Results ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        (b"a", 3),
        {"key": b"a", "total": 3},
        [(b"a", 3)],
        [{"total": 3, "key": b"a"}],
        pa.table({"total": [3], "key": [b"a"]}),
        pa.table({"total": pa.array([3], pa.int8()), "key": [b"a"], "other": ["x"]}),
        pa.RecordBatch.from_pylist([{"key": b"a", "total": 3}]),
        iter([pa.table({"total": [3], "key": [b"a"]})]),
    ],
)
def test_results_have_the_types_of_the_schema(result: Any) -> None:
    """Rows, iterables of rows and Arrow data all become batches of the declared schema."""
    assert by_key(lambda key, table: result, rows([b"a"])) == [{"key": b"a", "total": 3}]


def test_rows_and_tables_keep_their_order() -> None:
    """A generator may mix them."""

    def mixed(key: bytes, table: pa.Table) -> Any:
        yield key, 1
        yield pa.table({"key": [key], "total": [2]})
        yield {"key": key}

    totals = [row["total"] for row in by_key(mixed, rows([b"a"]))]
    assert totals == [1, 2, None]


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        ({"key": b"a", "sum": 1}, ValueError, "not in the schema of keyed_map: sum"),
        ((b"a",), ValueError, "a row of 1 values.*has 2: key, total"),
        (b"text", TypeError, "returned bytes"),
        (7, TypeError, "returned int"),
        ([7], TypeError, "a row must be a dict or a tuple, not int"),
        (pa.table({"key": [b"a"]}), ValueError, r"missing: \['total'\]"),
        ((b"a", "many"), pa.ArrowInvalid, "many"),
        (pa.table({"key": [b"a"], "total": ["many"]}), pa.ArrowInvalid, "many"),
    ],
)
def test_results_that_do_not_fit_are_refused(
    result: Any, error: type[Exception], message: str
) -> None:
    """The error says what is wrong, and nothing is left out in silence."""
    with pytest.raises(error, match=message):
        by_key(lambda key, table: result, rows([b"a"]))


def test_errors_of_the_function_name_the_record() -> None:
    """Which key and which place it was, beside the function's own error."""

    def fail(key: bytes, _: object) -> None:
        if key == b"bad":
            raise KeyError("price")

    with pytest.raises(KeyError) as caught:
        by_key(fail, rows([b"a", b"bad", b"b"], partition=4))
    note = "keyed_map: key b'bad', topic orders, partition 4, offset 1"
    assert caught.value.__notes__ == [note]
    with pytest.raises(KeyError) as caught:
        by_record(fail, rows([b"a", b"bad", b"b"], partition=4))
    assert caught.value.__notes__ == [note]


# Keys ---------------------------------------------------------------------------------------------


def test_a_frame_without_its_key_is_refused() -> None:
    """The error names the columns that are there, and what to do."""
    schema = kafka_schema(include_headers=True)
    check_key(schema, "key")
    without = StructType([field for field in schema if field.name != "key"])
    with pytest.raises(ValueError, match=r"needs the column 'key'.*value, topic.*select\(\)"):
        check_key(without, "key")
    with pytest.raises(ValueError, match="cannot tell keys apart by the column 'headers'"):
        check_key(schema, "headers")
