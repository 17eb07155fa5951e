"""Every state of a group and every command: what is answered, and the state it ends in.

The members are a-1, who leads, b-2, the static i-3 (whose former self is i-0) and the pending p-4,
as far as a state has them. A cell says what the answer is, `ok`, `wait` or the number of the error,
how many others are answered by it, as in `ok+2`, and the state after it:

    - no group    E Empty    P PreparingRebalance    C CompletingRebalance    S Stable
"""

import pytest
from story import DELAY_MS, STICKY, STICKY_AND_RANGE, TOPIC, Story

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group.classic_state import ClassicGroup

# The states ---------------------------------------------------------------------------------------


def no_group() -> Story:
    return Story()


def offsets_only() -> Story:
    story = Story()
    story.commit(1)
    return story


def empty() -> Story:
    """Its members have left, p is about to join."""
    story = stable()
    story.leave("a-1", "b-2", "i-3")
    story.wait(0)
    return story


def initial() -> Story:
    """Before the first generation."""
    story = Story()
    story.join("a")
    story.join("b")
    story.join("x", group_instance_id="i")
    story.join("p", requires_known_member_id=True)
    return story


def completing() -> Story:
    """b waits for its assignment."""
    story = initial()
    story.wait(2 * DELAY_MS)
    story.sync("b-2", 1)
    return story


def stable() -> Story:
    story = completing()
    story.sync("i-3", 1)
    story.sync("a-1", 1, {"a-1": b"A", "b-2": b"B", "i-3": b"I"})
    return story


def preparing() -> Story:
    """a and i have rejoined, b and p are awaited."""
    story = stable()
    story.join("a", "a-1")
    story.join("x", "i-3", group_instance_id="i")
    return story


STATES = {
    "none": no_group,
    "offsets": offsets_only,
    "empty": empty,
    "initial": initial,
    "preparing": preparing,
    "completing": completing,
    "stable": stable,
}

# The commands -------------------------------------------------------------------------------------

OTHER = (("range", b"\x00\x00\x00\x00\x00\x00"),)
STATIC = {"group_instance_id": "i"}


def generation(story: Story) -> int:
    return 0 if story.group is None else story.group.generation_id


COMMANDS = {
    "join.new": lambda s: s.join("n"),
    "join.new.told_id": lambda s: s.join("n", requires_known_member_id=True),
    "join.new.static": lambda s: s.join("n", group_instance_id="k"),
    "join.new.no_protocol": lambda s: s.join("n", protocols=()),
    "join.new.short_session": lambda s: s.join("n", session_timeout_ms=1),
    "join.pending": lambda s: s.join("p", "p-4"),
    "join.pending.static": lambda s: s.join("p", "p-4", **STATIC),
    "join.leader": lambda s: s.join("a", "a-1"),
    "join.follower": lambda s: s.join("b", "b-2"),
    "join.follower.news": lambda s: s.join("b", "b-2", protocols=OTHER),
    "join.follower.no_protocol": lambda s: s.join("b", "b-2", protocols=STICKY),
    "join.unknown": lambda s: s.join("z", "z-9"),
    "join.static": lambda s: s.join("x", "i-3", **STATIC),
    "join.static.returns": lambda s: s.join("x", **STATIC),
    "join.static.more": lambda s: s.join("x", protocols=STICKY_AND_RANGE, **STATIC),
    "join.static.former": lambda s: s.join("x", "i-0", **STATIC),
    "join.static.unknown": lambda s: s.join("a", "a-1", group_instance_id="k"),
    "sync.leader": lambda s: s.sync("a-1", generation(s), {"a-1": b"A2", "b-2": b"B2"}),
    "sync.leader.protocol": lambda s: s.sync("a-1", generation(s), protocol_name="sticky"),
    "sync.follower": lambda s: s.sync("b-2", generation(s)),
    "sync.follower.stale": lambda s: s.sync("b-2", generation(s) + 7),
    "sync.static.former": lambda s: s.sync("i-0", generation(s), **STATIC),
    "sync.pending": lambda s: s.sync("p-4", generation(s)),
    "sync.unknown": lambda s: s.sync("z-9", generation(s)),
    "heartbeat.leader": lambda s: s.heartbeat("a-1", generation(s)),
    "heartbeat.follower": lambda s: s.heartbeat("b-2", generation(s)),
    "heartbeat.follower.stale": lambda s: s.heartbeat("b-2", generation(s) + 7),
    "heartbeat.static": lambda s: s.heartbeat("i-3", generation(s), "i"),
    "heartbeat.static.former": lambda s: s.heartbeat("i-0", generation(s), "i"),
    "heartbeat.pending": lambda s: s.heartbeat("p-4", generation(s)),
    "heartbeat.unknown": lambda s: s.heartbeat("z-9", generation(s)),
    "leave.leader": lambda s: s.leave("a-1"),
    "leave.follower": lambda s: s.leave("b-2"),
    "leave.all": lambda s: s.leave("a-1", "b-2", "i-3"),
    "leave.all.and.pending": lambda s: s.leave("a-1", "b-2", "p-4", ("", "i")),
    "leave.static.by_instance": lambda s: s.leave(("", "i")),
    "leave.static.former": lambda s: s.leave(("i-0", "i")),
    "leave.pending": lambda s: s.leave("p-4"),
    "leave.unknown": lambda s: s.leave("z-9"),
    "commit.follower": lambda s: s.commit(5, "b-2", generation(s)),
    "commit.follower.stale": lambda s: s.commit(5, "b-2", generation(s) + 7),
    "commit.static.former": lambda s: s.commit(5, "i-0", generation(s), **STATIC),
    "commit.pending": lambda s: s.commit(5, "p-4", generation(s)),
    "commit.unknown": lambda s: s.commit(5, "z-9", generation(s)),
    "commit.nobody": lambda s: s.commit(5),
    "delete.offsets": lambda s: s.delete_offsets(("old", 0)),
    "delete.offsets.subscribed": lambda s: s.delete_offsets((TOPIC, 0)),
    "delete.group": lambda s: s.delete_group(),
    "delete.topic": lambda s: s.submit(c.DeleteTopicOffsets(topic=TOPIC)),
    "expire": lambda s: s.expire(),
    "timer.join": lambda s: s.submit(c.TimerFired(key=("join", "g"))),
    "timer.sync": lambda s: s.submit(c.TimerFired(key=("sync", "g"))),
    "timer.session.leader": lambda s: s.submit(c.TimerFired(key=("session", "g", "a-1"))),
    "timer.session.follower": lambda s: s.submit(c.TimerFired(key=("session", "g", "b-2"))),
    "timer.session.pending": lambda s: s.submit(c.TimerFired(key=("session", "g", "p-4"))),
    "restart": lambda s: s.restart(),
}

