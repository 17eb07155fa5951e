"""Records that keep coming at an even rate, for parts where members come and go."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from types import TracebackType

from cooperative_load import BATCH_RECORDS, Load, Sender, draw_keys, make_load
from server_process import ServerProcess


class Stream:
    """A producer in a thread; its lifetime is a `with` block."""

    def __init__(self, server: ServerProcess, topic: str, load: Load, rate_per_s: float) -> None:
        self._sender = Sender(server, topic)
        self._load = load
        self._rate_per_s = rate_per_s
        self._must_end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        # The first offset of each batch, and when it was answered.
        self._firsts: list[int] = []
        self._answered_ns: list[int] = []

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._must_end.set()
        self._thread.join()
        self._sender.close()
        if self._error is not None and error is None:
            raise self._error

    @property
    def sent(self) -> int:
        """How many records were written."""
        return len(self._answered_ns) * self._load.batch_records

    @property
    def is_over(self) -> bool:
        """Whether there are no more records."""
        return not self._thread.is_alive()

    def arrived_ns(self, offset: int) -> int:
        """When a record was in the log."""
        return self._answered_ns[bisect_right(self._firsts, offset) - 1]

    def _run(self) -> None:
        try:
            due_s = time.monotonic()
            for number, batch in enumerate(self._load.batches):
                if self._must_end.wait(max(0.0, due_s - time.monotonic())):
                    return
                self._sender.send([batch])
                self._firsts.append(number * self._load.batch_records)
                self._answered_ns.append(time.monotonic_ns())
                due_s += self._load.batch_records / self._rate_per_s
        except BaseException as error:
            self._error = error


def stream_load(
    distribution: str, keys: int, *, rate_per_s: int, seconds: float, tick_s: float = 0.02
) -> Load:
    """Records for so long, in batches of one tick each."""
    size = min(BATCH_RECORDS, max(1, round(rate_per_s * tick_s)))
    count = round(rate_per_s * seconds) // size * size
    return make_load(draw_keys(distribution, keys, count), size)


def percentile(values: Sequence[float], part: float) -> float:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * round(part * 1000) // 1000) - 1))]
