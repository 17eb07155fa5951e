"""What is counted of transactions."""

import pytest
from transaction_kit import TIMEOUT_MS, Transactions, failing_append

from anabranch.observe import metrics as m


def collected(transactions: Transactions) -> dict[str, m.Values]:
    found = transactions.broker.transactions.collect_metrics()
    return {metric.name: values for metric, values in found}


def test_transactions_are_counted(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States and the age of the oldest as they are now; markers and timeouts as they came."""
    nothing = collected(transactions)
    assert set(nothing[m.TRANSACTIONS.name].values()) == {0}
    assert nothing[m.TRANSACTION_OLDEST_SECONDS.name] == {(): 0}
    producer = transactions.init()
    transactions.begin(producer, 0, 1)
    transactions.pass_ms(3_000)
    found = collected(transactions)
    assert found[m.TRANSACTIONS.name][("Ongoing",)] == 1
    assert found[m.TRANSACTION_OLDEST_SECONDS.name] == {(): 3}
    with monkeypatch.context() as broken:
        broken.setattr(transactions.log(1), "append", failing_append)
        transactions.end(producer)
        found = collected(transactions)
        assert found[m.TRANSACTIONS.name][("PrepareCommit",)] == 1
        assert found[m.TRANSACTION_OLDEST_SECONDS.name] == {(): 3}
        assert found[m.TRANSACTION_MARKERS.name] == {("written",): 1, ("failed",): 1}
    transactions.pass_ms(1_000)
    transactions.begin(transactions.init(), 0)
    transactions.pass_ms(TIMEOUT_MS)
    found = collected(transactions)
    assert found[m.TRANSACTIONS.name] == {
        ("Empty",): 0,
        ("Ongoing",): 0,
        ("PrepareCommit",): 0,
        ("PrepareAbort",): 0,
        ("CompleteCommit",): 0,
        ("CompleteAbort",): 1,
    }
    assert found[m.TRANSACTION_OLDEST_SECONDS.name] == {(): 0}
    assert found[m.TRANSACTION_MARKERS.name] == {("written",): 3, ("failed",): 1}
    assert found[m.TRANSACTION_TIMEOUTS.name] == {(): 1}


def test_a_shard_that_is_refused_is_not_counted(transactions: Transactions) -> None:
    """What cannot be read is not said to be there."""
    transactions.begin(transactions.init(), 0)
    transactions.broker.transactions.stop()
    assert set(collected(transactions)[m.TRANSACTIONS.name].values()) == {0}