# The table ----------------------------------------------------------------------------------------

TABLE = """
state                      none    offsets  empty   initial   preparing  completing  stable
join.new                   wait:P  wait:P   wait:P  wait:P    wait:P     wait+1:P    wait:P
join.new.told_id           79:E    79:E     79:E    79:P      79:P       79:C        79:S
join.new.static            wait:P  wait:P   wait:P  wait:P    wait:P     wait+1:P    wait:P
join.new.no_protocol       23:-    23:E     23:E    23:P      23:P       23:C        23:S
join.new.short_session     26:-    26:E     26:E    26:P      26:P       26:C        26:S
join.pending               25:-    25:E     wait:P  wait:P    wait:P     wait+1:P    wait:P
join.pending.static        25:-    25:E     25:E    25:P      25:P       25:C        25:S
join.leader                25:-    25:E     25:E    wait+1:P  wait+1:P   ok:C        wait:P
join.follower              25:-    25:E     25:E    wait+1:P  wait:P     ok:C        ok:S
join.follower.news         25:-    25:E     25:E    wait+1:P  wait:P     wait+1:P    wait:P
join.follower.no_protocol  25:-    25:E     25:E    23:P      23:P       23:C        23:S
join.unknown               25:-    25:E     25:E    25:P      25:P       25:C        25:S
join.static                25:-    25:E     25:E    wait+1:P  wait+1:P   ok:C        ok:S
join.static.returns        wait:P  wait:P   wait:P  wait+1:P  wait+1:P   wait+1:P    ok:S
join.static.more           wait:P  wait:P   wait:P  wait+1:P  wait+1:P   wait+1:P    ok:S
join.static.former         25:-    25:E     25:E    82:P      82:P       82:C        82:S
join.static.unknown        25:-    25:E     25:E    25:P      25:P       25:C        25:S
sync.leader                25:-    25:E     25:E    22:P      27:P       ok+1:S      ok:S
sync.leader.protocol       25:-    25:E     25:E    22:P      23:P       23:C        23:S
sync.follower              25:-    25:E     25:E    22:P      27:P       wait+1:C    ok:S
sync.follower.stale        25:-    25:E     25:E    22:P      22:P       22:C        22:S
sync.static.former         25:-    25:E     25:E    82:P      82:P       82:C        82:S
sync.pending               25:-    25:E     25:E    25:P      25:P       25:C        25:S
sync.unknown               25:-    25:E     25:E    25:P      25:P       25:C        25:S
heartbeat.leader           25:-    25:E     25:E    22:P      27:P       ok:C        ok:S
heartbeat.follower         25:-    25:E     25:E    22:P      27:P       ok:C        ok:S
heartbeat.follower.stale   25:-    25:E     25:E    22:P      22:P       22:C        22:S
heartbeat.static           25:-    25:E     25:E    22:P      27:P       ok:C        ok:S
heartbeat.static.former    25:-    25:E     25:E    82:P      82:P       82:C        82:S
heartbeat.pending          25:-    25:E     25:E    25:P      25:P       25:C        25:S
heartbeat.unknown          25:-    25:E     25:E    25:P      25:P       25:C        25:S
leave.leader               25:-    25:E     25:E    ok+1:P    ok+1:P     ok+1:P      ok:P
leave.follower             25:-    25:E     25:E    ok+1:P    ok:P       ok+1:P      ok:P
leave.all                  25:-    25:E     25:E    ok+3:P    ok+2:P     ok+1:P      ok:P
leave.all.and.pending      25:-    25:E     25:E    ok+3:P    ok+2:E     ok+1:E      ok:E
leave.static.by_instance   25:-    25:E     25:E    ok+1:P    ok+1:P     ok+1:P      ok:P
leave.static.former        25:-    25:E     25:E    82:P      82:P       82:C        82:S
leave.pending              25:-    25:E     ok:E    ok:P      ok:P       ok:C        ok:S
leave.unknown              25:-    25:E     25:E    25:P      25:P       25:C        25:S
commit.follower            69:-    25:E     25:E    22:P      ok:P       27:C        ok:S
commit.follower.stale      69:-    25:E     25:E    22:P      22:P       22:C        22:S
commit.static.former       69:-    25:E     25:E    82:P      82:P       82:C        82:S
commit.pending             69:-    25:E     25:E    25:P      25:P       25:C        25:S
commit.unknown             69:-    25:E     25:E    25:P      25:P       25:C        25:S
commit.nobody              ok:E    ok:E     ok:E    25:P      25:P       25:C        25:S
delete.offsets             69:-    ok:E     ok:E    86:P      ok:P       ok:C        ok:S
delete.offsets.subscribed  69:-    ok:-     ok:E    86:P      86:P       86:C        86:S
delete.group               69:-    ok:-     ok:-    68:P      68:P       68:C        68:S
delete.topic               ok:-    ok:-     ok:E    ok:P      ok:P       ok:C        ok:S
expire                     ok:-    ok:E     ok:E    ok:P      ok:P       ok:C        ok:S
timer.join                 ok:-    ok:E     ok:E    ok:P      ok+2:C     ok:C        ok:S
timer.sync                 ok:-    ok:E     ok:E    ok:P      ok:P       ok+1:P      ok:S
timer.session.leader       ok:-    ok:E     ok:E    ok+1:P    ok:P       ok+1:P      ok:P
timer.session.follower     ok:-    ok:E     ok:E    ok+1:P    ok:P       ok:C        ok:P
timer.session.pending      ok:-    ok:E     ok:E    ok:P      ok:P       ok:C        ok:S
restart                    ok:-    ok:E     ok:E    ok:E      ok:S       ok:E        ok:S
"""

