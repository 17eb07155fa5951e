"""The group that a page is about, looked up once for its head and its tab."""

from starlette.requests import Request

from anabranch.broker.survey import GroupSummary
from anabranch.console.frame import Console, not_found


async def find_group(request: Request, console: Console, group_id: str) -> GroupSummary:
    """The group as it is now; 404 when there is none."""
    summary = await console.broker.surveyor.group(group_id)
    if summary is None:
        raise not_found(
            f"There is no group {group_id}. A group is there from its first member or its first "
            "committed offset on, until it is deleted or its offsets expire."
        )
    request.state.group = summary
    return summary


def found_group(request: Request) -> GroupSummary:
    """What was found for this page."""
    summary: GroupSummary = request.state.group
    return summary
