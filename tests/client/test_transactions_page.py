"""What the client's page says of transactions is complete."""

import re
from pathlib import Path

import anabranch.client
from anabranch.client.producer_settings import ProducerSettings

PAGE = (Path(__file__).parents[2] / "docs" / "cooperative-client.md").read_text()


def test_every_setting_is_described() -> None:
    """The producer's table has all of its settings, and none that does not exist."""
    table = PAGE.split("| setting of `TransactionalProducer` |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(ProducerSettings.__dataclass_fields__)


def test_names_exist() -> None:
    """What the page names is there for an application."""
    named = set(re.findall(r"\b(\w*Transaction\w*(?:Error|Producer))\b", PAGE))
    assert {"TransactionalProducer", "SyncTransactionalProducer"} <= named
    assert named <= set(anabranch.client.__all__)
