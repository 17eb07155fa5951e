"""Rows, rate and lag of a batch, out of what Spark reports of it."""

from anabranch.spark.listener import BatchProgress, lag_between, progress_of

END = '{"orders": {"0": 10, "1": 5}, "__from__": {"orders": {"0": 0, "1": 0}}}'


def test_lag_is_the_difference() -> None:
    """Of all partitions; one that is new counts whole, and nothing counts below zero."""
    assert lag_between(END, {"orders": {"0": 12, "1": 5, "2": 7}}) == 9
    assert lag_between({"orders": {"0": 10}}, {"orders": {"0": 8}}) == 0
    assert lag_between(None, '{"orders": {"0": 3}}') == 3
    for strange in (None, "null", "12", "not json", {}):
        assert lag_between(END, strange) == 0


def test_progress_in_one_line() -> None:
    """What a person wants to know of a batch, summed over sources."""
    source = {"numInputRows": 15, "processedRowsPerSecond": 30.4, "endOffset": END}
    found = progress_of(
        {
            "id": "x",
            "name": "billing",
            "batchId": 3,
            "durationMs": {"triggerExecution": 500},
            "sources": [{**source, "latestOffset": {"orders": {"0": 12, "1": 5}}}, {}],
        }
    )
    assert found == BatchProgress("billing", 3, 15, 30.4, 2, 500)
    assert str(found) == "billing: batch 3, 15 rows, 30 rows/s, lag 2, 500 ms"
    assert progress_of({"id": "x", "name": None, "batchId": 0, "sources": None}).query == "x"
