"""Each rule of the checker finds what it is for, in a small history that breaks only that rule."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.client.history import UnreadableHistory, Verdict, check


class Story:
    """Events one second after the other, about one key of one partition unless said otherwise."""

    def __init__(self, *keys: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._acks = 0
        for offset, key in enumerate(keys or "aaaa"):
            self.say("record", offset=offset, key=key, slot=ord(key))

    def say(self, kind: str, member: str = "stage", **facts: Any) -> None:
        place = {"topic": "t", "partition": 0, "member": member, "incarnation": 1}
        self.events.append({"at": float(len(self.events)), "type": kind, **place, **facts})

    def become(self, offset: int, **facts: Any) -> None:
        """What is told of a record of the log."""
        event = next(e for e in self.events if e["type"] == "record" and e["offset"] == offset)
        event.update(facts)

    def everywhere(self, kind: str, member: str = "stage") -> None:
        self.say(kind, member)
        del self.events[-1]["topic"], self.events[-1]["partition"]

    def grant(self, member: str, epoch: int, first: int = 0, end: int = 65536) -> None:
        self.say("grant", member, slots=[first, end], epoch=epoch)

    def end(self, kind: str, member: str) -> None:
        self.say(kind, member, slots=[0, 65536])

    def start(self, member: str, epoch: int, offset: int, **facts: Any) -> None:
        key = next(e["key"] for e in self.events if e.get("offset") == offset)
        facts = {"offset": offset, "key": key, "slot": ord(key), "epoch": epoch, **facts}
        self.say("start", member, **facts)

    def done(self, member: str, offset: int) -> None:
        self.say("done", member, offset=offset)

    def work(self, member: str, epoch: int, *offsets: int) -> None:
        for offset in offsets:
            self.start(member, epoch, offset)
            self.done(member, offset)

    def send(self, member: str, epoch: int, watermark: int, *done: list[int], **facts: Any) -> int:
        self._acks += 1
        told = {"slots": [0, 65536], "epoch": epoch, "watermark": watermark, "done": list(done)}
        self.say("ack_sent", member, ack=self._acks, **told, **facts)
        return self._acks

    def ack(
        self,
        member: str,
        epoch: int,
        watermark: int,
        *done: list[int],
        stable: int = -1,
        **facts: Any,
    ) -> None:
        number = self.send(member, epoch, watermark, *done, **facts)
        self.say("ack_ok", member, ack=number, stable=stable)

    def refuse(self, member: str, number: int, error: str) -> None:
        self.say("ack_refused", member, ack=number, slots=[0, 65536], epoch=1, error=error)

    def check(self) -> Verdict:
        return check(self.events)


def good_hand_over() -> Story:
    """A does two records and gives the slots to B, who does the rest."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    story.end("revoke", "A")
    story.ack("A", 1, 2, stable=2)
    story.grant("B", 2)
    story.work("B", 2, 2, 3)
    story.ack("B", 2, 4, stable=4)
    story.end("revoke", "B")
    story.say("end", offset=4)
    return story


def crash() -> Story:
    """A is killed with one record that is done and not acknowledged; B does it again."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0)
    story.ack("A", 1, 1)
    story.work("A", 1, 1)
    story.start("A", 1, 2)
    story.everywhere("crash", "A")
    story.grant("B", 2)
    story.work("B", 2, 1, 2, 3)
    return story


def zombie() -> Story:
    """A is stopped while it works; B has the slots meanwhile; A wakes up, ends, and is refused."""
    story = Story()
    story.grant("A", 1)
    story.start("A", 1, 0)
    story.everywhere("pause", "A")
    story.grant("B", 2)
    story.work("B", 2, 0, 1, 2, 3)
    story.ack("B", 2, 4)
    story.everywhere("resume", "A")
    story.done("A", 0)
    number = story.send("A", 1, 1)
    story.say("ack_refused", "A", ack=number, slots=[0, 65536])
    story.end("lost", "A")
    return story


def zombie_gives_back() -> Story:
    """A is stopped while it is about to give its slots back, and does so when it wakes up."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0)
    story.start("A", 1, 1)
    number = story.send("A", 1, 1)
    story.everywhere("pause", "A")
    story.grant("B", 2)
    story.work("B", 2, 1, 2, 3)
    story.ack("B", 2, 4)
    story.everywhere("resume", "A")
    story.say("ack_ok", "A", ack=number)
    story.done("A", 1)
    story.end("revoke", "A")
    return story


