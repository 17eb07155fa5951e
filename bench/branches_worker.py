"""One stock consumer that works on its records; started by branches_work.py.

Its argument is a JSON object: the consumer's settings, the topic and the milliseconds of work for a
record. It tells what it has been assigned and what it has done as lines on stdout, and closes the
consumer when its stdin ends:

    assigned COUNT
    done KEY SEQUENCE SECONDS
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer

_PR_SET_TIMERSLACK = 29


def main() -> None:
    given = json.loads(sys.argv[1])
    must_end = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=[must_end], daemon=True).start()
    owned: set[int] = set()

    def assigned(_: Any, partitions: list[Any]) -> None:
        owned.update(partition.partition for partition in partitions)
        print("assigned", len(owned), flush=True)

    def revoked(_: Any, partitions: list[Any]) -> None:
        owned.difference_update(partition.partition for partition in partitions)
        print("assigned", len(owned), flush=True)

    _sleep_exactly()
    consumer = Consumer(given["settings"])
    consumer.subscribe([given["topic"]], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    work_s = given["work_ms"] / 1000
    while not must_end.is_set():
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        time.sleep(work_s)
        key, sequence = message.key() or b"", message.value() or b""
        print("done", key.decode(), int(sequence), f"{time.monotonic():.6f}", flush=True)
    consumer.close()


def _sleep_exactly() -> None:
    """Ask the kernel not to add its usual 50 us to every pause."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _wait_for_the_end(must_end: threading.Event) -> None:
    sys.stdin.read()
    must_end.set()


if __name__ == "__main__":
    main()
