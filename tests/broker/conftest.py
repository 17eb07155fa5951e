"""A broker with groups on a temporary folder, in a loop where nothing happens by itself."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("group_kit", "transaction_kit")

from group_kit import Groups  # noqa: E402 - after the registration
from transaction_kit import Transactions  # noqa: E402

from anabranch.observe import logs  # noqa: E402
from support.fake_loop import FakeLoop, fake_loop  # noqa: E402


@pytest.fixture
def loop() -> Iterator[FakeLoop]:
    with fake_loop() as loop:
        yield loop


@pytest.fixture
def make_groups(tmp_path: Path, loop: FakeLoop) -> Iterator[Callable[..., Groups]]:
    """Start a broker with overrides; `folder` tells apart those that must not share data."""
    made: list[Groups] = []

    def make(*overrides: str, folder: str | Path = "data") -> Groups:
        made.append(Groups(tmp_path / folder, loop, *overrides))
        return made[-1]

    yield make
    for groups in made:
        groups.close()


@pytest.fixture
def groups(make_groups: Callable[..., Groups]) -> Groups:
    """A broker whose journal has one partition."""
    return make_groups()


@pytest.fixture
def make_transactions(tmp_path: Path, loop: FakeLoop) -> Iterator[Callable[..., Transactions]]:
    """Start a broker with overrides; `folder` tells apart those that must not share data."""
    made: list[Transactions] = []

    def make(*overrides: str, folder: str | Path = "data", **how: Any) -> Transactions:
        made.append(Transactions(tmp_path / folder, loop, *overrides, **how))
        return made[-1]

    yield make
    for transactions in made:
        transactions.close()


@pytest.fixture
def transactions(make_transactions: Callable[..., Transactions]) -> Transactions:
    """A broker whose journal of transactions has one partition."""
    return make_transactions()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The events that are logged, whatever their level, with their facts."""
    found: list[tuple[str, dict[str, Any]]] = []
    for level in ("info", "warning", "error"):
        monkeypatch.setattr(
            logs, level, lambda name, /, **fields: found.append((name, fields)), raising=True
        )
    return found