def woken() -> Story:
    """A is stopped between taking a record and beginning it: nothing but a token helps."""
    story = Story()
    story.grant("A", 1)
    story.everywhere("pause", "A")
    story.grant("B", 2)
    story.work("B", 2, 0, 1, 2, 3)
    story.ack("B", 2, 4)
    story.everywhere("resume", "A")
    story.work("A", 1, 0)
    story.end("lost", "A")
    return story


def retry() -> Story:
    """A record that fails is begun again with a higher attempt, and its key waits."""
    story = Story()
    story.grant("A", 1)
    story.start("A", 1, 0)
    story.say("fail", "A", offset=0)
    story.start("A", 1, 0, attempt=2)
    story.done("A", 0)
    story.work("A", 1, 1, 2, 3)
    return story


def retry_elsewhere() -> Story:
    """A record that failed comes to the next owner, though the last one gave its slots back."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0)
    story.start("A", 1, 1)
    story.say("fail", "A", offset=1)
    story.end("revoke", "A")
    story.ack("A", 1, 1)
    story.grant("B", 2)
    story.work("B", 2, 1, 2, 3)
    return story


def decided() -> Story:
    """A record that is not tried again, because somebody decided so, is done."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0)
    story.start("A", 1, 1)
    story.say("fail", "A", offset=1)
    story.say("decided", offset=1)
    story.work("A", 1, 2, 3)
    story.ack("A", 1, 4, stable=4)
    story.say("end", offset=4)
    return story


def truncated() -> Story:
    """The log loses its last records after they were done, and gets others, which are done too."""
    story = Story()
    for offset in (2, 3):
        story.become(offset, leader_epoch=1)
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    for offset in (2, 3):
        story.start("A", 1, offset, leader_epoch=0)
        story.done("A", offset)
    story.ack("A", 1, 4, stable=4, leader_epoch=0)
    story.say("truncated", offset=2)
    number = story.send("A", 1, 4, leader_epoch=0)
    story.say("ack_refused", "A", ack=number, slots=[0, 65536])
    story.say("stable", offset=2)
    story.end("lost", "A")
    story.grant("A", 2)
    story.work("A", 2, 2, 3)
    story.ack("A", 2, 4, stable=4, leader_epoch=1)
    story.say("end", offset=4)
    return story


def turned_off() -> Story:
    """A gives its slots back and cannot store what it did, because that was turned off."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    story.end("revoke", "A")
    number = story.send("A", 1, 2)
    story.refuse("A", number, "INVALID_REQUEST")
    story.grant("B", 2)
    story.work("B", 2, 0, 1, 2, 3)
    story.ack("B", 2, 4)
    return story


def forgotten() -> Story:
    """What was acknowledged above the stable offset is forgotten, and done again."""
    story = Story(*"abab")
    story.grant("A", 1)
    story.work("A", 1, 0, 1, 3)
    story.ack("A", 1, 2, [3, 3], stable=2)
    story.everywhere("crash", "A")
    story.everywhere("forgotten")
    story.grant("B", 2)
    story.work("B", 2, 2, 3)
    return story


def truncated_key() -> Story:
    """All records of a key are lost while one of them is waiting to be begun."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    story.ack("A", 1, 2)
    story.say("truncated", offset=2)
    story.say("start", "A", offset=2, key="b", slot=ord("b"), epoch=1)
    story.done("A", 2)
    story.end("lost", "A")
    story.grant("A", 1)
    story.work("A", 1, 2, 3)
    return story


