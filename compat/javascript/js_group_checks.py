"""What groups of JavaScript members must live through; one function per check."""

from __future__ import annotations

from collections.abc import Callable

from js_client import LIBRARIES, Target
from js_members import SESSION_MS, Group

Check = Callable[[Target], None]
KINDS = {
    **{f"{library}, classic group": (library, "classic") for library in LIBRARIES},
    "platformatic, KIP-848": ("platformatic", "consumer"),
}


def scaling(library: str, protocol: str) -> Check:
    """One member, then three; the first leaves, a fourth comes."""

    def check(target: Target) -> None:
        with Group(target, library, "scale", protocol=protocol) as group:
            group.start()
            first = group.join()
            group.settle([first])
            others = [group.join() for _ in range(2)]
            group.settle([first, *others])
            first.close()
            group.settle(others)
            group.settle([*others, group.join()])
            group.finish()

    return check


def killed(library: str, protocol: str) -> Check:
    """One of three is killed at work: the others take over what it had after its session."""

    def check(target: Target) -> None:
        with Group(target, library, "killed", protocol=protocol) as group:
            group.start()
            victim, *others = [group.join() for _ in range(3)]
            group.settle(group.members)
            share = victim.owned
            victim.kill()
            died_at = victim.ended_at
            group.settle(others)
            group.finish()
            taken = [
                span.began
                for other in others
                for span in other.spans()
                if span.partition in share and span.began > died_at
            ]
            # Its last heartbeat may be older than its death by an interval and a bit.
            assert min(taken) - died_at > SESSION_MS / 2000, "taken over before its session ended"

    return check


def broker_killed(library: str, protocol: str) -> Check:
    """The broker is killed under a working group and started again; the offsets are there."""

    def check(target: Target) -> None:
        if target.server is None:
            raise LookupError("the broker is not ours to kill")
        with Group(target, library, "restart", protocol=protocol) as group:
            group.start()
            members = [group.join() for _ in range(2)]
            group.settle(members)
            target.server.kill()
            target.server.start()
            group.settle(members)
            for member in members:
                member.close()
            group.settle([group.join()])
            group.finish()

    return check


_STORIES: dict[str, Callable[[str, str], Check]] = {
    "1 member, 3, one leaves, one comes": scaling,
    "one of 3 members killed": killed,
    "the broker killed under 2 members": broker_killed,
}
GROUP_CHECKS: dict[str, Check] = {
    f"{kind}: {story}": make(library, protocol)
    for kind, (library, protocol) in KINDS.items()
    for story, make in _STORIES.items()
}
