"""One group: its head, its tabs, and who makes them.

Each tab is a module `group_<tab>` with `make_tab(request, console, group_id) -> Page`, which knows
nothing of the head: `group_page` puts that around it.
"""

import dataclasses
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from anabranch.broker.survey import GroupSummary
from anabranch.console import words
from anabranch.console.branch_sharing import branch_topics
from anabranch.console.frame import Console, Page, action_route, not_found, page_route
from anabranch.console.group_found import find_group
from anabranch.console.pages import (
    group_assignment,
    group_lag,
    group_members,
    group_offsets,
    group_sharing,
    group_timeline,
)

MakeTab = Callable[[Request, Console, str], Awaitable[Page]]

_TABS: dict[str, tuple[str, MakeTab]] = {
    "lag": ("Lag", group_lag.make_tab),
    "members": ("Members", group_members.make_tab),
    "assignment": ("Assignment", group_assignment.make_tab),
    "timeline": ("Timeline", group_timeline.make_tab),
    "sharing": ("Sharing", group_sharing.make_tab),
    "offsets": ("Offsets", group_offsets.make_tab),
}


def group_page(console: Console, summary: GroupSummary, tab: str, page: Page) -> Page:
    """A tab with the head of its group around it."""
    group_id = summary.group_id
    timeline = console.broker.timeline
    return dataclasses.replace(
        page,
        template="group.html",
        title=group_id,
        crumbs=[("Groups", "/groups")],
        values={
            **page.values,
            "tab_template": page.template,
            "group_id": group_id,
            "group_path": words.path("groups", group_id),
            "summary": summary,
            "tab": tab,
            "tabs": [(key, _TABS[key][0]) for key in _tabs_of(console, summary)],
            "last_rebalance": timeline.last_rebalance(group_id),
            "under_way": timeline.under_way(group_id),
        },
    )


def _tabs_of(console: Console, summary: GroupSummary) -> list[str]:
    shares = summary.is_sharing or bool(branch_topics(console.broker, summary.group_id))
    return [key for key in _TABS if key != "sharing" or shares]


async def make(request: Request, console: Console) -> Page:
    summary = await find_group(request, console, request.path_params["group"])
    tab = request.query_params.get("tab", "lag")
    # Whoever follows a link to what a group does not have any more sees why it is not there.
    if tab not in _TABS:
        raise not_found(f"The page of a group has no tab “{tab}”.")
    page = await _TABS[tab][1](request, console, summary.group_id)
    return group_page(console, summary, tab, page)


async def act(request: Request, console: Console) -> Page | Response:
    """What the Offsets tab asks for."""
    summary = await find_group(request, console, request.path_params["group"])
    page = await group_offsets.act(request, console, summary.group_id)
    if isinstance(page, Response):
        return page
    return group_page(console, summary, "offsets", page)


ROUTES = [
    page_route("/groups/{group:path}", make),
    action_route("/groups/{group:path}", act),
]