def truncated_and_moved() -> Story:
    """Who had begun what was at an offset before the log was cut is given the slot of what is there
    now, after its owner has stored that it is done."""
    story = Story(*"abcb")
    story.become(3, id="new")
    story.grant("A", 1, 0, ord("b"))
    story.grant("B", 1, ord("b"))
    story.work("A", 1, 0)
    story.ack("A", 1, 1)
    story.say("start", "A", offset=3, key="a", slot=ord("a"), epoch=1, id="old")
    story.done("A", 3)
    story.say("truncated", offset=3)
    story.end("lost", "A")
    story.work("B", 1, 1)
    story.start("B", 1, 3, id="new")
    story.done("B", 3)
    story.ack("B", 1, 2, [3, 3])
    story.end("revoke", "B")
    story.grant("A", 2)
    story.work("A", 2, 2)
    story.ack("A", 2, 4, stable=4)
    return story


def not_stored_before_it_moved() -> Story:
    """The same, but its owner has not stored it, so that A must do it and does not."""
    story = truncated_and_moved()
    (sent,) = [e for e in story.events if e["type"] == "ack_sent" and e["member"] == "B"]
    sent["done"] = []
    return story


def forgotten_before_it_moved() -> Story:
    """The same, but what its owner stored was forgotten."""
    story = truncated_and_moved()
    at = next(i for i, event in enumerate(story.events) if event["type"] == "revoke")
    after, story.events = story.events[at:], story.events[:at]
    story.everywhere("forgotten")
    for event in after:
        event["at"] += 1
    story.events += after
    return story


def old_leader_after_it_moved() -> Story:
    """The same, but A speaks of an older log."""
    story = truncated_and_moved()
    story.become(3, leader_epoch=2)
    for event in story.events:
        if event["type"] == "ack_sent":
            event["leader_epoch"] = 2 if event["member"] == "B" else 1
    return story


GOOD = [
    good_hand_over,
    crash,
    zombie,
    zombie_gives_back,
    woken,
    retry,
    retry_elsewhere,
    decided,
    truncated,
    truncated_key,
    truncated_and_moved,
    turned_off,
    forgotten,
]


def test_forgotten_and_crash() -> None:
    """What was forgotten and done again, and not stored before its next owner died, comes once
    more, and is accounted for."""
    story = forgotten()
    story.everywhere("crash", "B")
    story.grant("C", 3)
    story.work("C", 3, 2)
    story.start("C", 3, 3)
    story.say("fail", "C", offset=3)
    story.work("C", 3, 3)
    story.ack("C", 3, 4, stable=4)
    verdict = story.check()
    assert verdict.problems == []
    numbers = verdict.numbers
    assert (numbers["duplicates"], numbers["duplicates bound"], numbers["retries"]) == (3, 3, 1)


@pytest.mark.parametrize("tell", GOOD)
def test_good_history(tell: Callable[[], Story]) -> None:
    """Nothing is wrong with hand-overs, crashes, members that were stopped, and retries."""
    assert tell().check().problems == []


def test_retries_are_no_duplicates() -> None:
    """A record that failed before is not counted as one that was done twice."""
    for tell in (retry, retry_elsewhere):
        numbers = tell().check().numbers
        assert (numbers["retries"], numbers["duplicates"], numbers["fail"]) == (1, 0, 1)


def test_numbers() -> None:
    """What came again is counted, and so is what the dead member had not acknowledged."""
    numbers = crash().check().numbers
    assert numbers["duplicates"] == 2
    assert numbers["duplicates bound"] == 2
    assert numbers["records"] == 4
    assert numbers["starts"] == 6
    assert numbers["crash"] == 1
    assert numbers["slots that moved"] == 1


# What is wrong ------------------------------------------------------------------------------------


def two_owners() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    story.ack("A", 1, 2)
    story.grant("B", 2)
    story.end("revoke", "A")
    story.work("B", 2, 2, 3)
    return story