LETTERS = {
    None: "-",
    "Empty": "E",
    "PreparingRebalance": "P",
    "CompletingRebalance": "C",
    "Stable": "S",
}


def letter(group: ClassicGroup | None) -> str:
    return LETTERS[group.state.value if group is not None else None]


def outcome(story: Story, command: str) -> str:
    """Carry a command out and say what has come of it in the words of the table."""
    parked = set(story.parked)
    step = COMMANDS[command](story)
    others = len(set(step.wakes))
    if step.answer is None:
        what = "wait" if set(story.parked) - parked else "ok"
    else:
        errors = [step.answer.error, *getattr(step.answer, "errors", ())]
        errors += [m.error for m in step.answer.members] if command.startswith("leave") else []
        what = next((str(error.value) for error in errors if error), "ok")
    return f"{what}{f'+{others}' if others else ''}:{letter(story.group)}"


def rows() -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in TABLE.strip().splitlines()[1:]}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_in_each_state(command):
    """What the table says; the story kit checks what holds at all times."""
    outcomes = [outcome(make(), command) for make in STATES.values()]

    assert outcomes == rows()[command]


# Which state may follow which in one decision, in which a rebalance may begin and end.
LEGAL = {"-": "-EP", "E": "E-P", "P": "PCE", "C": "CPSE", "S": "SPCE"}
# What a client of each API knows how to handle.
ERRORS = {
    "join": {22, 23, 24, 25, 26, 27, 79, 81, 82},
    "sync": {22, 23, 24, 25, 27, 82},
    "heartbeat": {22, 24, 25, 27, 82},
    "leave": {24, 25, 82},
    "commit": {12, 22, 25, 27, 69, 82},
    "delete": {24, 68, 69, 86},
}


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "restart"])
def test_the_table_itself_is_legal(command):
    """Every cell is a transition of the protocol, and an error is one the API has."""
    for make, cell in zip(STATES.values(), rows()[command], strict=True):
        what, after = cell.split(":")
        assert after in LEGAL[letter(make().group)]
        if what.isdigit():
            assert int(what) in ERRORS[command.split(".")[0]]
