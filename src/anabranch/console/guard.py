"""What keeps other sites, and accidents, from acting through the console.

- Reading needs nothing. Acting needs `console.read.only=false`, a POST, and the token that every
  form of ours carries: a page of another site can send a form here, but cannot read the token.
- Every action leaves a line in the broker's log, done or refused.
- Pages run no script and load no style but our own files.
"""

import hmac
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anabranch.config.console_settings import CONSOLE_READ_ONLY
from anabranch.observe import logs

TOKEN_FIELD = "token"

_CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
]


class ActionRefusedError(Exception):
    """An action that is not to be done; the text is for the person who asked for it."""


async def check_action(request: Request, token: str, *, read_only: bool) -> Mapping[str, Any]:
    """The fields of a form that may be acted upon; ActionRefusedError when it may not."""
    if read_only:
        refuse(
            request,
            f"The console only shows: {CONSOLE_READ_ONLY} is true. Start the broker with "
            f"--override {CONSOLE_READ_ONLY}=false to act here, or use the command line.",
        )
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        refuse(request, "This request came from another site. Open the console and try again.")
    form = await request.form()
    if not hmac.compare_digest(str(form.get(TOKEN_FIELD, "")).encode(), token.encode()):
        refuse(
            request,
            "The form is from before the broker's last start. Load the page again and repeat it.",
        )
    return form


def refuse(request: Request, why: str) -> None:
    """Tell the log, and end the action."""
    audit(request, "console.action.refused", reason=why)
    raise ActionRefusedError(why)


def audit(request: Request, event: str, **fields: object) -> None:
    """Leave a line about what somebody did."""
    host = request.client.host if request.client else "?"
    logs.info(event, path=request.url.path, client=host, **fields)


class SafeHeaders:
    """Adds the headers that browsers go by to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        await self._app(scope, receive, send_with_headers)
