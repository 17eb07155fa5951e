"""The page that lists the APIs this broker serves, written from the routes themselves."""

from anabranch.handlers.registry import ROUTES

_HEAD = """\
# APIs

What this broker serves, and therefore advertises in ApiVersions. Versions are those of Apache
Kafka 4; a request outside them ends the connection with a log line that says why, except
ApiVersions, which is answered in version 0 with UNSUPPORTED_VERSION. Produce 0-2 are answered with
UNSUPPORTED_FOR_MESSAGE_FORMAT: they carry message formats that Kafka 4 dropped.

This page is generated: `python -m anabranch.handlers.reference_page`.

| key | API | versions | flexible from |
|---:|---|---|---|
"""


def render() -> str:
    rows = []
    for key in sorted(ROUTES):
        route = ROUTES[key]
        first, last = route.versions.first, route.versions.last
        rows.append(f"| {key} | {route.api.name} | {first}-{last} | {route.api.first_flexible} |\n")
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    print(render(), end="")
