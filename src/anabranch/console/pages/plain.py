"""What machines ask for: whether the broker serves, and its metrics."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


async def health(request: Request) -> Response:
    return PlainTextResponse("ok\n")


ROUTES = [Route("/health", health, methods=["GET"])]
