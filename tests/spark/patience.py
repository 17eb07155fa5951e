"""Patience with a busy machine: Spark gives its Python processes ten seconds to start, no more."""

from collections.abc import Callable
from typing import TypeVar

from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")

TOO_SLOW = "Python worker failed to connect back"
_ATTEMPTS = 5


def patiently(work: Callable[[], T]) -> T:
    """Do it again when a Python process of Spark's was too slow to start; all else is raised."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return work()
        except Exception as error:
            if TOO_SLOW not in str(error):
                raise
    return work()


def run_to_end(start: Callable[[], StreamingQuery]) -> None:
    """An AvailableNow query from start to end; one that could not start goes on by checkpoint."""

    def run() -> None:
        query = start()
        assert query.awaitTermination(150), query.status

    patiently(run)
