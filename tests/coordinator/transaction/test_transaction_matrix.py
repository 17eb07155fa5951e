"""Every state of a transactional id and every command: what is answered, and the state after it.

The producer is 1000 in epoch 5, which it had when its transaction began or, where it has ended by
version 2, when it ended: then it is in epoch 6. A cell says `ok`, `-` where there is no answer, or
the number of the error, how many markers are to be written by it, as in `ok+2`, and what follows:

    - none   E Empty   O Ongoing   C PrepareCommit   A PrepareAbort
    c CompleteCommit   a CompleteAbort

States whose name ends in 2 are those of version 2.
"""

import pytest
from transaction_story import ID, NOBODY, V2, X0, X1, P, Story

from anabranch.coordinator.transaction import commands as c
from anabranch.coordinator.transaction.state import TransactionVersion

# The states ---------------------------------------------------------------------------------------


def none() -> Story:
    return Story(id_expiration_ms=1000)


def empty() -> Story:
    story = none()
    story.init()
    story.wind(5)
    return story


def ongoing() -> Story:
    story = empty()
    story.add(P, 5, X0, X1)
    return story


def ended(version: int, *, commit: bool, complete: bool) -> Story:
    story = ongoing()
    story.end(P, 5, commit=commit, transaction_version=TransactionVersion(version))
    if complete:
        story.markers()
    return story


STATES = {
    "none": none,
    "empty": empty,
    "ongoing": ongoing,
    "preC": lambda: ended(0, commit=True, complete=False),
    "preC2": lambda: ended(2, commit=True, complete=False),
    "preA2": lambda: ended(2, commit=False, complete=False),
    "comC": lambda: ended(0, commit=True, complete=True),
    "comA": lambda: ended(0, commit=False, complete=True),
    "comC2": lambda: ended(2, commit=True, complete=True),
    "comA2": lambda: ended(2, commit=False, complete=True),
}

# The commands -------------------------------------------------------------------------------------

COMMANDS = {
    "init": lambda s: s.init(),
    "init.5": lambda s: s.init(P, 5),
    "init.6": lambda s: s.init(P, 6),
    "init.4": lambda s: s.init(P, 4),
    "init.nobody": lambda s: s.init(NOBODY, 5),
    "init.timeout": lambda s: s.init(timeout_ms=0),
    "init.old_client": lambda s: s.init(P, 4, knows_producer_fenced=False),
    "add.5": lambda s: s.add(P, 5, X0),
    "add.6": lambda s: s.add(P, 6, X0),
    "add.nobody": lambda s: s.add(NOBODY, 5, X0),
    "add.old_client": lambda s: s.add(P, 4, X0, knows_producer_fenced=False),
    "offsets.5": lambda s: s.offsets(P, 5),
    "offsets.6": lambda s: s.offsets(P, 6),
    "verify.5": lambda s: s.verify(P, 5, X0),
    "verify.6": lambda s: s.verify(P, 6, X0),
    "verify.nobody": lambda s: s.verify(NOBODY, 5, X0),
    "commit.5": lambda s: s.end(P, 5, commit=True),
    "commit.6": lambda s: s.end(P, 6, commit=True),
    "commit.nobody": lambda s: s.end(NOBODY, 5, commit=True),
    "abort.5": lambda s: s.end(P, 5, commit=False),
    "abort.6": lambda s: s.end(P, 6, commit=False),
    "commit2.5": lambda s: s.end2(P, 5, commit=True),
    "commit2.6": lambda s: s.end2(P, 6, commit=True),
    "commit2.4": lambda s: s.end2(P, 4, commit=True),
    "commit2.nobody": lambda s: s.end2(NOBODY, 5, commit=True),
    "abort2.5": lambda s: s.end2(P, 5, commit=False),
    "abort2.6": lambda s: s.end2(P, 6, commit=False),
    "admin": lambda s: s.abort(),
    "markers": lambda s: s.submit(outcome(s)),
    "timer.timeout": lambda s: s.submit(c.TimerFired(key=("timeout", ID)), tick_ms=60_000),
    "timer.markers": lambda s: s.submit(c.TimerFired(key=("markers", ID))),
    "expire": lambda s: (s.wait(5000), s.expire())[1],
    "restart": lambda s: s.restart(),
}


def outcome(story: Story) -> c.MarkersWritten:
    """What comes of the work that there is, or of some other."""
    if story.tasks:
        task = story.tasks.pop()
    else:
        task = c.WriteMarkers(
            transactional_id=ID,
            producer_id=P,
            producer_epoch=5,
            is_commit=True,
            partitions=frozenset(),
            transaction_version=V2,
            decided_ms=0,
        )
    return c.MarkersWritten(task=task, written=task.partitions)


