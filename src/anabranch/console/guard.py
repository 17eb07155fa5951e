"""What keeps other sites, and accidents, from acting through the console.

- Reading needs nothing. Acting needs `console.read.only=false`, a POST, and the token that every
  form of ours carries: a page of another site can send a form here, but cannot read the token.
- Every action leaves a line in the broker's log, done or refused.
- Pages run no script and load no style but our own files.
"""

import hmac
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anabranch.config.console_settings import CONSOLE_READ_ONLY
from anabranch.observe import logs

TOKEN_FIELD = "token"
# A checkbox for each of ten thousand partitions.
_FORM_MAX_BYTES = 1024 * 1024

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
    form = await _form(request)
    if not hmac.compare_digest(str(form.get(TOKEN_FIELD, "")).encode(), token.encode()):
        refuse(
            request,
            "The form is from before the broker's last start. Load the page again and repeat it.",
        )
    return form


async def _form(request: Request) -> FormData:
    """The fields of a form, which has no files in it: what is sent otherwise has none."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_MAX_BYTES:
            refuse(request, "The form is too large. Choose less at once.")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = ""
    fields: list[tuple[str, str | UploadFile]] = [*parse_qsl(text, keep_blank_values=True)]
    return FormData(fields)


def refuse(request: Request, why: str) -> NoReturn:
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
