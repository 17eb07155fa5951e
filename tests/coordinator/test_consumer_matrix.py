"""Every state of a consumer group and every command: what is answered, and the state it ends in.

The members are a, the static s (instance i, former self s0) and, where a state has it, b, who came
last. A cell says what the answer is, `ok` or the number of the error, and the state after it:

    - no group    E Empty    A Assigning    R Reconciling    S Stable    C an empty classic group

States: `new` a group that only ever had a member without topics; `empty` after everybody left;
`assigning` b joined and its target is due; `told` a was told to give up a partition that b waits
for; `away` s left for a while; `stable` all three.
"""

import pytest
from consumer_story import ConsumerStory, line

from anabranch.coordinator.group import commands as c
from anabranch.coordinator.group import consumer_commands as cc

# The states ---------------------------------------------------------------------------------------


def no_group() -> ConsumerStory:
    return ConsumerStory(t=6, u=1)


def offsets_only() -> ConsumerStory:
    story = no_group()
    story.commit("t0", 1)
    return story


def new() -> ConsumerStory:
    story = no_group()
    story.join("a", "")
    return story


def pair() -> ConsumerStory:
    return no_group().stable("a").stable("s", instance_id="i")


def empty() -> ConsumerStory:
    story = pair()
    story.leave("a")
    story.leave("s", "i")
    return story


def assigning() -> ConsumerStory:
    story = pair()
    story.join("c")
    story.leave("c")
    story.join("b")
    return story


def told() -> ConsumerStory:
    story = pair()
    story.join("b")
    story.ack("a")
    return story


def away() -> ConsumerStory:
    story = stable()
    story.leave_for_a_while("s", "i")
    return story


def stable() -> ConsumerStory:
    return pair().stable("b")


STATES = {
    "none": no_group,
    "offsets": offsets_only,
    "new": new,
    "empty": empty,
    "assigning": assigning,
    "told": told,
    "away": away,
    "stable": stable,
}

# The commands -------------------------------------------------------------------------------------


def epoch(story: ConsumerStory, member_id: str) -> int:
    group = story.shard.groups.get("g")
    member = group.members.get(member_id) if group is not None else None
    return max(1, member.member_epoch) if member is not None else 1


def beat(member_id: str, off: int = 0, owned: str | None = None, **fields):
    return lambda s: s.beat(member_id, epoch(s, member_id) + off, owned, **fields)


def commit(member_id: str, off: int = 0, unit: str = "t0", **fields):
    return lambda s: s.commit(unit, 5, member_id, epoch(s, member_id) + off, **fields)


def timer(*key: str):
    return lambda s: s.submit(c.TimerFired(key=(key[0], "g", *key[1:])))


STATIC = {"instance_id": "i"}

