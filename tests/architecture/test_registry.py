"""The registry is the truth about what is served: advertised, readable, answerable."""

import inspect
import re
import sys

import pytest

from anabranch.handlers import api_versions
from anabranch.handlers.registry import ROUTES
from anabranch.handlers.route import Route
from anabranch.server.dispatch import Dispatch
from anabranch.wire.messages.table import APIS

CASES = [
    (route, version)
    for route in ROUTES.values()
    for version in range(route.versions.first, route.versions.last + 1)
]


def _case_id(value: object) -> str:
    return value.api.name if isinstance(value, Route) else str(value)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_advertised_is_served() -> None:
    """ApiVersions names exactly the APIs of the registry, each with its range."""
    advertised = {
        entry.api_key: (entry.min_version, entry.max_version) for entry in api_versions._served
    }
    assert advertised == {
        key: (route.advertised.first, route.advertised.last) for key, route in ROUTES.items()
    }
    for key, route in ROUTES.items():
        assert route.api.key == key
        assert route.advertised.first >= route.versions.first
        assert route.advertised.last <= route.versions.last


def test_every_api_that_can_be_read_is_served() -> None:
    """A message table without a handler, or the reverse, is a leftover."""
    assert {api.key: api.name for api in APIS.values()} == {
        key: route.api.name for key, route in ROUTES.items()
    }


@pytest.mark.parametrize("route", ROUTES.values(), ids=_case_id)
def test_handlers_are_named_after_their_api(route: Route) -> None:
    """Handler and messages of an API lie in files of its name, and say which API it is."""
    snake = _snake(route.api.name)
    assert route.handle.__module__ == f"anabranch.handlers.{snake}"
    assert route.api.request.__module__ == f"anabranch.wire.messages.{snake}"
    docstring = inspect.getdoc(sys.modules[route.handle.__module__]) or ""
    assert docstring.startswith(f"{route.api.name} ({route.api.key})"), docstring.splitlines()[0]


@pytest.mark.parametrize(("route", "version"), CASES, ids=_case_id)
def test_codecs(route: Route, version: int) -> None:
    """Every version that is served has codecs, and its empty answer can be written and read."""
    api = route.api
    prepared = Dispatch(None, ROUTES).prepare(api.key, version)  # type: ignore[arg-type]
    assert prepared is not None and prepared.decode is not None
    assert callable(api.encode_request(version))
    answer = api.response()
    body = memoryview(b"".join(prepared.encode(answer)))
    read, end = api.decode_response(version)(body, 0)
    assert end == len(body)
    assert isinstance(read, api.response)
