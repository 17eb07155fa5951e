"""What happens to the word count, and what must be true of its output all the same."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping

from word_count import SESSION_MS, TRANSACTION_TIMEOUT_MS, Count, Target, WordCount

Story = Callable[[WordCount], None]
Check = Callable[[Target], None]


def one_process(app: WordCount) -> None:
    """One process that dies again and again, once without its state folder, and the broker once."""
    process = app.start()
    app.wait_for_counts()
    for round_number in range(5):
        if round_number == 2:
            # While it starts, finds its group, or restores its store.
            app.sleep(0.5, 6.0)
        else:
            app.wait_for_counts()
            app.sleep(0.2, 2.5)
        app.kill(process)
        if round_number == 3:
            app.lose_state("a")
        process = app.start()
        if round_number == 1:
            app.wait_for_counts()
            app.sleep(0.2, 1.0)
            app.server.kill()
            app.sleep(0.1, 1.0)
            app.server.start()
            app.wait_for_counts(1_000)
    app.wait_for_counts(1_000)
    app.finish()


def two_processes(app: WordCount) -> None:
    """Two processes: they die in turn, and one is frozen until another has taken its work.

    After it has thawed it is a zombie with an open transaction and records to send.
    """
    running = {"a": app.start("a"), "b": app.start("b")}
    app.wait_for_counts(1_000)
    for instance in ("a", "b"):
        app.sleep(0.2, 2.0)
        app.kill(running[instance])
        running[instance] = app.start(instance)
        app.wait_for_counts(1_000)
    app.sleep(1.0, 2.0)
    zombie = running["a"]
    zombie.freeze()
    longest_ms = max(SESSION_MS, TRANSACTION_TIMEOUT_MS)
    app.sleep(longest_ms / 1000 + 1, longest_ms / 1000 + 3)
    app.wait_for_counts(1_000)
    zombie.thaw()
    app.wait_for_counts(1_000)
    app.finish()


def broker(app: WordCount) -> None:
    """The broker dies again and again, at last together with the process that it serves."""
    process = app.start()
    for round_number in range(5):
        app.wait_for_counts(500)
        app.sleep(0.1, 1.5)
        app.server.kill()
        if round_number == 4:
            app.kill(process)
        app.sleep(0.1, 1.0)
        app.server.start()
        if round_number == 4:
            app.start()
    app.wait_for_counts(500)
    app.finish()


STORIES: Mapping[str, Story] = {
    "one process": one_process,
    "zombie": two_processes,
    "broker": broker,
}


# What must be true of it ----------------------------------------------------------------------


def _input_is_there(app: WordCount) -> None:
    _assert_same(app.input_words(), app.lines.words, "words of the input")


def _last_counts_are_true(app: WordCount) -> None:
    last = {count.word: count.count for count in app.output()}
    _assert_same(last, app.lines.words, "last counts")


def _every_step_is_there_once(app: WordCount) -> None:
    steps: dict[str, list[int]] = collections.defaultdict(list)
    partitions: dict[str, set[int]] = collections.defaultdict(set)
    for count in app.output():
        steps[count.word].append(count.count)
        partitions[count.word].add(count.partition)
    for word, counts in steps.items():
        assert len(partitions[word]) == 1, f"{word} is in partitions {partitions[word]}"
        for expected, count in enumerate(counts, start=1):
            assert count == expected, f"{word} goes on with {count} where {expected} is due"
    _assert_same({w: len(c) for w, c in steps.items()}, app.lines.words, "steps")


def _follower_saw_the_same(app: WordCount) -> None:
    def by_place(counts: list[Count]) -> list[Count]:
        return sorted(counts, key=lambda count: (count.partition, count.offset))

    followed, output = app.follower.counts, app.output()
    assert len(followed) == len(output), f"{len(followed)} were followed of {len(output)}"
    assert by_place(followed) == by_place(output), "other records than there are now"
    for number in range(1 + max(count.partition for count in followed)):
        offsets = [count.offset for count in followed if count.partition == number]
        assert offsets == sorted(offsets), f"partition {number} went back"


def _kills_left_aborted_records(app: WordCount) -> None:
    """Otherwise all of this shows nothing."""
    if app.kill_count < 2:
        raise LookupError("a single kill may have come between two transactions")
    aborted = len(app.output("read_uncommitted")) - len(app.output())
    assert aborted > 0, f"no aborted record after {app.kill_count} kills"


def _changelog_agrees(app: WordCount) -> None:
    _assert_same(app.changelog(), app.lines.words, "counts in the changelog")


def _group_is_at_the_end(app: WordCount) -> None:
    lag = app.input_lag()
    assert not any(lag.values()), f"the group is behind the end of its input: {lag}"


def _nothing_is_open(app: WordCount) -> None:
    unstable = app.unstable()
    assert not unstable, f"offsets that a reader of committed records cannot reach: {unstable}"


def _repartition_topic_is_purged(app: WordCount) -> None:
    assert app.purged() > 0, "nothing was deleted"


_AFTERWARDS: Mapping[str, Story] = {
    "the input is there once": _input_is_there,
    "the last counts are true": _last_counts_are_true,
    "each word counts 1, 2, 3, ...": _every_step_is_there_once,
    "a reader that followed saw the same": _follower_saw_the_same,
    "kills left aborted records": _kills_left_aborted_records,
    "the changelog agrees": _changelog_agrees,
    "the group is at the end of its input": _group_is_at_the_end,
    "no transaction is left open": _nothing_is_open,
    "the repartition topic is purged": _repartition_topic_is_purged,
}


def checks_of(name: str) -> dict[str, Check]:
    """The story itself, which is played once, and what must be true afterwards."""
    checks: dict[str, Check] = {f"{name}: runs to its end": functools.partial(_play, name)}
    for what, check in _AFTERWARDS.items():
        checks[f"{name}: {what}"] = functools.partial(_afterwards, name, check)
    return checks


def _play(name: str, target: Target) -> None:
    app = WordCount(target, name.replace(" ", "-"))
    try:
        STORIES[name](app)
        target.played[name] = app
    finally:
        app.end()
        uncaught = f", threads ended by {app.uncaught()[:3]}" if app.uncaught() else ""
        print(
            f"        {app.lines.count} lines, {app.lines.words.total()} words,"
            f" {app.kill_count} processes killed{uncaught}",
            flush=True,
        )


def _afterwards(name: str, check: Story, target: Target) -> None:
    if name not in target.played:
        raise LookupError("the story did not run to its end")
    check(target.played[name])


def _assert_same(found: Mapping[str, int], expected: Mapping[str, int], what: str) -> None:
    wrong = {
        word: (found.get(word, 0), expected.get(word, 0))
        for word in found.keys() | expected.keys()
        if found.get(word, 0) != expected.get(word, 0)
    }
    assert not wrong, f"{what}: {len(wrong)} wrong, (found, true): {dict(list(wrong.items())[:5])}"
