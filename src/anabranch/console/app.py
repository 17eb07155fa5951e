"""All that the console answers: pages, static files, metrics and health."""

import ipaddress
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from anabranch.console.frame import Console, show_error
from anabranch.console.guard import SafeHeaders
from anabranch.console.pages import ROUTES

_STATIC = Path(__file__).parent / "static"
_LOOPBACK_HOSTS = ["localhost", "127.0.0.1", "[::1]", "::1"]


def make_app(console: Console, host: str) -> Starlette:
    """The application of one broker, bound to a host."""
    middleware = [Middleware(SafeHeaders)]
    if ipaddress.ip_address(host).is_loopback:
        # A page of another site may have its name point here (DNS rebinding); it is then asked for
        # under that name.
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=_LOOPBACK_HOSTS))
    app = Starlette(
        routes=[*ROUTES, Mount("/static", StaticFiles(directory=_STATIC), name="static")],
        middleware=middleware,
        exception_handlers={Exception: show_error, 404: show_error},
    )
    app.state.console = console
    return app
