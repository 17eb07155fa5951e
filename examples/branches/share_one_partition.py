"""One partition, many ordinary consumers: first on the plain topic, then on a branch topic.

    python share_one_partition.py [--own-broker]

Creates a topic with one partition and a branch topic over it, produces orders of some customers,
lets a group of workers (worker.py, as processes) handle all of them from the plain topic and then
another group from the branch topic, and tells what they did: how long it took, who did how much,
and whether any customer's orders were handled out of order. What it made it deletes in the end.
"""

import argparse
import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

WORKER = Path(__file__).with_name("worker.py")
ANSWER_S = 5.0  # how long a broker that is there takes to answer, at most
SILENCE_S = 60.0  # how long workers may do nothing at all before that is an error


class ExampleError(Exception):
    """What happened - why - what to do next."""


@dataclass
class Run:
    """What a group of workers did with one topic."""

    topic: str
    shares: list[int]
    orders: list[dict[str, Any]] = field(default_factory=list)

    @property
    def took_s(self) -> float:
        """From the first order begun to the last one done; joining the group does not count."""
        return max(o["done_at"] for o in self.orders) - min(o["began_at"] for o in self.orders)

    @property
    def busy(self) -> int:
        return sum(share > 0 for share in self.shares)

    def customers_out_of_order(self) -> int:
        """How many customers had an order handled after a later one of theirs."""
        last: dict[str, int] = {}
        wrong = set()
        for order in sorted(self.orders, key=lambda order: order["began_at"]):
            if order["order"] < last.get(order["customer"], -1):
                wrong.add(order["customer"])
            last[order["customer"]] = order["order"]
        return len(wrong)


def main() -> int:
    options = parse_options()
    try:
        with contextlib.ExitStack() as stack:
            bootstrap = options.bootstrap_server
            if options.own_broker:
                bootstrap = stack.enter_context(own_broker())
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            check_reachable(admin, bootstrap)
            stack.enter_context(topics(admin, options))
            produce(bootstrap, options)
            plain, branched = (
                run_workers(bootstrap, topic, options)
                for topic in (options.topic, branch_topic(options))
            )
            report(plain, branched, options)
    except ExampleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Share one partition among many ordinary consumers, in order."
    )
    add = parser.add_argument
    add("--bootstrap-server", default="localhost:9092", help="the broker (default: %(default)s)")
    add("--own-broker", action="store_true", help="start a broker on a free port for this")
    add("--topic", default="orders", help="the topic to create (default: %(default)s)")
    add("--branches", type=int, default=24, help="key ranges of it (default: %(default)s)")
    add("--workers", type=int, default=8, help="consumers in the group (default: %(default)s)")
    add("--orders", type=int, default=5000, help="records (default: %(default)s)")
    add("--customers", type=int, default=100, help="keys (default: %(default)s)")
    add("--work-ms", type=float, default=2, help="work on each order (default: %(default)s)")
    add("--keep", action="store_true", help="leave topics and groups, to look at them")
    options = parser.parse_args()
    for name in ("branches", "workers", "orders", "customers"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.work_ms < 0:
        parser.error("--work-ms must not be negative")
    return options


def branch_topic(options: argparse.Namespace) -> str:
    return f"{options.topic}.by-key"


# The broker and its topics ------------------------------------------------------------------------


@contextlib.contextmanager
def own_broker() -> Iterator[str]:
    """A broker of our own, on a free port, with its data in a folder that goes away."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": f"{folder}/data",
            # How long a new group waits for more members; all of ours start at once.
            "group.initial.rebalance.delay.ms": "1500",
        }
        overrides = [f"--override={name}={value}" for name, value in settings.items()]
        log = Path(folder, "broker.log")
        with log.open("w") as errors:
            broker = subprocess.Popen(
                [sys.executable, "-m", "anabranch.cli", "serve", *overrides],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={name: v for name, v in os.environ.items() if not name.startswith("KAFKA_")},
                start_new_session=True,  # Ctrl-C is for this program, which stops it then
            )
        try:
            wait_until_it_listens(broker, port, log)
            yield f"127.0.0.1:{port}"
        finally:
            broker.terminate()
            broker.wait(30)


def wait_until_it_listens(broker: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while broker.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    why = (log.read_text().strip().splitlines() or ["it does not listen"])[-1]
    raise ExampleError(f"the broker did not start - {why} - try `anabranch serve` by itself")


def check_reachable(admin: AdminClient, bootstrap: str) -> None:
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    next_step = (
        "start one with `make run`, name another with --bootstrap-server, or use --own-broker"
    )
    try:
        # The client would go on trying where nothing listens; this says so at once.
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
        admin.list_topics(timeout=ANSWER_S)
    except ValueError as error:
        raise ExampleError(f"no broker at {bootstrap} - not HOST:PORT - {next_step}") from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ExampleError(f"no broker at {bootstrap} - {why} - {next_step}") from error
    except KafkaException as error:
        why = error.args[0].str()
        raise ExampleError(f"no broker at {bootstrap} - {why} - {next_step}") from error


@contextlib.contextmanager
def topics(admin: AdminClient, options: argparse.Namespace) -> Iterator[None]:
    """The topic and the branch topic over it, until the example is over."""
    made: list[str] = []
    try:
        create(admin, NewTopic(options.topic, 1))
        made.insert(0, options.topic)
        # All there is to it: a topic whose source is named.
        config = {"branch.source.topic": options.topic}
        create(admin, NewTopic(branch_topic(options), options.branches, config=config))
        made.insert(0, branch_topic(options))  # a topic goes after its branch topics
        yield
    finally:
        if not options.keep:
            delete(admin, made)


def create(admin: AdminClient, topic: NewTopic) -> None:
    try:
        admin.create_topics([topic])[topic.topic].result(30)
    except KafkaException as error:
        next_step = "look at the broker's log"
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            next_step = f"delete it (`anabranch topics delete {topic.topic}`) or use --topic"
        elif error.args[0].code() == KafkaError.INVALID_CONFIG:
            next_step = "branch topics need an Anabranch broker; start one with `make run`"
        why = error.args[0].str()
        raise ExampleError(f"topic {topic.topic} was not created - {why} - {next_step}") from error


def delete(admin: AdminClient, names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(KafkaException):
            admin.delete_consumer_groups([group_of(name)])[group_of(name)].result(30)
        with contextlib.suppress(KafkaException):
            admin.delete_topics([name])[name].result(30)


def group_of(topic: str) -> str:
    return f"workers-of-{topic}"


def produce(bootstrap: str, options: argparse.Namespace) -> None:
    """Orders of all customers in turn; the key says whose, the value counts."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(options.orders):
        producer.produce(options.topic, str(number), f"customer-{number % options.customers}")
        producer.poll(0)
    left = producer.flush(30)
    if left:
        raise ExampleError(f"{left} orders were not written - no answer - look at the broker's log")


# The workers --------------------------------------------------------------------------------------


def run_workers(bootstrap: str, topic: str, options: argparse.Namespace) -> Run:
    """Let a group of workers handle all orders of a topic."""
    command = [sys.executable, str(WORKER), bootstrap, group_of(topic), topic, str(options.work_ms)]
    workers = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(options.workers)
    ]
    try:
        return follow(workers, topic, options)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.communicate(timeout=30)


