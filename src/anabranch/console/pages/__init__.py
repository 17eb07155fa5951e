"""The pages, one module each; every module has its `ROUTES`."""

from starlette.routing import Route

from anabranch.console.pages import (
    configuration,
    group,
    groups,
    overview,
    plain,
    search,
    topic,
    topics,
    transactions,
)

ROUTES: list[Route] = [
    *plain.ROUTES,
    *overview.ROUTES,
    *search.ROUTES,
    *topics.ROUTES,
    *topic.ROUTES,
    *transactions.ROUTES,
    *groups.ROUTES,
    *group.ROUTES,
    *configuration.ROUTES,
]