def not_held() -> Story:
    story = good_hand_over()
    story.work("B", 2, 3)
    return story


def other_epoch() -> Story:
    story = Story("a")
    story.grant("A", 1)
    story.work("A", 2, 0)
    return story


def epoch_fell() -> Story:
    story = Story()
    story.grant("A", 5)
    story.work("A", 5, 0, 1)
    story.everywhere("crash", "A")
    story.grant("B", 4)
    story.work("B", 4, 0, 1, 2, 3)
    return story


def epoch_twice() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    story.everywhere("crash", "A")
    story.grant("B", 1)
    story.work("B", 1, 0, 1, 2, 3)
    return story


def key_order() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1, 3, 2)
    return story


def overtaken() -> Story:
    """A record that failed is not over: the next one of its key has to wait."""
    story = Story()
    story.grant("A", 1)
    story.start("A", 1, 0)
    story.say("fail", "A", offset=0)
    story.work("A", 1, 1)
    story.start("A", 1, 0, attempt=2)
    story.done("A", 0)
    story.work("A", 1, 2, 3)
    return story


def overtaken_and_lost() -> Story:
    story = Story()
    story.grant("A", 1)
    story.start("A", 1, 0)
    story.say("fail", "A", offset=0)
    story.work("A", 1, 1, 2, 3)
    return story


def retried_at_once() -> Story:
    """The same record begins again while it runs."""
    story = Story()
    story.grant("A", 1)
    story.start("A", 1, 0)
    story.start("A", 1, 0, attempt=2)
    story.done("A", 0)
    story.work("A", 1, 1, 2, 3)
    return story


def key_at_once() -> Story:
    story = Story()
    story.grant("A", 1)
    story.start("A", 1, 0)
    story.start("A", 1, 1)
    story.done("A", 0)
    story.done("A", 1)
    story.work("A", 1, 2, 3)
    return story


def interleaved() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0)
    story.grant("B", 2)
    story.work("B", 2, 0, 1)
    story.work("A", 1, 1)
    story.end("lost", "A")
    story.work("B", 2, 2, 3)
    return story


def woken_twice() -> Story:
    """Only the first record after a stop may have been taken before it."""
    story = Story()
    story.grant("A", 1)
    story.everywhere("pause", "A")
    story.grant("B", 2)
    story.work("B", 2, 0, 1, 2, 3)
    story.ack("B", 2, 4)
    story.everywhere("resume", "A")
    story.work("A", 1, 0, 1)
    story.end("lost", "A")
    return story


def woken_and_going_on() -> Story:
    """Who first ends a record after a stop takes the next one after it."""
    story = Story()
    story.grant("A", 1)
    story.start("A", 1, 0)
    story.everywhere("pause", "A")
    story.grant("B", 2)
    story.work("B", 2, 0, 1, 2, 3)
    story.everywhere("resume", "A")
    story.done("A", 0)
    story.work("A", 1, 1)
    story.end("lost", "A")
    return story


def two_hands() -> Story:
    story = Story()
    story.grant("A", 1)
    story.start("A", 1, 0)
    story.grant("B", 2)
    story.work("B", 2, 0, 1, 2, 3)
    story.done("A", 0)
    story.end("revoke", "A")
    return story


def two_owners_after_a_stop() -> Story:
    """Who was stopped and is still a member keeps its slots until it gives them back."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0)
    story.everywhere("pause", "A")
    story.everywhere("resume", "A")
    story.ack("A", 1, 1)
    story.grant("B", 2)
    story.work("B", 2, 1, 2, 3)
    story.end("revoke", "A")
    return story


def skipped_by_the_next() -> Story:
    """B begins above a record that A had begun and nobody acknowledged."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    story.ack("A", 1, 1)
    story.everywhere("crash", "A")
    story.grant("B", 2)
    story.work("B", 2, 2, 3)
    return story


