"""Members of consumer groups come and go: stock librdkafka, group.protocol=consumer."""

from stage import Stage


def test_scale_out_and_in(brief_stage: Stage) -> None:
    """A group goes from one member to ten and to three, by closes and by kills, under load."""
    stage = brief_stage
    stage.create("orders", 20)
    members = [stage.join()]
    stage.shared(members)
    stage.flowing()
    members += [stage.join() for _ in range(9)]
    stage.shared(members)
    stage.flowing()
    leaving, dying, staying = members[:4], members[4:7], members[7:]
    stage.close(leaving)
    for member in dying:
        member.kill()
    stage.shared(staying)
    stage.flowing()
    stage.finish(faulty=dying)


def test_zombie(brief_stage: Stage) -> None:
    """A member stopped past its session, just before a commit, is refused; then it rejoins."""
    stage = brief_stage
    stage.create("orders", 6)
    zombie, other = stage.join(), stage.join()
    stage.shared([zombie, other])
    stage.flowing()
    zombie.pause()
    stage.wait_for(lambda: bool(zombie.of("pausing")), "the accident")
    stage.shared([other])
    stage.flowing()
    committed = stage.committed()
    zombie.wake()
    stage.wait_for(lambda: bool(zombie.refusals), "the refusal of the late commit")
    partition, error = zombie.refusals[0]
    last = next(i for i, event in enumerate(zombie.events) if event["event"] == "pausing") - 1
    assert partition == zombie.events[last]["partition"]
    assert error in ("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH")
    stage.shared([zombie, other])
    assert zombie.of("lost")
    assert all(stage.committed()[p] >= offset for p, offset in committed.items())
    stage.flowing()
    stage.finish(faulty=[zombie])


def test_static_members_restart(stage: Stage) -> None:
    """Static members that restart one by one get back what they had; nobody else is told."""
    stage.create("orders", 9)
    members = [stage.join(instance=f"i{number}") for number in range(3)]
    stage.shared(members)
    stage.flowing()
    before = stage.stable()
    for number in range(3):
        had, told = members[number].owned, [member.rebalances for member in members]
        members[number].close()
        members[number] = back = stage.join(instance=f"i{number}")
        stage.wait_for(lambda back=back: len(back.owned) > 0, "the return of a member")
        stage.flowing()
        assert back.owned == had
        told[number] = back.rebalances
        assert [member.rebalances for member in members] == told
    after = stage.stable()
    assert (after.group_epoch, after.assignment_epoch) == (
        before.group_epoch,
        before.assignment_epoch,
    )
    stage.finish()


def test_static_member_crashes(brief_stage: Stage) -> None:
    """Who comes back under an instance id within the session of the crashed one is refused.

    That is what Kafka does; it is fatal to the client, and right again when the session is over.
    """
    stage = brief_stage
    stage.create("orders", 6)
    dead, other = stage.join(instance="i0"), stage.join(instance="i1")
    stage.shared([dead, other])
    stage.flowing()
    had = dead.owned
    dead.kill()
    early = stage.join(instance="i0")
    early.join()
    (fatal,) = early.of("fatal")
    # librdkafka's words for UNRELEASED_INSTANCE_ID.
    assert "The instance ID is still used by another member" in fatal["text"]
    stage.shared([other])
    back = stage.join(instance="i0")
    stage.shared([back, other])
    assert len(back.owned) == len(had)
    stage.flowing()
    stage.finish(faulty=[dead])