COMMANDS = {
    "join.new": lambda s: s.join("n"),
    "join.new.idle": lambda s: s.join("n", ""),
    "join.new.regex": lambda s: s.join("n", None, "u"),
    "join.new.static": lambda s: s.join("n", instance_id="k"),
    "join.new.bad_regex": lambda s: s.join("n", None, "("),
    "join.new.bad_assignor": lambda s: s.join("n", server_assignor="x"),
    "join.new.bad_form": lambda s: s.join("n", owned=None),
    "join.again": lambda s: s.join("a"),
    "join.again.waiting": lambda s: s.join("b"),
    "join.again.static": lambda s: s.join("s", **STATIC),
    "join.static.returns": lambda s: s.join("s1", **STATIC),
    "beat": beat("a"),
    "beat.owned.nothing": beat("a", owned=""),
    "beat.waiting": beat("b", owned=""),
    "beat.static": beat("s", **STATIC),
    "beat.static.former": beat("s0", **STATIC),
    "beat.static.unknown": beat("a", instance_id="k"),
    "beat.epoch.later": beat("a", 7),
    "beat.epoch.before": beat("a", -1),
    "beat.unknown": beat("z"),
    "beat.news": beat("a", subscribed_topic_names=("u",)),
    "leave": lambda s: s.leave("a"),
    "leave.static": lambda s: s.leave("s", "i"),
    "leave.static.former": lambda s: s.leave("s0", "i"),
    "leave.while": lambda s: s.leave_for_a_while("s", "i"),
    "leave.while.former": lambda s: s.leave_for_a_while("s0", "i"),
    "leave.while.dynamic": lambda s: s.leave_for_a_while("a", None),
    "leave.unknown": lambda s: s.leave("z"),
    "commit": commit("a"),
    "commit.later": commit("a", 7),
    "commit.older": commit("a", -1),
    "commit.older.foreign": commit("a", -1, "t5"),
    "commit.old_version": commit("a", knows_group_id_not_found=False),
    "commit.unknown": commit("z"),
    "commit.nobody": lambda s: s.commit("t0", 5),
    "delete.offsets": lambda s: s.submit(c.DeleteOffsets(group_id="g", partitions=(("v", 0),))),
    "delete.offsets.subscribed": lambda s: s.submit(
        c.DeleteOffsets(group_id="g", partitions=(("t", 0),))
    ),
    "delete.group": lambda s: s.submit(c.DeleteGroup(group_id="g")),
    "expire": lambda s: s.submit(c.ExpireOffsets()),
    "topics.grow": lambda s: (s.topics(t=7), s.wait(50))[0],
    "topics.go": lambda s: (s.topics(t=None), s.wait(50))[0],
    "resolved": lambda s: s.submit(cc.RegexesResolved(group_id="g", topics={}, version=1)),
    "timer.session": timer("session", "a"),
    "timer.rebalance": timer("rebalance", "a"),
    "timer.target": lambda s: (s.wait(49), timer("target")(s))[1],
    "timer.refresh": timer("refresh"),
    "restart": lambda s: s.restart(),
}

# The table ----------------------------------------------------------------------------------------