TABLE = """
state            none   empty  ongoing  preC   preC2  preA2  comC   comA   comC2  comA2
init             ok:E   ok:E   51+2:A   51:C   51:C   51:A   ok:E   ok:E   ok:E   ok:E
init.5           ok:E   ok:E   51+2:A   51:C   51:C   51:A   ok:E   ok:E   ok:E   ok:E
init.6           ok:E   90:E   90:O     51:C   51:C   51:A   90:c   90:a   ok:E   ok:E
init.4           ok:E   90:E   90:O     51:C   51:C   51:A   90:c   90:a   90:c   90:a
init.nobody      ok:E   90:E   90:O     51:C   51:C   51:A   90:c   90:a   90:c   90:a
init.timeout     50:-   50:E   50:O     50:C   50:C   50:A   50:c   50:a   50:c   50:a
init.old_client  ok:E   47:E   47:O     51:C   51:C   51:A   47:c   47:a   47:c   47:a
add.5            49:-   ok:O   ok:O     51:C   51:C   51:A   ok:O   ok:O   90:c   90:a
add.6            49:-   90:E   90:O     51:C   51:C   51:A   90:c   90:a   ok:O   ok:O
add.nobody       49:-   49:E   49:O     51:C   51:C   51:A   49:c   49:a   49:c   49:a
add.old_client   49:-   47:E   47:O     51:C   51:C   51:A   47:c   47:a   47:c   47:a
offsets.5        49:-   ok:O   ok:O     51:C   51:C   51:A   ok:O   ok:O   90:c   90:a
offsets.6        49:-   90:E   90:O     51:C   51:C   51:A   90:c   90:a   ok:O   ok:O
verify.5         49:-   120:E  ok:O     51:C   90:C   90:A   120:c  120:a  90:c   90:a
verify.6         49:-   90:E   90:O     90:C   51:C   51:A   90:c   90:a   120:c  120:a
verify.nobody    49:-   49:E   49:O     49:C   49:C   49:A   49:c   49:a   49:c   49:a
commit.5         49:-   48:E   ok+2:C   51:C   90:C   90:A   ok:c   48:a   90:c   90:a
commit.6         49:-   90:E   90:O     90:C   51:C   51:A   90:c   90:a   ok:c   48:a
commit.nobody    49:-   49:E   49:O     49:C   49:C   49:A   49:c   49:a   49:c   49:a
abort.5          49:-   48:E   ok+2:A   51:C   90:C   90:A   48:c   ok:a   90:c   90:a
abort.6          49:-   90:E   90:O     90:C   51:C   51:A   90:c   90:a   48:c   ok:a
commit2.5        49:-   48:E   ok+2:C   51:C   51:C   51:A   48:c   48:a   ok:c   48:a
commit2.6        49:-   90:E   90:O     51:C   51:C   51:A   90:c   90:a   48:c   48:a
commit2.4        49:-   90:E   90:O     51:C   51:C   51:A   90:c   90:a   90:c   90:a
commit2.nobody   49:-   49:E   49:O     51:C   51:C   51:A   49:c   49:a   49:c   49:a
abort2.5         49:-   ok:a   ok+2:A   51:C   51:C   51:A   ok:a   ok:a   48:c   ok:a
abort2.6         49:-   90:E   90:O     51:C   51:C   51:A   90:c   90:a   ok:a   ok:a
admin            105:-  48:E   ok+2:A   51:C   51:C   51:A   48:c   48:a   48:c   48:a
markers          -:-    -:E    -:O      -:c    -:c    -:a    -:c    -:a    -:c    -:a
timer.timeout    -:-    -:E    -+2:A    -:C    -:C    -:A    -:c    -:a    -:c    -:a
timer.markers    -:-    -:E    -:O      -+2:C  -+2:C  -+2:A  -:c    -:a    -:c    -:a
expire           -:-    -:-    -:O      -:C    -:C    -:A    -:-    -:-    -:-    -:-
restart          -:-    -:E    -:O      -+2:C  -+2:C  -+2:A  -:c    -:a    -:c    -:a
"""

LETTERS = {
    "Empty": "E",
    "Ongoing": "O",
    "PrepareCommit": "C",
    "PrepareAbort": "A",
    "CompleteCommit": "c",
    "CompleteAbort": "a",
}


def letter(story: Story) -> str:
    transaction = story.shard.transaction(ID)
    return "-" if transaction is None else LETTERS[transaction.state.value]


def cell(story: Story, command: str) -> str:
    """Carry a command out and say what has come of it in the words of the table."""
    if command == "timer.markers":
        story.tasks = []  # its work has failed, or the timer would not run
    step = COMMANDS[command](story)
    what = "-"
    if step.answer is not None:
        errors = [step.answer.error, *getattr(step.answer, "errors", ())]
        what = next((str(error.value) for error in errors if error), "ok")
    markers = sum(len(task.partitions) for task in step.tasks)
    return f"{what}{f'+{markers}' if markers else ''}:{letter(story)}"


def rows() -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in TABLE.strip().splitlines()[1:]}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_in_each_state(command):
    """What the table says; the story kit checks what holds at all times."""
    assert [cell(make(), command) for make in STATES.values()] == rows()[command]


# Which state may follow which in one decision.
LEGAL = {
    "-": "-E",
    "E": "-EOAa",
    "O": "OCA",
    "C": "Cc",
    "A": "Aa",
    "c": "-cEOAa",
    "a": "-aEOAa",
}
# What a client of each API knows how to handle.
ERRORS = {
    "init": {14, 42, 47, 50, 51, 90},
    "add": {42, 47, 48, 49, 51, 90},
    "offsets": {42, 48, 49, 51, 90},
    "verify": {42, 49, 51, 90, 120},
    "commit": {42, 48, 49, 51, 90},
    "abort": {42, 48, 49, 51, 90},
    "commit2": {14, 42, 48, 49, 51, 90},
    "abort2": {14, 42, 48, 49, 51, 90},
    "admin": {14, 48, 51, 105},
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_itself_is_legal(command):
    """Every cell is a transition of the state file, and an error is one the API has."""
    for make, shown in zip(STATES.values(), rows()[command], strict=True):
        what, after = shown.split(":")
        assert after in LEGAL[letter(make())]
        if what.isdigit():
            assert int(what) in ERRORS[command.split(".")[0]]
