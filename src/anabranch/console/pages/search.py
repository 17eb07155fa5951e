"""Search: topics and groups whose name has all the words; one hit alone is gone to at once."""

from dataclasses import dataclass

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from anabranch.console import words
from anabranch.console.frame import Console, Page, page_route
from anabranch.console.tables import Column, make_table


@dataclass(frozen=True, slots=True)
class Hit:
    kind: str
    name: str
    about: str

    @property
    def address(self) -> str:
        return words.path("topics" if self.kind == "topic" else "groups", self.name)


COLUMNS: list[Column[Hit]] = [
    Column("kind", "Kind", lambda hit: hit.kind),
    Column(
        "name",
        "Name",
        lambda hit: hit.name,
        lambda hit: Markup('<a href="{}">{}</a>').format(hit.address, hit.name),
    ),
    Column("about", "About", lambda hit: hit.about),
]


async def make(request: Request, console: Console) -> Page | Response:
    q = request.query_params.get("q", "").strip()
    wanted = q.lower().split()
    survey = await console.broker.surveyor.recent()
    hits: list[Hit] = []
    if wanted:
        for topic in survey.topics.values():
            if all(word in topic.name.lower() for word in wanted):
                about = f"{topic.partitions:,} partitions, {topic.records:,} records"
                hits.append(Hit("topic", topic.name, about))
        for group in survey.groups.values():
            if all(word in group.group_id.lower() for word in wanted):
                about = f"{group.state}, {group.members:,} members"
                hits.append(Hit("group", group.group_id, about))
    # Who writes a whole name means that one, whatever else has it in its name.
    exact = [hit for hit in hits if hit.name == q]
    chosen = exact if len(exact) == 1 else hits
    if len(chosen) == 1:
        return RedirectResponse(chosen[0].address, 303)
    # The words are in the address already: the table has nothing more to filter by.
    query = type(request.query_params)(
        [(key, value) for key, value in request.query_params.items() if key != "q"]
    )
    empty = f"No topic and no group has “{q}” in its name." if q else "Say what to look for."
    table = make_table("hits", COLUMNS, hits, query, empty=empty, is_only=False)
    return Page(
        template="search.html",
        title=f"Search: {q}" if q else "Search",
        tables=[table],
        values={"q": q},
        is_live=False,
    )


ROUTES = [page_route("/search", make)]
