"""The frame of the console: loaded when it is needed, live, guarded, and gone with the broker."""

import asyncio
import logging
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from page_kit import LIMIT_S, PageSite, at_page_site
from starlette.requests import Request

from anabranch.config.load import load_settings
from anabranch.config.metrics_settings import Address
from anabranch.console import frame, listener
from anabranch.console.guard import ActionRefusedError, check_action
from anabranch.observe.logs import LOGGER
from anabranch.server import run
from anabranch.server.run import Server

PAGES = ("/", "/topics", "/transactions", "/configuration", "/search?q=x")


class Events(logging.Handler):
    """What the broker's code logged in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append((record.getMessage(), getattr(record, "fields", {})))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [fields for found, fields in self.all if found == name]


@pytest.fixture
def events() -> Iterator[Events]:
    handler, level = Events(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


# Starting and stopping ----------------------------------------------------------------------------

_LAZY = """
import asyncio, http.client, sys
from anabranch.config.load import load_settings
from anabranch.server import run
from anabranch.server.run import Server

def loaded():
    return {name for name in ("starlette", "uvicorn", "jinja2") if name in sys.modules}

def ask(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/health")
    return connection.getresponse().status

async def play():
    server = Server(load_settings(environ={}, overrides=[
        f"log.dirs={sys.argv[1]}", "listeners=PLAINTEXT://127.0.0.1:0",
        "console.listeners=localhost:0"]))
    await server.start()
    before = loaded()
    assert server._console_listeners[0]._loading is None
    status = await asyncio.to_thread(ask, int(server.console_urls[0].rpartition(":")[2]))
    print(sorted(before), status, sorted(loaded()))
    await server.stop()

asyncio.run(play())
"""


def test_nothing_is_loaded_before_somebody_comes(tmp_path: Path) -> None:
    """A broker whose console nobody opens has not even imported what would serve it."""
    done = subprocess.run(
        [sys.executable, "-c", _LAZY, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.strip() == "[] 200 ['jinja2', 'starlette', 'uvicorn']", done.stderr


def test_serve_names_the_console_and_stops_with_streams_open(tmp_path: Path) -> None:
    """The banner has the address; a page that is watched keeps no broker from stopping in order."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "anabranch.cli", "serve"),
            *("--override", f"log.dirs={tmp_path}"),
            *("--override", "listeners=PLAINTEXT://127.0.0.1:0"),
            *("--override", "console.listeners=localhost:0"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        banner = ""
        while "settings" not in banner:
            line = process.stdout.readline()  # type: ignore[union-attr]
            assert line, process.stderr.read()  # type: ignore[union-attr]
            banner += line
        url = re.search(r"console +(http://localhost:(\d+))", banner)
        assert url is not None, banner
        with urlopen(url[1], timeout=LIMIT_S) as answer:
            assert b"Overview" in answer.read()
        with closing(socket.create_connection(("127.0.0.1", int(url[2])), LIMIT_S)) as stream:
            stream.sendall(
                b"GET / HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n"
            )
            assert b"200 OK" in stream.recv(4096)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
        assert "ERROR" not in errors, errors
    finally:
        process.kill()
        process.communicate()


def test_address_that_was_asked_for_must_be_free(tmp_path: Path) -> None:
    """A broker that was told where its console is does not start without it, and says why."""

    async def play(port: int) -> None:
        overrides = [
            f"log.dirs={tmp_path}",
            "listeners=PLAINTEXT://127.0.0.1:0",
            f"console.listeners=localhost:{port}",
        ]
        server = Server(load_settings(environ={}, overrides=overrides))
        try:
            with pytest.raises(OSError, match=rf"console\.listeners: localhost:{port}"):
                await server.start()
        finally:
            await server.stop()

    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        asyncio.run(play(taken.getsockname()[1]))


def test_default_address_may_be_in_use(
    tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second broker on a machine goes without a console and says so; it serves all the same."""

    async def play() -> None:
        overrides = [f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0"]
        server = Server(load_settings(environ={}, overrides=overrides))
        await server.start()
        try:
            assert server.console_urls == []
            assert len(server.addresses) == 1
        finally:
            await server.stop()

    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        # The default itself may be anybody's while tests run.
        address = Address("localhost", taken.getsockname()[1])
        monkeypatch.setattr(run, "parse_address", lambda entry: address)
        asyncio.run(play())
    (told,) = events.of("console.address.in.use")
    assert told == {"address": "localhost:8080", "setting": "console.listeners"}


def test_console_that_cannot_be_loaded_harms_nobody(
    tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without what serves it there is no console; the broker goes on, and stops in order."""

    def broken() -> Any:
        raise ImportError("no starlette here")

    async def scenario(site: PageSite) -> None:
        with pytest.raises(OSError):
            await site.ask("/")
        await site.produce("orders", [("k", "v")])

    monkeypatch.setattr(listener, "_import_maker", broken)
    at_page_site(tmp_path, scenario)
    (told,) = events.of("console.failed")
    assert "no starlette here" in told["error"]


# Pages --------------------------------------------------------------------------------------------


def test_every_answer_has_the_headers_that_browsers_go_by(tmp_path: Path) -> None:
    """No script but our own, no frame around a page, nothing kept: pages, errors and files."""

    async def scenario(site: PageSite) -> None:
        for path in (*PAGES, "/nowhere", "/static/console.js", "/metrics", "/topics?format=csv"):
            answer = await site.ask(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["x-content-type-options"] == "nosniff"
            if not path.startswith("/static"):
                assert answer.headers["cache-control"] == "no-store", path
            assert answer.status == (404 if path == "/nowhere" else 200), path
            assert "style=" not in answer.text or path.startswith("/static")

    at_page_site(tmp_path, scenario)


def test_pages_stand_on_their_own(tmp_path: Path) -> None:
    """Every page of the navigation is whole without JavaScript, and leads to all others."""

    async def scenario(site: PageSite) -> None:
        for path in PAGES:
            html = await site.page(path)
            for _, address in frame.NAVIGATION:
                assert f'href="{address}"' in html
            assert html.count("<main") == 1
            assert html.count("<h1") == 1
        not_there = await site.ask("/topics/none")
        assert not_there.status == 404
        assert "There is no topic none." in not_there.text
        assert (await site.ask("/topics", "POST")).status == 405

    at_page_site(tmp_path, scenario)


def test_other_names_of_this_machine_are_refused(tmp_path: Path) -> None:
    """A site that has its own name point here gets nothing (DNS rebinding)."""

    async def scenario(site: PageSite) -> None:
        assert (await site.ask("/topics", host="evil.example")).status == 400
        for name in ("localhost", f"localhost:{site.port}", "127.0.0.1:1", "[::1]:80"):
            assert (await site.ask("/topics", host=name)).status == 200, name

    at_page_site(tmp_path, scenario)


def test_page_that_fails_says_so_and_ends_nothing(tmp_path: Path, events: Events) -> None:
    """A bug is a line in the log and a sentence on that page; streams go on and find it mended."""

    async def scenario(site: PageSite) -> None:
        surveyor = site.broker.surveyor
        whole = surveyor.recent

        async def broken(*_: object) -> Any:
            raise RuntimeError("a bug")

        async with site.stream("/topics?every=0.5") as stream:
            assert "table-topics" in await stream.page()
            surveyor.recent = broken  # type: ignore[method-assign]
            assert "could not be made" in await stream.page()
            answer = await site.ask("/topics")
            assert answer.status == 500
            assert "a bug" not in answer.text
            surveyor.recent = whole  # type: ignore[method-assign]
            assert "table-topics" in await stream.page()
        assert "a bug" in events.of("console.page.failed")[0]["error"]

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    at_page_site(tmp_path, scenario)


# Live ---------------------------------------------------------------------------------------------


def test_stream_sends_what_has_changed(tmp_path: Path) -> None:
    """A stream has the page at once, again when something is new, and else that it is the same."""

    async def scenario(site: PageSite) -> None:
        site.broker.create_topic("first")
        async with site.stream("/topics?every=0.5") as stream:
            page = await stream.page()
            assert "first" in page and "<html" not in page
            while (await stream.event())[0] != "same":
                pass
            site.broker.create_topic("second")
            while "second" not in await stream.page():
                pass

    at_page_site(tmp_path, scenario)


def test_streams_are_counted_and_end(tmp_path: Path) -> None:
    """Whoever goes away frees a stream, there is a limit to them, and a stop ends them all."""

    async def scenario(site: PageSite) -> None:
        await site.page("/topics")
        console = site.server._console_listeners[0]._console
        assert console is not None
        async with site.stream("/topics?every=0.5") as stream:
            await stream.page()
            assert console.streams == 1
        await site.until(lambda: console.streams == 0)
        console.streams = frame._STREAMS_MAX
        refused = await site.ask("/topics", accept="text/event-stream")
        assert refused.status == 503
        assert "Close some" in refused.text
        console.streams = 0
        async with site.stream("/topics?every=60") as stream:
            await stream.page()
            console.stopping.set()
            await stream.end()
        await site.until(lambda: console.streams == 0)

    at_page_site(tmp_path, scenario)


# Actions ------------------------------------------------------------------------------------------


def posted(fields: dict[str, str], **headers: str) -> Request:
    """A form that was sent."""
    body = urlencode(fields).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    named = {"content-type": "application/x-www-form-urlencoded", **headers}
    return Request(
        {
            "type": "http",
            "method": "POST",
            "path": "/groups/x",
            "query_string": b"",
            "client": ("127.0.0.1", 1),
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in named.items()],
        },
        receive,
    )


@pytest.mark.parametrize(
    ("fields", "headers", "read_only", "why"),
    [
        ({"token": "right"}, {}, True, "console.read.only is true"),
        ({"token": "wrong"}, {}, False, "before the broker's last start"),
        ({"token": "w\u00f6"}, {}, False, "before the broker's last start"),
        ({}, {}, False, "before the broker's last start"),
        ({"token": "right"}, {"sec_fetch_site": "cross-site"}, False, "from another site"),
        ({"token": "right"}, {"sec_fetch_site": "same-site"}, False, "from another site"),
    ],
)
def test_actions_that_are_refused(
    events: Events, fields: dict[str, str], headers: dict[str, str], read_only: bool, why: str
) -> None:
    """Without the right, the token, or from another site nothing is done, and the log says so."""
    with pytest.raises(ActionRefusedError, match=re.escape(why)):
        asyncio.run(check_action(posted(fields, **headers), "right", read_only=read_only))
    (line,) = events.of("console.action.refused")
    assert why in line["reason"]
    assert (line["path"], line["client"]) == ("/groups/x", "127.0.0.1")


def test_action_that_is_allowed() -> None:
    """With the token, from our own page, the fields are there to act upon."""
    fields = {"token": "right", "to": "earliest", "group": "a/b =1&ü", "note": ""}
    request = posted(fields, sec_fetch_site="same-origin")
    form = asyncio.run(check_action(request, "right", read_only=False))
    assert dict(form) == fields


def test_forms_have_a_limit() -> None:
    """Nobody fills the broker's memory with a form."""
    request = posted({"token": "right", "more": "x" * 2_000_000})
    with pytest.raises(ActionRefusedError, match="too large"):
        asyncio.run(check_action(request, "right", read_only=False))


def test_token_is_nobody_elses(tmp_path: Path) -> None:
    """Each start has a token of its own, which is not in what other sites may read."""

    async def scenario(site: PageSite) -> None:
        await site.page("/topics")
        console = site.server._console_listeners[0]._console
        assert console is not None
        tokens.add(console.token)
        answer = await site.ask("/topics", origin="http://evil.example")
        assert not [name for name in answer.headers if name.startswith("access-control")]

    tokens: set[str] = set()
    at_page_site(tmp_path / "one", scenario)
    at_page_site(tmp_path / "two", scenario)
    assert len(tokens) == 2
    assert all(len(token) >= 32 for token in tokens)
