"""kill -9 while topics are made and deleted: what was answered is so, and nothing is half done."""

import random
import threading
from collections.abc import Callable

import pytest

from anabranch.model.errors import ErrorCode
from support.broker_process import BrokerProcess, wait_until
from support.raw_client import RawClient, batch_of
from support.topics import create_topic

PARTITIONS = 5
ROUNDS = 8


class TopicLoad:
    """Makes topics, and deletes every other one, until the broker goes away."""

    def __init__(self, bootstrap: str, first: int) -> None:
        self._bootstrap = bootstrap
        self._next = first
        self.made: list[str] = []
        self.deleted: list[str] = []
        self.in_doubt: str | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self.in_doubt = name = f"t{self._next}"
                self._next += 1
                create_topic(self._bootstrap, name, PARTITIONS)
                self.made.append(name)
                if len(self.made) % 2:
                    with RawClient(self._bootstrap) as client:
                        client.delete_topic(name)
                    self.made.remove(name)
                    self.deleted.append(name)
                self.in_doubt = None
        except (OSError, EOFError):
            pass  # the broker was killed
        except Exception as error:
            self.error = error

    def join(self) -> None:
        self._thread.join()
        assert self.error is None


@pytest.mark.slow
def test_topics_are_whole_or_absent(make_broker: Callable[..., BrokerProcess]) -> None:
    """Each topic that was acknowledged works in all its partitions; each deleted one is gone."""
    broker = make_broker()
    rng = random.Random(8)
    made: set[str] = set()
    gone: set[str] = set()
    for number in range(ROUNDS):
        load = TopicLoad(broker.bootstrap, 1000 * number)
        wanted = rng.randrange(1, 6)
        assert wait_until(
            lambda load=load, wanted=wanted: len(load.deleted) >= wanted, period_s=0.001
        )
        broker.kill()
        load.join()
        broker.start()
        made.update(load.made)
        gone.update(load.deleted)
        in_doubt = {load.in_doubt} - {None}
        made -= in_doubt
        with RawClient(broker.bootstrap) as client:
            found = {topic.name: topic for topic in client.metadata().topics}
            assert made <= set(found) <= made | in_doubt
            assert not gone & set(found)
            for name in set(found) & in_doubt:
                made.add(name)
            for name in made:
                assert len(found[name].partitions) == PARTITIONS
            for name in load.made:
                if name in found:
                    answers = [client.produce(name, p, batch_of([b"v"])) for p in range(PARTITIONS)]
                    assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
    assert broker.stop() == 0
    folders = {path.name for path in broker.data_dir.iterdir() if path.is_dir()}
    assert {f"{name}-{p}" for name in made for p in range(PARTITIONS)} == {
        name for name in folders if not name.endswith(("-delete", "-stray"))
    }