def skipped_within() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1, 3)
    story.everywhere("crash", "A")
    story.grant("B", 2)
    story.work("B", 2, 0, 1, 2, 3)
    return story


def lost() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1, 2)
    return story


def never_ended() -> Story:
    """A record that was begun and not done is lost as well."""
    story = lost()
    story.start("A", 1, 3)
    return story


def ack_before_done() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0)
    story.ack("A", 1, 2)
    story.work("A", 1, 1, 2, 3)
    return story


def ack_above_before_done() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0)
    story.ack("A", 1, 1, [2, 3])
    story.work("A", 1, 1, 2, 3)
    return story


def ack_not_fenced() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0)
    story.grant("B", 2)
    story.ack("A", 1, 1)
    story.end("lost", "A")
    story.work("B", 2, 0, 1, 2, 3)
    return story


def ack_of_others() -> Story:
    """B says that a record is done which A had done, who died before it could say so."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1, 2, 3)
    story.everywhere("crash", "A")
    story.grant("B", 2)
    story.ack("B", 2, 4)
    return story


def ack_of_another_leader_epoch() -> Story:
    """The log was cut, and an acknowledgement of what was there before counts for what is now."""
    story = Story()
    story.become(3, leader_epoch=1)
    story.grant("A", 1)
    story.work("A", 1, 0, 1, 2)
    story.start("A", 1, 3, leader_epoch=0)
    story.done("A", 3)
    story.say("truncated", offset=3)
    story.ack("A", 1, 4, leader_epoch=0)
    story.end("lost", "A")
    story.grant("B", 2)
    story.work("B", 2, 3)
    return story


def ack_of_an_older_leader() -> Story:
    """Who did not hear of a leader cannot have seen its records."""
    story = Story()
    story.become(3, leader_epoch=5)
    story.grant("A", 1)
    story.work("A", 1, 0, 1, 2, 3)
    story.ack("A", 1, 4, leader_epoch=4)
    return story


def ack_of_another_record() -> Story:
    """The same without leader epochs, by what the records are."""
    story = Story()
    story.become(3, id="new")
    story.grant("A", 1)
    story.work("A", 1, 0, 1, 2)
    story.start("A", 1, 3, id="old")
    story.done("A", 3)
    story.say("truncated", offset=3)
    story.ack("A", 1, 4)
    story.end("lost", "A")
    story.grant("B", 2)
    story.start("B", 2, 3, id="new")
    story.done("B", 3)
    return story


def stable_over_a_cut() -> Story:
    """The stable offset has to come back to where the log was cut."""
    story = truncated()
    (back,) = [event for event in story.events if event["type"] == "stable"]
    back["offset"] = 3
    return story


def other_record() -> Story:
    """A record that the log does not have, though nobody cut it."""
    story = Story()
    story.become(3, id="right")
    story.grant("A", 1)
    story.work("A", 1, 0, 1, 2)
    story.start("A", 1, 3, id="wrong")
    story.done("A", 3)
    story.start("A", 1, 3, id="right")
    story.done("A", 3)
    return story


def former_record_of_a_new_tenure() -> Story:
    """Who is granted a slot after the log was cut has heard of it."""
    story = truncated_key()
    cut = next(event for event in story.events if event["type"] == "truncated")
    granted = next(event for event in story.events if event["type"] == "grant")
    cut["at"] = granted["at"] - 0.5
    return story


def acked_again() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    story.ack("A", 1, 2)
    story.everywhere("crash", "A")
    story.grant("B", 2)
    story.work("B", 2, 1, 2, 3)
    return story


def forgotten_below_stable() -> Story:
    """The stable offset survives the loss of the individual commits."""
    story = Story(*"abab")
    story.grant("A", 1)
    story.work("A", 1, 0, 1, 3)
    story.ack("A", 1, 2, [3, 3], stable=2)
    story.everywhere("crash", "A")
    story.everywhere("forgotten")
    story.grant("B", 2)
    story.work("B", 2, 1, 2, 3)
    return story


def forgotten_once() -> Story:
    """What is stored again after it was forgotten stays stored."""
    story = forgotten()
    story.ack("B", 2, 4, stable=4)
    story.everywhere("crash", "B")
    story.grant("C", 3)
    story.work("C", 3, 3)
    return story


def needless() -> Story:
    """Who gives slots back in order stores what was done before."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    story.end("revoke", "A")
    story.grant("B", 2)
    story.work("B", 2, 0, 1, 2, 3)
    return story