TABLE = """
state                      none   offsets  new    empty  assigning  told   away   stable
join.new                   ok:S   ok:S     ok:R   ok:S   ok:A       ok:A   ok:R   ok:R
join.new.idle              ok:S   ok:S     ok:S   ok:S   ok:A       ok:R   ok:R   ok:S
join.new.regex             ok:S   ok:S     ok:S   ok:S   ok:A       ok:R   ok:R   ok:S
join.new.static            ok:S   ok:S     ok:R   ok:S   ok:A       ok:A   ok:R   ok:R
join.new.bad_regex         128:-  128:C    128:S  128:E  128:A      128:R  128:R  128:S
join.new.bad_assignor      112:-  112:C    112:S  112:E  112:A      112:R  112:R  112:S
join.new.bad_form          42:-   42:C     42:S   42:E   42:A       42:R   42:R   42:S
join.again                 ok:S   ok:S     ok:S   ok:S   ok:A       ok:R   ok:R   ok:S
join.again.waiting         ok:S   ok:S     ok:R   ok:S   ok:A       ok:R   ok:R   ok:S
join.again.static          ok:S   ok:S     ok:R   ok:S   ok:A       ok:R   ok:S   ok:S
join.static.returns        ok:S   ok:S     ok:R   ok:S   111:A      111:R  ok:S   111:S
beat                       69:-   69:C     ok:S   25:E   ok:A       ok:R   ok:R   ok:S
beat.owned.nothing         69:-   69:C     ok:S   25:E   ok:A       ok:R   ok:R   ok:S
beat.waiting               69:-   69:C     25:S   25:E   ok:A       ok:R   ok:R   ok:S
beat.static                69:-   69:C     25:S   25:E   ok:A       ok:R   110:R  ok:S
beat.static.former         69:-   69:C     25:S   25:E   82:A       82:R   82:R   82:S
beat.static.unknown        69:-   69:C     25:S   25:E   25:A       25:R   25:R   25:S
beat.epoch.later           69:-   69:C     110:S  25:E   110:A      110:R  110:R  110:S
beat.epoch.before          42:-   42:C     42:S   42:E   110:A      110:R  110:R  110:S
beat.unknown               69:-   69:C     25:S   25:E   25:A       25:R   25:R   25:S
beat.news                  69:-   69:C     ok:S   25:E   ok:A       ok:A   ok:R   ok:R
leave                      69:-   69:C     ok:E   25:E   ok:A       ok:A   ok:R   ok:R
leave.static               69:-   69:C     25:S   25:E   ok:A       ok:A   ok:R   ok:R
leave.static.former        69:-   69:C     25:S   25:E   82:A       82:R   82:R   82:S
leave.while                69:-   69:C     25:S   25:E   ok:A       ok:R   ok:R   ok:R
leave.while.former         69:-   69:C     25:S   25:E   82:A       82:R   82:R   82:S
leave.while.dynamic        42:-   42:C     42:S   42:E   42:A       42:R   42:R   42:S
leave.unknown              69:-   69:C     25:S   25:E   25:A       25:R   25:R   25:S
commit                     69:-   25:C     ok:S   25:E   ok:A       ok:R   ok:R   ok:S
commit.later               69:-   25:C     113:S  25:E   113:A      113:R  113:R  113:S
commit.older               69:-   25:C     113:S  25:E   ok:A       ok:R   ok:R   ok:S
commit.older.foreign       69:-   25:C     113:S  25:E   113:A      113:R  113:R  113:S
commit.old_version         22:-   25:C     35:S   25:E   35:A       35:R   35:R   35:S
commit.unknown             69:-   25:C     25:S   25:E   25:A       25:R   25:R   25:S
commit.nobody              ok:C   ok:C     25:S   ok:E   25:A       25:R   25:R   25:S
delete.offsets             69:-   ok:C     ok:S   ok:E   ok:A       ok:R   ok:R   ok:S
delete.offsets.subscribed  69:-   ok:-     ok:S   ok:E   86:A       86:R   86:R   86:S
delete.group               69:-   ok:-     68:S   ok:-   68:A       68:R   68:R   68:S
expire                     ok:-   ok:C     ok:S   ok:-   ok:A       ok:R   ok:R   ok:S
topics.grow                ok:-   ok:C     ok:S   ok:E   ok:R       ok:R   ok:R   ok:R
topics.go                  ok:-   ok:C     ok:S   ok:E   ok:R       ok:R   ok:R   ok:R
resolved                   ok:-   ok:C     ok:S   ok:E   ok:A       ok:R   ok:R   ok:S
timer.session              ok:-   ok:C     ok:E   ok:E   ok:A       ok:A   ok:R   ok:R
timer.rebalance            ok:-   ok:C     ok:S   ok:E   ok:A       ok:A   ok:R   ok:S
timer.target               ok:-   ok:C     ok:S   ok:E   ok:A       ok:R   ok:R   ok:S
timer.refresh              ok:-   ok:C     ok:S   ok:E   ok:A       ok:R   ok:R   ok:S
restart                    ok:-   ok:C     ok:S   ok:E   ok:A       ok:R   ok:R   ok:S
"""

LETTERS = {
    "none": "-",
    "classic": "C",
    "Empty": "E",
    "Assigning": "A",
    "Reconciling": "R",
    "Stable": "S",
}


def letter(story: ConsumerStory) -> str:
    return LETTERS[line(story.shard.group("g")).split()[0]]


def outcome(story: ConsumerStory, command: str) -> str:
    """Carry a command out and say what has come of it in the words of the table."""
    step = COMMANDS[command](story)
    errors = [getattr(step.answer, "error", None), *getattr(step.answer, "errors", ())]
    what = next((str(error.value) for error in errors if error), "ok")
    return f"{what}:{letter(story)}"


def rows() -> dict[str, list[str]]:
    return {row.split()[0]: row.split()[1:] for row in TABLE.strip().splitlines()[1:]}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_in_each_state(command):
    """What the table says; the story kit checks what holds at all times."""
    outcomes = [outcome(make(), command) for make in STATES.values()]

    assert outcomes == rows()[command]


# What a client of each API knows how to handle.
ERRORS = {
    "join": {42, 81, 82, 110, 111, 112, 128},
    "beat": {25, 42, 69, 82, 110},
    "leave": {25, 42, 69, 82},
    "commit": {22, 25, 35, 69, 113},
    "delete": {68, 69, 86},
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_itself_is_legal(command):
    """An error is one the API has, and changes nothing."""
    for make, cell in zip(STATES.values(), rows()[command], strict=True):
        what, after = cell.split(":")
        if what != "ok":
            assert int(what) in ERRORS[command.split(".")[0]]
            assert after == letter(make())
