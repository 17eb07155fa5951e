"""The client's page and example: complete, and they run."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import anabranch.client
from anabranch.client import ConsumerSettings
from anabranch.wire.record_batch import Record, build_batch
from support.broker_process import BrokerProcess
from support.raw_client import RawClient
from support.topics import create_topic

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cooperative-client.md").read_text()
EXAMPLE = ROOT / "examples" / "cooperative" / "worker.py"


def test_every_setting_is_described() -> None:
    """The table has all settings, and none that does not exist."""
    table = PAGE.split("## Settings")[1].split("## Errors")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(ConsumerSettings.__dataclass_fields__)


def test_names_exist() -> None:
    """Every class that the page names in code is there for an application."""
    named = set(re.findall(r"`([A-Z]\w+(?:Error|Record|Consumer|Range|Partition))[`(]", PAGE))
    assert {"SyncCooperativeConsumer", "RejectRecord", "CommitFailedError"} <= named
    assert named <= set(anabranch.client.__all__)


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_code_compiles(code: str) -> None:
    """Code on the page is at least Python."""
    if "await" in code or "async" in code:
        code = "async def page():\n" + "".join(f"    {line}\n" for line in code.splitlines())
    compile(code, "page", "exec")


def test_example(broker: BrokerProcess) -> None:
    """Two workers share the orders, one is stopped in order, and both say what they did."""
    create_topic(broker.bootstrap, "orders", 1, {"range.fetch.enable": "true"})
    records = [Record(i, 0, b"customer-%d" % (i % 50), b"") for i in range(1000)]
    with RawClient(broker.bootstrap) as client:
        batch = build_batch(records, base_offset=0, partition_leader_epoch=-1)
        assert client.produce("orders", 0, batch).error_code == 0
    command = [sys.executable, str(EXAMPLE), "--bootstrap-server", broker.bootstrap, "--work-ms=2"]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            while " 0 to do" not in worker.stdout.readline():
                time.sleep(0)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        ended = [worker.communicate(timeout=60) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [errors for _, errors in ended] == ["", ""]
    handled = [int(re.findall(r"handled (\d+) orders", out)[0]) for out, _ in ended]
    assert sum(handled) == 1000
