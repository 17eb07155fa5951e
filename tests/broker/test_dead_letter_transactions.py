"""Dead letters of records that are part of transactions."""

from pathlib import Path

import pytest
from test_dispositions import NOW_MS, Desk, hash_of, run

from anabranch.broker import dispositions
from anabranch.coordinator.cooperative.acks import Ack
from anabranch.coordinator.cooperative.commands import Failure
from anabranch.coordinator.cooperative.retries import exhausted_offsets
from anabranch.log.markers import append_marker
from anabranch.model.errors import ErrorCode
from anabranch.model.units import ALL_SLOTS
from anabranch.wire.control_records import ABORT, COMMIT
from anabranch.wire.record_batch import TRANSACTIONAL_FLAG, Record, build_batch

FIRST = 7
"""The first offset behind what the desk has."""


def append(desk: Desk, key: bytes, value: bytes, *, producer: int, sequence: int = 0) -> None:
    batch = build_batch(
        [Record(0, NOW_MS, key, value)],
        base_offset=0,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_FLAG,
    )
    desk.log.append(memoryview(bytearray(batch)), now_ms=NOW_MS, has_transactional_id=True)


def end(desk: Desk, producer: int, control_type: int) -> None:
    append_marker(
        desk.log,
        control_type,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        now_ms=NOW_MS,
    )


def reject(desk: Desk, *records: tuple[int, bytes]) -> None:
    """A member that reads uncommitted records gives up on some."""
    desk.take(
        Ack(ALL_SLOTS, -1, 0),
        failures=tuple(Failure(one, hash_of(key, one), -1, "no") for one, key in records),
    )


def test_aborted_records_are_done(tmp_path: Path) -> None:
    """A copy would be one of a record that was never written; those around it are copied."""

    async def story(desk: Desk) -> None:
        append(desk, b"x", b"gone", producer=1)
        append(desk, b"y", b"kept", producer=2)
        end(desk, 1, ABORT)
        append(desk, b"x", b"later", producer=1, sequence=1)
        end(desk, 1, COMMIT)
        end(desk, 2, COMMIT)
        append(desk, b"z", b"open", producer=1, sequence=2)  # another transaction
        reject(desk, (FIRST, b"x"), (FIRST + 1, b"y"), (FIRST + 3, b"x"))
        await desk.settled()
        assert [one.value for one in desk.letters] == [b"kept", b"later"]
        assert desk.progress.attempts == {}

    run(tmp_path / "d", story, "coop.disposition=dlq")


@pytest.mark.parametrize("control_type", [COMMIT, ABORT])
def test_open_records_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control_type: int
) -> None:
    """What is not decided is not copied, and holds back its key alone, until it is decided."""
    monkeypatch.setattr(dispositions, "_PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(dispositions, "_PAUSE_MAX_S", 0.002)

    async def story(desk: Desk) -> None:
        append(desk, b"x", b"open", producer=1)
        reject(desk, (0, b"a"), (FIRST, b"x"))
        await desk.until(lambda: len(desk.letters) == 1)
        assert exhausted_offsets(desk.progress) == [FIRST]
        answered = desk.broker.groups.dispositions.bury("g", desk.place, FIRST)
        codes: list[int] = []
        answered.deliver_to(lambda outcome: codes.append(outcome.error_code))
        await desk.until(lambda: bool(codes))
        assert codes == [ErrorCode.CONCURRENT_TRANSACTIONS]
        end(desk, 1, control_type)
        await desk.settled()
        copied = [b"open"] if control_type == COMMIT else []
        assert [one.value for one in desk.letters] == [b"v0", *copied]
        assert desk.progress.attempts == {}

    run(tmp_path / "d", story, "coop.disposition=dlq")
