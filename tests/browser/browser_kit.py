"""What the browser's tests share: the broker with its console, members, and looking at pages."""

import contextlib
import json
import queue
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response

from support.broker_process import BrokerProcess
from support.topics import create_topic

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
# A limit for what is waited for; nothing is expected to take so long.
LIMIT_S = 90
WIDE, NARROW = 1280, 390


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def eventually(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """The first true outcome of a condition."""
    deadline = time.monotonic() + limit_s
    while not (outcome := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.05)
    return outcome


# Members ----------------------------------------------------------------------------------------


class Member:
    """A member in a process of its own; see `member.py`."""

    def __init__(self, kind: str, bootstrap: str, group: str, topic: str, client_id: str) -> None:
        self.kind, self.group, self.client_id = kind, group, client_id
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("member.py")),
                *(kind, bootstrap, group, topic, client_id),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.events: list[dict[str, Any]] = []
        self._told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            self.events.append(event)
            if event["event"] == "told":
                self._told.put(event)

    def ask(self, command: str = "tell") -> dict[str, Any]:
        """What the member knows now."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._told.get(timeout=LIMIT_S)

    def wait_for_assignment(self) -> None:
        eventually(
            lambda: any(
                event["event"] == "assigned" and (event.get("partitions") or event.get("ranges"))
                for event in list(self.events)
            ),
            f"{self.client_id} is assigned something",
        )

    def kill(self) -> None:
        """As a crash would end it: the group hears nothing."""
        self._process.kill()
        self._end()

    def leave(self) -> None:
        """In order."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


# The world --------------------------------------------------------------------------------------


class World:
    """A broker whose console may act, and whoever talks to it."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://localhost:{port}"
        self.broker = BrokerProcess(
            folder / "data",
            {
                "console.listeners": f"localhost:{port}",
                "console.read.only": "false",
                "group.consumer.session.timeout.ms": "10000",
                "group.consumer.min.session.timeout.ms": "10000",
                "group.consumer.heartbeat.interval.ms": "1000",
                "group.consumer.min.heartbeat.interval.ms": "1000",
                "group.initial.rebalance.delay.ms": "0",
                "coop.resplit.enable": "false",
            },
        )
        self.broker.start()
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self._members: list[Member] = []

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        wanted = {key.replace("_", "."): value for key, value in configs.items()}
        create_topic(self.bootstrap, name, partitions, wanted)

    def produce(self, topic: str, count: int, partition: int | None = None) -> None:
        """Records with many keys, when the broker has them."""
        for number in range(count):
            place = {} if partition is None else {"partition": partition}
            self._producer.produce(
                topic, json.dumps({"number": number}), key=f"customer-{number % 50}", **place
            )
        assert self._producer.flush(LIMIT_S) == 0

    def hire(self, kind: str, group: str, topic: str, client_id: str) -> Member:
        member = Member(kind, self.bootstrap, group, topic, client_id)
        self._members.append(member)
        return member

    @contextlib.contextmanager
    def members(self, kind: str, group: str, topic: str, *names: str) -> Iterator[list[Member]]:
        """Members that have what they are to have; they leave in the end."""
        hired = [self.hire(kind, group, topic, name) for name in names]
        try:
            for member in hired:
                member.wait_for_assignment()
            yield hired
        finally:
            self.dismiss(hired)

    def dismiss(self, members: Sequence[Member]) -> None:
        for member in members:
            if member in self._members:
                self._members.remove(member)
                member.leave()

    def forget(self, member: Member) -> None:
        """One that was killed."""
        self._members.remove(member)

    def get_json(self, path: str) -> Any:
        """What the console exports."""
        with urllib.request.urlopen(self.url + path, timeout=LIMIT_S) as answer:
            return json.load(answer)

    def close(self) -> None:
        self.dismiss(list(self._members))
        self.broker.kill()


# Pages ------------------------------------------------------------------------------------------


class Watched:
    """A page of the browser, and what went wrong in it."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.troubles: list[str] = []
        self.page.set_default_timeout(LIMIT_S * 1000)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"script: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._answered)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"console {message.type}: {message.text}")

    def _failed(self, request: Request) -> None:
        # A stream has no other end than that somebody goes to another page.
        if request.resource_type != "eventsource":
            self.troubles.append(f"request: {request.url} {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.troubles.append(f"answer: {response.url} {response.status}")

    def open(self, address: str) -> None:
        """Go there, until the page is live if it is one that is."""
        self.page.goto(address, wait_until="load")
        if self.page.query_selector("#live"):
            eventually(lambda: self.page.inner_text("#live-state") == "live", f"{address} is live")

    def table(self, name: str) -> list[dict[str, str]]:
        """The rows that a table shows, by the heads of its columns."""
        rows: list[dict[str, str]] = self.page.evaluate(
            """name => {
              const section = document.getElementById('table-' + name);
              if (!section) return [];
              const heads = [...section.querySelectorAll('th')].map(one => one.innerText.trim());
              return [...section.querySelectorAll('tbody tr')].map(row => Object.fromEntries(
                [...row.cells].map((cell, i) => [heads[i], cell.innerText.trim()])));
            }""",
            name,
        )
        return rows

    def fact(self, name: str) -> str:
        """The value beside a name in a list of facts."""
        value: str = self.page.evaluate(
            """name => { const found = [...document.querySelectorAll('dt')].find(
                 one => one.innerText.trim() == name);
               return found ? found.nextElementSibling.innerText.trim() : ''; }""",
            name,
        )
        return value


@contextlib.contextmanager
def watched(
    browser: Browser,
    width: int = WIDE,
    theme: str = "light",
    **options: Any,
) -> Iterator[Watched]:
    """A page in a context of its own; whatever went wrong in it fails the test."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=theme,  # type: ignore[arg-type]
        **options,
    )
    try:
        found = Watched(context)
        yield found
        assert not found.troubles
    finally:
        context.close()


def number_in(text: str) -> int | None:
    """A number as pages write it."""
    digits = text.replace(",", "").strip()
    return int(digits) if digits.isdigit() else None
