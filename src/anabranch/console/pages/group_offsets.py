"""Group, Offsets: what is committed, and a wizard that moves it, with a look before and a way back.

The wish is in the address and the plan is made by looking at it, so that a plan can be shared and
exported. What is done is what was shown: the form carries the plan, and if the offsets have changed
since, nothing is done.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from anabranch.console import words
from anabranch.console.frame import Console, Page
from anabranch.console.group_found import found_group
from anabranch.console.guard import audit, check_action
from anabranch.console.offset_plans import (
    STRATEGIES,
    OffsetRow,
    PlanRow,
    WishError,
    make_plan,
    offset_rows,
    read_wish,
    target_of,
)
from anabranch.console.offset_resets import (
    DoneReset,
    ResetRefusedError,
    Resets,
    Step,
    execute,
    plan_text,
    read_plan,
    refusal_of,
    undo_steps,
)
from anabranch.console.tables import Column, Table, make_table
from anabranch.coordinator.group.commands import CommittedOffset

# Names that the field for the topic offers.
_NAMES_MAX = 500
# Offsets that a line of the log names.
_AUDITED_MAX = 20

_resets: WeakKeyDictionary[Console, Resets] = WeakKeyDictionary()


def resets_of(console: Console) -> Resets:
    return _resets.setdefault(console, Resets())


# Columns ----------------------------------------------------------------------------------------

NOW_COLUMNS: list[Column[OffsetRow]] = [
    Column("topic", "Topic", lambda row: row.topic, is_searched=True),
    Column("partition", "Partition", lambda row: row.partition, is_number=True),
    Column(
        "committed",
        "Committed",
        lambda row: row.before,
        is_number=True,
        hint="The next offset that the group reads; none before its first commit.",
    ),
    Column(
        "earliest", "Earliest", lambda row: row.start, is_number=True, hint="Where the log starts."
    ),
    Column(
        "latest",
        "Latest",
        lambda row: row.end,
        is_number=True,
        hint="The offset that the next record gets.",
    ),
    Column("lag", "Lag", lambda row: row.lag, is_number=True, hint="From the committed offset on."),
]


def _change_cell(row: PlanRow) -> Markup | str:
    change = row.lag_change
    if change is None:
        return words.MISSING
    if change == 0:
        return "0"
    return Markup('<span class="{}">{}{:,}</span>').format(
        "warn" if change > 0 else "good", "+" if change > 0 else "\N{MINUS SIGN}", abs(change)
    )


PLAN_COLUMNS: list[Column[PlanRow]] = [
    Column("topic", "Topic", lambda row: row.topic, is_searched=True),
    Column("partition", "Partition", lambda row: row.partition, is_number=True),
    Column("offset_before", "Offset before", lambda row: row.before, is_number=True),
    Column(
        "offset_after",
        "Offset after",
        lambda row: row.after,
        is_number=True,
        hint="None where it is left as it is.",
    ),
    Column("lag_before", "Lag before", lambda row: row.lag_before, is_number=True),
    Column("lag_after", "Lag after", lambda row: row.lag_after, is_number=True),
    Column(
        "lag_change",
        "Change in lag",
        lambda row: row.lag_change,
        _change_cell,
        is_number=True,
        hint="How many more or fewer records the group has to read then.",
    ),
    Column("remark", "Remark", lambda row: row.remark or None, is_searched=True),
]


def _offset_of(committed: CommittedOffset | None) -> int | None:
    return committed.offset if committed is not None and committed.offset >= 0 else None


def _result_columns(console: Console, group_id: str) -> list[Column[Step]]:
    offsets = console.broker.groups.offsets(group_id)

    def now(step: Step) -> int | None:
        return _offset_of(offsets.get((step.topic, step.partition)))

    def outcome(step: Step) -> str:
        if step.error:
            return f"not done: {step.error}"
        return "as planned" if now(step) == _offset_of(step.after) else "has moved on since"

    return [
        Column("topic", "Topic", lambda step: step.topic, is_searched=True),
        Column("partition", "Partition", lambda step: step.partition, is_number=True),
        Column(
            "offset_before", "Offset before", lambda step: _offset_of(step.before), is_number=True
        ),
        Column("offset_after", "Set to", lambda step: _offset_of(step.after), is_number=True),
        Column(
            "offset_now",
            "Committed now",
            now,
            is_number=True,
            hint="What the coordinator has, read again when this page was made.",
        ),
        Column("outcome", "Outcome", outcome, is_searched=True),
    ]


# The page ---------------------------------------------------------------------------------------


async def make_tab(request: Request, console: Console, group_id: str) -> Page:
    return await _make(request, console, group_id)


async def _make(
    request: Request, console: Console, group_id: str, notice: str = "", status_code: int = 200
) -> Page:
    broker, query = console.broker, request.query_params
    wish, problem = read_wish(query), ""
    rows: list[OffsetRow] = []
    plan: list[PlanRow] | None = None
    try:
        rows = await offset_rows(broker, found_group(request), wish)
        if wish.strategy:
            plan = await make_plan(broker, rows, target_of(broker, wish))
    except WishError as error:
        problem = str(error)
    done = resets_of(console).find(group_id, query.get("done", ""))
    tables = _tables(request, console, group_id, rows, plan, done)
    changes = [row for row in plan or () if row.is_change]
    return Page(
        template="group_offsets.html",
        title=group_id,
        tables=tables,
        status_code=status_code,
        is_live=False,
        values={
            "wish": wish,
            "strategies": STRATEGIES,
            "problem": problem,
            "notice": notice,
            "refusal": refusal_of(broker, group_id),
            "has_plan": plan is not None and not problem,
            "changes": len(changes),
            "plan_text": plan_text([_carried(row) for row in changes]),
            "lag_change": sum(row.lag_change or 0 for row in changes),
            "forgets": bool(broker.groups.progress(group_id)),
            "topic_names": _topic_names(console, group_id),
            "group_names": _group_names(console, group_id),
            "done": done,
            "failed": sum(bool(step.error) for step in done.steps) if done is not None else 0,
            "resets": resets_of(console).of(group_id),
        },
    )


def _carried(row: PlanRow) -> tuple[str, int, int | None, int]:
    assert row.after is not None
    return row.topic, row.partition, row.before, row.after


def _tables(
    request: Request,
    console: Console,
    group_id: str,
    rows: Sequence[OffsetRow],
    plan: Sequence[PlanRow] | None,
    done: DoneReset | None,
) -> list[Table[Any]]:
    table = partial(make_table, query=request.query_params, is_only=False)
    tables: list[Table[Any]] = []
    if done is not None:
        tables.append(table("result", _result_columns(console, group_id), done.steps))
    if plan is not None:
        empty = "No partition is meant by that."
        tables.append(table("plan", PLAN_COLUMNS, plan, empty=empty))
    else:
        empty = "The group has committed nothing. Name a topic to give it offsets."
        tables.append(table("offsets", NOW_COLUMNS, rows, empty=empty))
    return tables


def _topic_names(console: Console, group_id: str) -> list[str]:
    """Those that the group has offsets for, and then others."""
    mine = sorted({topic for topic, _ in console.broker.groups.offsets(group_id)})
    names = dict.fromkeys(mine)
    for topic in console.broker.topics:
        if len(names) >= _NAMES_MAX:
            break
        if not topic.is_internal:
            names[topic.name] = None
    return list(names)


def _group_names(console: Console, group_id: str) -> list[str]:
    groups = console.broker.groups.all_groups()
    return [group.group_id for group in groups if group.group_id != group_id][:_NAMES_MAX]


# Doing it ---------------------------------------------------------------------------------------


async def act(request: Request, console: Console, group_id: str) -> Page | Response:
    """Reset, or undo a reset; the page after it tells what came of it."""
    form = await check_action(request, console.token, read_only=console.read_only)
    undoes = str(form.get("undo", ""))
    try:
        if undoes:
            former = resets_of(console).find(group_id, undoes)
            if former is None:
                raise ResetRefusedError(
                    "What was before that reset is not known any more. Nothing was undone; choose "
                    "the offsets by hand."
                )
            steps = undo_steps(console.broker, former)
        else:
            steps = read_plan(console.broker, group_id, str(form.get("plan", "")))
        done = await execute(console.broker, group_id, steps)
    except ResetRefusedError as error:
        audit(request, "console.offsets.refused", group=group_id, reason=str(error))
        return await _make(request, console, group_id, notice=str(error), status_code=409)
    client = request.client.host if request.client else "?"
    kept = resets_of(console).keep(
        group_id,
        console.broker.now_ms(),
        client,
        done,
        undoes=int(undoes) if undoes else None,
    )
    audit(
        request,
        "console.offsets.undone" if undoes else "console.offsets.reset",
        group=group_id,
        partitions=len(done),
        failed=sum(bool(step.error) for step in done),
        offsets=_audited(done),
    )
    address = words.path("groups", group_id) + f"?tab=offsets&done={kept.number}"
    return RedirectResponse(address, 303)


def _plain(committed: CommittedOffset | None) -> str:
    offset = _offset_of(committed)
    return "none" if offset is None else str(offset)


def _audited(steps: Sequence[Step]) -> str:
    told = [
        f"{step.topic}-{step.partition}:{_plain(step.before)}>{_plain(step.after)}"
        for step in steps[:_AUDITED_MAX]
    ]
    more = len(steps) - len(told)
    return " ".join([*told, *([f"and {more} more"] if more else [])])
