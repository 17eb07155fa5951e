"""The frame around every page: who asks gets a page, its live stream, or a table of it.

A page is made by one coroutine, `make(request, console) -> Page`, that looks at the broker and
renders nothing. What becomes of it is up to the request:

    GET /groups?q=pay&sort=-lag      the page as HTML
    ... with Accept: text/event-stream   its inner part, again whenever it has changed
    ... &format=csv | json [&table=name]  all rows of a table, as filtered

so that every page is live, shareable by its address, and exportable without code of its own.
`?every=5` sets the seconds between two looks of a stream.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from anabranch.broker.broker import Broker
from anabranch.broker.survey_reading import Slices
from anabranch.config.console_settings import CONSOLE_READ_ONLY
from anabranch.console import words
from anabranch.console.guard import ActionRefusedError
from anabranch.console.record_reading import RecordReader
from anabranch.console.tables import Table, export_csv, export_json
from anabranch.console.throughput import Throughput
from anabranch.console.topic_lags import LagsByTopic
from anabranch.console.vitals import VitalsReader
from anabranch.model.errors import KafkaError
from anabranch.observe import logs

EVERY_DEFAULT_S = 1.0
_EVERY_MIN_S, _EVERY_MAX_S = 0.5, 60.0
# Each stream has the page made again and again; more of them than that are no people.
_STREAMS_MAX = 100
NAVIGATION = (
    ("Overview", "/"),
    ("Topics", "/topics"),
    ("Groups", "/groups"),
    ("Transactions", "/transactions"),
    ("Configuration", "/configuration"),
)


class Console:
    """What pages share: the broker, the templates, and when to stop."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        # Every form has it; see `guard`.
        self.token = secrets.token_urlsafe(24)
        # Set when the broker stops: streams end.
        self.stopping = asyncio.Event()
        self.streams = 0
        # One thread for whatever reads files: who opens ten pages waits, the broker does not.
        self.background = ThreadPoolExecutor(1, thread_name_prefix="console")
        self.records = RecordReader(self.background)
        self.topic_lags = LagsByTopic()
        self.throughput = Throughput(broker)
        self.vitals = VitalsReader(broker, self.background)
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        self.templates.filters.update(words.FILTERS)
        self.templates.globals.update(
            version=version("anabranch"),
            cluster_id=broker.cluster_id,
            node_id=broker.node_id,
            navigation=NAVIGATION,
            token=self.token,
        )

    def close(self) -> None:
        """Nobody is answered any more."""
        self.throughput.stop()
        self.background.shutdown(wait=False, cancel_futures=True)

    @property
    def read_only(self) -> bool:
        return self.broker.settings.get_bool(CONSOLE_READ_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page shows: a template with its values, and the tables in it."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Table[Any]] = ()
    # (text, address) of the pages above this one.
    crumbs: Sequence[tuple[str, str]] = ()
    status_code: int = 200
    # Whether it changes by itself; a form that somebody fills in must not.
    is_live: bool = True


MakePage = Callable[[Request, Console], Awaitable[Page | Response]]


def page_route(path: str, make: MakePage) -> Route:
    """The route of a page that is read with GET."""

    async def answer(request: Request) -> Response:
        console: Console = request.app.state.console
        if "text/event-stream" in request.headers.get("accept", ""):
            return _stream(request, console, make)
        page = await make(request, console)
        return (
            page if isinstance(page, Response) else await respond_in_turns(request, console, page)
        )

    return Route(path, answer, methods=["GET"], name=path)


def action_route(path: str, make: MakePage) -> Route:
    """The route of an action; its coroutine begins with `guard.check_action`."""

    async def answer(request: Request) -> Response:
        console: Console = request.app.state.console
        try:
            page = await make(request, console)
        except ActionRefusedError as error:
            page = _error_page(403, str(error))
        return page if isinstance(page, Response) else respond(request, console, page)

    return Route(path, answer, methods=["POST"], name=f"POST {path}")


def not_found(what: str) -> HTTPException:
    """To raise where what a path names is not there; a sentence."""
    return HTTPException(404, what)


async def respond_in_turns(request: Request, console: Console, page: Page) -> Response:
    """As `respond`, without keeping the loop for long."""
    if _wanted_file(request, page):
        return respond(request, console, page)
    return _around(request, console, page, await render_in_turns(request, console, page))


def respond(request: Request, console: Console, page: Page) -> Response:
    """A page as HTML, or one of its tables as a file."""
    wanted = _wanted_file(request, page)
    if not wanted:
        return _around(request, console, page, render_inner(request, console, page))
    name = request.query_params.get("table", page.tables[0].name)
    table = next((table for table in page.tables if table.name == name), None)
    if table is None:
        raise not_found(f"This page has no table named {name!r}.")
    return export_csv(table) if wanted == "csv" else export_json(table)


def _wanted_file(request: Request, page: Page) -> str:
    wanted = request.query_params.get("format", "")
    return wanted if wanted in ("csv", "json") and page.tables else ""


def _around(request: Request, console: Console, page: Page, inner: str) -> Response:
    """The frame around the inner part of a page."""
    html = console.templates.get_template("frame.html").render(
        page=page,
        inner=inner,
        path=request.url.path,
        query=request.query_params,
        read_only=console.read_only,
    )
    return HTMLResponse(html, page.status_code, headers={"cache-control": "no-store"})


def render_inner(request: Request, console: Console, page: Page) -> str:
    """The part of a page that changes."""
    values = _values(request, console, page)
    return console.templates.get_template(page.template).render(values)


async def render_in_turns(request: Request, console: Console, page: Page) -> str:
    """The same, half a millisecond at a time: clients of the broker must not feel who watches."""
    slices = Slices()
    for table in page.tables:
        await table.make_body(slices)
    pieces: list[str] = []
    template = console.templates.get_template(page.template)
    for piece in template.generate(_values(request, console, page)):
        pieces.append(piece)
        if slices.is_over:
            await slices.pause()
    return "".join(pieces)


def _values(request: Request, console: Console, page: Page) -> dict[str, Any]:
    return {
        "page": page,
        "path": request.url.path,
        "query": request.query_params,
        "now_ms": console.broker.now_ms(),
        "read_only": console.read_only,
        "tables": {table.name: table for table in page.tables},
        **page.values,
    }


def _stream(request: Request, console: Console, make: MakePage) -> Response:
    if console.streams >= _STREAMS_MAX:
        raise HTTPException(503, f"{_STREAMS_MAX} pages are live already. Close some of them.")
    try:
        every_s = float(request.query_params.get("every", EVERY_DEFAULT_S))
    except ValueError:
        every_s = EVERY_DEFAULT_S
    every_s = min(max(every_s, _EVERY_MIN_S), _EVERY_MAX_S)
    return StreamingResponse(
        _events(request, console, make, every_s),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _events(
    request: Request, console: Console, make: MakePage, every_s: float
) -> AsyncIterator[str]:
    """The inner part of a page, now and whenever it has changed, until somebody stops."""
    console.streams += 1
    last = ""
    try:
        while not console.stopping.is_set():
            html = await _look(request, console, make)
            if html is None:
                return
            if html != last:
                last = html
                yield f"event: page\ndata: {json.dumps(html)}\n\n"
            else:
                yield f"event: same\ndata: {console.broker.now_ms()}\n\n"
            try:
                async with asyncio.timeout(every_s):
                    await console.stopping.wait()
            except TimeoutError:
                pass
    finally:
        console.streams -= 1


async def _look(request: Request, console: Console, make: MakePage) -> str | None:
    """The inner part of a page now; None when it leads somewhere else."""
    try:
        page = await make(request, console)
        if isinstance(page, Response):
            return None
        return await render_in_turns(request, console, page)
    except (HTTPException, KafkaError) as error:
        # It is gone, or cannot be read now; the next look may find it again.
        return render_inner(request, console, _error_page(404, _sentence(error)))
    except Exception as error:
        return render_inner(request, console, _failed_page(request, error))


async def show_error(request: Request, error: Exception) -> Response:
    """A page for what went wrong; the log has the rest."""
    console: Console = request.app.state.console
    if isinstance(error, HTTPException):
        page = _error_page(error.status_code, _sentence(error))
    elif isinstance(error, KafkaError):
        page = _error_page(503, _sentence(error))
    else:
        page = _failed_page(request, error)
    return respond(request, console, page)


def _failed_page(request: Request, error: Exception) -> Page:
    """A bug, which is told to the log and must not end anything else."""
    logs.error("console.page.failed", path=request.url.path, error=repr(error))
    return _error_page(500, "This page could not be made; the broker's log says why.")


def _sentence(error: HTTPException | KafkaError) -> str:
    if isinstance(error, KafkaError):
        return error.message
    return "There is no such page." if error.detail == "Not Found" else error.detail


def _error_page(status_code: int, sentence: str) -> Page:
    return Page(
        template="error.html",
        title="Not found" if status_code == 404 else "Not done",
        values={"sentence": sentence},
        status_code=status_code,
        is_live=False,
    )
