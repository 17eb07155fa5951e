"""An ordinary Kafka consumer: it subscribes to a topic, works on each order, and commits.

    python worker.py BOOTSTRAP GROUP TOPIC WORK_MS

Nothing in it knows of branches. For the program that started it, it waits for a line on stdin, so
that all workers begin together, prints one JSON line for each order, and leaves its group in order
on SIGTERM.
"""

import json
import signal
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException

is_stopping = False


def stop(*_: object) -> None:
    global is_stopping
    is_stopping = True


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    bootstrap, group, topic, work_ms = sys.argv[1:]
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started it
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,  # an order counts when it is done, not when it comes
            "log_level": 0,
        }
    )
    tell(event="ready")
    sys.stdin.readline()
    consumer.subscribe([topic])
    while not is_stopping:
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        began_at = time.monotonic()
        time.sleep(float(work_ms) / 1000)  # here is the work
        consumer.store_offsets(message)
        tell(
            event="done",
            customer=message.key().decode(),
            order=int(message.value()),
            began_at=began_at,
            done_at=time.monotonic(),
        )
    consumer.close()


if __name__ == "__main__":
    main()
