"""The pages, one module each; every module has its `ROUTES`."""

from starlette.routing import Route

from anabranch.console.pages import (
    configuration,
    plain,
    topic,
    topics,
)

ROUTES: list[Route] = [
    *plain.ROUTES,
    *topics.ROUTES,
    *topic.ROUTES,
    *configuration.ROUTES,
]