def follow(workers: list[subprocess.Popen[str]], topic: str, options: argparse.Namespace) -> Run:
    """Listen to the workers until every order was handled."""
    run = Run(topic, [0] * len(workers))
    told: queue.Queue[tuple[int, str]] = queue.Queue()
    for number, worker in enumerate(workers):
        threading.Thread(target=listen, args=(number, worker, told), daemon=True).start()
    handled: set[int] = set()
    ready: set[int] = set()
    progress = Progress(topic, options)
    while len(handled) < options.orders:
        try:
            number, line = told.get(timeout=SILENCE_S)
        except queue.Empty:
            raise ExampleError(
                f"the workers stopped at {len(handled)} of {options.orders} orders - nothing "
                "happened for a minute - look at the broker's log"
            ) from None
        if not line:
            progress.end()
            assert workers[number].stderr is not None
            why = (workers[number].stderr.read().strip().splitlines() or ["it ended"])[-1]
            raise ExampleError(f"worker {number} failed - {why} - look at the broker's log")
        event = json.loads(line)
        if event["event"] == "ready":
            ready.add(number)
            if len(ready) == len(workers):
                let_go(workers)
        else:
            handled.add(event["order"])
            run.orders.append(event)
            run.shares[number] += 1
            progress.show(len(handled), run.busy)
    progress.end()
    return run


def let_go(workers: list[subprocess.Popen[str]]) -> None:
    """Let all join at once, so that the group is complete from the start."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()


def listen(number: int, worker: subprocess.Popen[str], told: queue.Queue[tuple[int, str]]) -> None:
    assert worker.stdout is not None
    with contextlib.suppress(ValueError):  # closed, because the run is over
        for line in worker.stdout:
            told.put((number, line))
        told.put((number, ""))


# What is told -------------------------------------------------------------------------------------


class Progress:
    """A line that is written over and over, where there is a terminal to write it to."""

    def __init__(self, topic: str, options: argparse.Namespace) -> None:
        self._topic = topic
        self._options = options
        self._shown_at = 0.0
        self._is_shown = sys.stderr.isatty()
        if self._is_shown:
            self._write(f"{topic}: {options.workers} workers join their group ...")

    def show(self, handled: int, busy: int) -> None:
        now = time.monotonic()
        if not self._is_shown or now - self._shown_at < 0.1:
            return
        self._shown_at = now
        total = self._options.orders
        bar = "#" * (30 * handled // total)
        self._write(
            f"{self._topic}: [{bar:<30}] {handled} of {total} orders, "
            f"{busy} of {self._options.workers} workers"
        )

    def end(self) -> None:
        if self._is_shown:
            self._write("")

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def report(plain: Run, branched: Run, options: argparse.Namespace) -> None:
    width = max(len(branched.topic), len("TOPIC"))
    print(f"{'TOPIC':<{width}}  PARTITIONS  WORKERS BUSY  SECONDS  CUSTOMERS OUT OF ORDER")
    for run, partitions in ((plain, 1), (branched, options.branches)):
        print(
            f"{run.topic:<{width}}  {partitions:>10}  {run.busy:>7} of {options.workers:<2}"
            f"  {run.took_s:>7.2f}  {run.customers_out_of_order():>9} of {options.customers}"
        )
    shares = " ".join(str(share) for share in sorted(branched.shares, reverse=True))
    print(f"\nOrders by worker, {branched.topic}: {shares}")
    print(
        f"{plain.took_s / branched.took_s:.1f} times as fast with the same {options.workers} "
        f"workers; {branched.customers_out_of_order()} of {options.customers} customers saw their "
        "orders out of order."
    )
    if options.keep:
        print(f"Look on: anabranch groups describe {group_of(branched.topic)}")


if __name__ == "__main__":
    sys.exit(main())