def gave_back_too_early() -> Story:
    """Who gives slots back before its progress is stored is refused because they are others'."""
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    story.end("revoke", "A")
    number = story.send("A", 1, 2)
    story.grant("B", 2)
    story.refuse("A", number, "FENCED_MEMBER_EPOCH")
    story.work("B", 2, 0, 1, 2, 3)
    return story


def stored_at_last() -> Story:
    """What was refused once and stored then does not come again."""
    story = turned_off()
    (granted,) = [event for event in story.events if event.get("member") == "B"][:1]
    at = story.events.index(granted)
    after, story.events = story.events[at:], story.events[:at]
    story.ack("A", 1, 1)
    for event in after:
        event["at"] += 3
    story.events += after
    return story


def stable_ahead() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    story.say("stable", offset=3)
    story.work("A", 1, 2, 3)
    return story


def acked_stable_ahead() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1)
    story.ack("A", 1, 2, stable=3)
    story.work("A", 1, 2, 3)
    return story


def stable_fell() -> Story:
    story = good_hand_over()
    story.say("stable", offset=3)
    return story


def not_stored() -> Story:
    story = Story()
    story.grant("A", 1)
    story.work("A", 1, 0, 1, 2, 3)
    story.ack("A", 1, 3, stable=3)
    story.say("end", offset=4)
    return story


def failed() -> Story:
    story = good_hand_over()
    story.everywhere("failed", "B")
    return story


def unknown_record() -> Story:
    story = good_hand_over()
    story.events[0]["key"] = "b"
    return story


def unknown_ack() -> Story:
    story = good_hand_over()
    story.say("ack_ok", "B", ack=99, stable=4)
    return story


BAD: list[tuple[Callable[[], Story], set[str]]] = [
    (two_owners, {"two-owners"}),
    (two_owners_after_a_stop, {"two-owners"}),
    (not_held, {"not-held"}),
    (other_epoch, {"not-held"}),
    (epoch_fell, {"epoch-fell", "interleaved"}),
    (epoch_twice, {"epoch-twice"}),
    (key_order, {"key-order", "skipped"}),
    (overtaken, {"key-order"}),
    (overtaken_and_lost, {"key-order", "lost"}),
    (retried_at_once, {"key-at-once", "key-order", "needless"}),
    (key_at_once, {"key-at-once"}),
    (interleaved, {"interleaved", "needless"}),
    (woken_twice, {"epoch-fell", "interleaved", "needless"}),
    (woken_and_going_on, {"interleaved", "needless"}),
    (two_hands, {"two-owners", "two-hands", "needless"}),
    (skipped_by_the_next, {"skipped"}),
    (skipped_within, {"skipped"}),
    (lost, {"lost"}),
    (never_ended, {"lost"}),
    (ack_before_done, {"ack-before-done"}),
    (ack_above_before_done, {"ack-before-done"}),
    (ack_not_fenced, {"ack-not-fenced"}),
    (ack_of_others, {"ack-of-others"}),
    (ack_of_another_leader_epoch, {"ack-other-record"}),
    (ack_of_an_older_leader, {"ack-other-record"}),
    (ack_of_another_record, {"ack-other-record"}),
    (not_stored_before_it_moved, {"ack-other-record"}),
    (forgotten_before_it_moved, {"ack-other-record"}),
    (old_leader_after_it_moved, {"ack-other-record"}),
    (stable_over_a_cut, {"stable-ahead"}),
    (other_record, {"unknown-record"}),
    (former_record_of_a_new_tenure, {"unknown-record"}),
    (acked_again, {"acked-again"}),
    (forgotten_below_stable, {"acked-again"}),
    (forgotten_once, {"acked-again"}),
    (needless, {"needless"}),
    (gave_back_too_early, {"needless"}),
    (stored_at_last, {"acked-again", "needless"}),
    (stable_ahead, {"stable-ahead"}),
    (acked_stable_ahead, {"stable-ahead"}),
    (stable_fell, {"stable-fell"}),
    (not_stored, {"not-stored"}),
    (failed, {"failed"}),
    (unknown_record, {"unknown-record", "lost", "ack-before-done", "stable-ahead"}),
    (unknown_ack, {"unknown-ack"}),
]


