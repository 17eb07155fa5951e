"""What machines ask for: the broker's metrics, whether it runs, and whether it serves."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from anabranch.broker.health import Health, health, readiness
from anabranch.broker.metrics_text import render_metrics
from anabranch.console.frame import Console

_NOT_KEPT = {"cache-control": "no-store"}


async def metrics(request: Request) -> Response:
    console: Console = request.app.state.console
    body, content_type = await render_metrics(console.broker, request.headers.get("accept", ""))
    return Response(body, headers={**_NOT_KEPT, "content-type": content_type})


async def alive(request: Request) -> Response:
    console: Console = request.app.state.console
    return _answer(health(console.broker))


async def ready(request: Request) -> Response:
    console: Console = request.app.state.console
    return _answer(await readiness(console.broker))


def _answer(found: Health) -> Response:
    return PlainTextResponse(found.text, 200 if found.is_ok else 503, headers=_NOT_KEPT)


ROUTES = [
    Route("/metrics", metrics, methods=["GET"]),
    Route("/health", alive, methods=["GET"]),
    Route("/ready", ready, methods=["GET"]),
]