@pytest.mark.parametrize(("tell", "rules"), BAD)
def test_bad_history(tell: Callable[[], Story], rules: set[str]) -> None:
    """A history that breaks a rule is found by it, and by no other than those that follow."""
    verdict = tell().check()
    assert verdict.rules - {"too-many-duplicates"} == rules, verdict.problems


def test_every_rule_can_be_broken() -> None:
    """Each rule that the page has is broken by one of these histories, and there are no others."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "history.md"
    table = page.read_text().split("| rule | broken when |")[1].split("\n\n")[0]
    rules = {rule for line in table.splitlines() for rule in re.findall("`([a-z-]+)`", line[:60])}
    assert rules - {"too-many-duplicates"} == set().union(*(broken for _, broken in BAD))


def test_too_many_duplicates() -> None:
    """More may not come again than the dead and the fenced had not stored."""
    assert "too-many-duplicates" in needless().check().rules
    assert "too-many-duplicates" not in crash().check().rules


# The tool -----------------------------------------------------------------------------------------


def _run(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anabranch.client.history", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _write(path: Path, story: Story) -> None:
    path.write_text("".join(json.dumps(event) + "\n" for event in story.events))


def test_tool(tmp_path: Path) -> None:
    """The tool reads all files of a folder, also one whose writer was killed in mid-line."""
    story = crash()
    half = len(story.events) // 2
    story.events, rest = story.events[:half], story.events[half:]
    _write(tmp_path / "one.jsonl", story)
    story.events = rest
    _write(tmp_path / "two.jsonl", story)
    with (tmp_path / "two.jsonl").open("a") as file:
        file.write('{"at": 99, "type": "sta')
    ended = _run(tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert "duplicates:         2" in ended.stdout
    assert ended.stdout.endswith("nothing is wrong\n")


def test_tool_finds(tmp_path: Path) -> None:
    """The tool says what is wrong, as text and as JSON, and ends with 1."""
    _write(tmp_path / "one.jsonl", lost())
    ended = _run(tmp_path / "one.jsonl")
    assert ended.returncode == 1
    assert "lost: 1 records were never done, the first is 3 [t-0]" in ended.stdout
    verdict = json.loads(_run(tmp_path, "--json").stdout)
    assert verdict["problems"] == ["lost: 1 records were never done, the first is 3 [t-0]"]
    assert verdict["numbers"]["records"] == 4


def test_event_without_its_fields() -> None:
    """What is an event by name only is not judged."""
    story = good_hand_over()
    del story.events[4]["epoch"]
    with pytest.raises(UnreadableHistory, match="epoch"):
        story.check()


def test_tool_helps() -> None:
    """The tool says how it is used."""
    told = _run(Path("--help")).stdout
    assert "python -m anabranch.client.history" in told and "Exit code" in told


@pytest.mark.parametrize("text", ["", "nonsense\n{}\n", '{"type": "start"}\n\n'])
def test_tool_refuses(tmp_path: Path, text: str) -> None:
    """What is no history is not judged."""
    (tmp_path / "one.jsonl").write_text(text)
    ended = _run(tmp_path)
    assert ended.returncode == 2
    assert "the history cannot be read" in ended.stderr
