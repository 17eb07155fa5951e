"""`anabranch topics` against a broker: golden text and JSON, refusals, questions."""

import re
from collections.abc import Callable

import pytest

from support.broker_process import BrokerProcess

TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


@pytest.fixture
def topics(run: Callable, shared_broker: BrokerProcess) -> Callable:
    """`anabranch topics ...` on the shared broker."""

    def run_topics(verb: str, *arguments: object, **options: object) -> object:
        return run(
            "topics", verb, *arguments, "--bootstrap-server", shared_broker.bootstrap, **options
        )

    return run_topics


def test_an_empty_cluster(run: Callable, broker: BrokerProcess) -> None:
    """Without topics, text is headers alone and JSON is an empty list."""
    flags = ("--bootstrap-server", broker.bootstrap)
    assert run("topics", "list", *flags).out == (
        "TOPIC  PARTITIONS  REPLICATION-FACTOR  BRANCH-OF\n"
    )
    assert run("topics", "list", *flags, "--format", "json").out == "[]\n"
    assert run("topics", "describe", *flags, "--format", "json").out == "[]\n"
    assert run("topics", "describe", *flags).out == (
        "TOPIC  TOPIC-ID  PARTITION-COUNT  REPLICATION-FACTOR  CONFIGS\n"
        "\n"
        "TOPIC  PARTITION  LEADER  REPLICAS  ISR\n"
    )


def test_create_and_list(topics: Callable) -> None:
    """Creating shows what the broker made of it, and listing shows it sorted."""
    result = topics("create", "create-b", "create-a", "--partitions", 3)
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "TOPIC     PARTITIONS  REPLICATION-FACTOR  STATUS\n"
        "create-b  3           1                   created\n"
        "create-a  3           1                   created\n"
    )
    listed = topics("list")
    assert re.search(r"create-a +3 +1 +-\ncreate-b +3 +1 +-\n", listed.out)
    row = {"topic": "create-a", "partitions": 3, "replication_factor": 1, "branch_of": None}
    assert row in topics("list", "--format", "json").document


def test_defaults_are_the_brokers(topics: Callable) -> None:
    """Without counts the broker's num.partitions decides, and the answer says what it was."""
    assert topics("create", "default-counts", "--format", "json").document == [
        {
            "topic": "default-counts",
            "partitions": 4,
            "replication_factor": 1,
            "status": "created",
            "error": None,
        }
    ]


def test_the_server_may_come_from_the_environment(
    run: Callable, shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ANABRANCH_BOOTSTRAP_SERVER replaces the flag."""
    monkeypatch.setenv("ANABRANCH_BOOTSTRAP_SERVER", shared_broker.bootstrap)
    assert run("topics", "list").code == 0


def test_create_what_exists(topics: Callable) -> None:
    """An existing topic is a failure with its sentence, unless --if-not-exists accepts it."""
    topics("create", "exists-already", "--partitions", 2)
    refused = topics("create", "exists-already")
    assert refused.code == 1
    assert refused.err == (
        "error: Topic 'exists-already' was not created - topic 'exists-already' already exists"
        " - pass --if-not-exists to accept that, or choose another name\n"
    )
    accepted = topics("create", "exists-already", "--if-not-exists", "--format", "json")
    assert (accepted.code, accepted.err) == (0, "")
    assert accepted.document[0] | {"partitions": 2, "status": "exists"} == accepted.document[0]


def test_one_failure_of_several(topics: Callable) -> None:
    """Good topics are created beside a bad one, and the exit code is 1."""
    result = topics("create", "several-good", "several bad", "--format", "json")
    assert result.code == 1
    assert [(row["topic"], row["status"]) for row in result.document] == [
        ("several-good", "created"),
        ("several bad", "failed"),
    ]
    assert result.document[1]["error"]
    assert result.err.startswith("error: Topic 'several bad' was not created - ")


def test_create_dry_run(topics: Callable) -> None:
    """A dry run lets the broker check and creates nothing."""
    assert topics("create", "dry", "--dry-run", "--format", "json").document[0]["status"] == "valid"
    assert topics("create", "dry", "--dry-run", "--config", "no.such=1").code == 1
    assert "dry" not in [row["topic"] for row in topics("list", "--format", "json").document]


def test_describe(topics: Callable) -> None:
    """Topics with their settings, then partitions, in kafka-topics' columns."""
    topics("create", "described", "--partitions", 2, "--config", "retention.ms=86400000")
    result = topics("describe", "described")
    assert (result.code, result.err) == (0, "")
    (topic_id,) = TOPIC_ID.findall(result.out.splitlines()[1])
    assert result.out == (
        "TOPIC      TOPIC-ID                PARTITION-COUNT  REPLICATION-FACTOR  CONFIGS\n"
        f"described  {topic_id}  2                1                   retention.ms=86400000\n"
        "\n"
        "TOPIC      PARTITION  LEADER  REPLICAS  ISR\n"
        "described  0          1       1         1\n"
        "described  1          1       1         1\n"
    )
    assert topics("describe", "described", "--offsets", "--format", "json").document == [
        {
            "topic": "described",
            "topic_id": topic_id,
            "partition_count": 2,
            "replication_factor": 1,
            "configs": {"retention.ms": "86400000"},
            "branch_of": None,
            "ranges_per_partition": None,
            "partitions": [
                {
                    "partition": partition,
                    "leader": 1,
                    "replicas": [1],
                    "isr": [1],
                    "log_start_offset": 0,
                    "log_end_offset": 0,
                }
                for partition in (0, 1)
            ],
        }
    ]


def test_unknown_topics_get_the_nearest_name(topics: Callable) -> None:
    """A topic that is not there is told with the name that was probably meant."""
    topics("create", "payments-2024")
    for verb in (("describe",), ("delete", "--yes")):
        result = topics(verb[0], "payment-2024", *verb[1:])
        assert (result.code, result.out) == (1, "")
        assert result.err == (
            "error: There is no topic 'payment-2024' - the broker does not know it"
            " - did you mean 'payments-2024'?\n"
        )
    assert "see `anabranch topics list`" in topics("describe", "zzzzzzzzzz").err


def test_delete_asks(topics: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting shows what goes, then asks; no means no."""
    topics("create", "deleted-asked", "--partitions", 1)
    answers: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        answers.append(question)
        return len(answers) > 1

    monkeypatch.setattr("anabranch.cli.options.click.confirm", confirm)
    monkeypatch.setattr("anabranch.cli.options.is_interactive", lambda: True)
    refused = topics("delete", "deleted-asked")
    assert refused.code == 1
    assert refused.out == "TOPIC          PARTITIONS  RECORDS\ndeleted-asked  1           0\n"
    assert refused.err == "Nothing was changed.\n"
    assert topics("delete", "deleted-asked").err == "Deleted 1 topic.\n"
    assert answers == ["Delete 1 topic with all records?"] * 2
    assert topics("describe", "deleted-asked").code == 1


def test_delete_without_a_terminal(topics: Callable) -> None:
    """Where nobody can be asked, leaving --yes out is wrong usage, and nothing goes."""
    topics("create", "deleted-kept")
    result = topics("delete", "deleted-kept")
    assert result.code == 2
    assert "pass --yes" in result.err
    assert topics("delete", "deleted-kept", "--dry-run").code == 0
    assert topics("describe", "deleted-kept").code == 0


def test_delete_json(topics: Callable) -> None:
    """Deleting tells for each topic what became of it."""
    topics("create", "deleted-json-a", "deleted-json-b", "--partitions", 2)
    dry = topics("delete", "deleted-json-a", "--dry-run", "--format", "json").document
    assert dry == [
        {"topic": "deleted-json-a", "partitions": 2, "records": 0, "status": "kept", "error": None}
    ]
    done = topics("delete", "deleted-json-a", "deleted-json-b", "--yes", "--format", "json")
    assert [row["status"] for row in done.document] == ["deleted", "deleted"]
    left = [row["topic"] for row in topics("list", "--format", "json").document]
    assert "deleted-json-a" not in left


def test_configs(topics: Callable) -> None:
    """Settings are shown with their source, all of them or the topic's own."""
    topics("create", "configured", "--config", "cleanup.policy=compact")
    assert topics("configs", "configured", "--overrides").out == (
        "NAME            VALUE    SOURCE\ncleanup.policy  compact  DYNAMIC_TOPIC_CONFIG\n"
    )
    every = topics("configs", "configured", "--format", "json").document
    assert [row["name"] for row in every] == sorted(row["name"] for row in every)
    assert {
        "topic": "configured",
        "name": "cleanup.policy",
        "value": "compact",
        "source": "DYNAMIC_TOPIC_CONFIG",
        "is_read_only": False,
        "is_sensitive": False,
    } in every
    assert {row["source"] for row in every} == {"DYNAMIC_TOPIC_CONFIG", "DEFAULT_CONFIG"}
    assert topics("configs", "no-such-topic").code == 1


def test_change_configs(topics: Callable) -> None:
    """A change shows before and after, and is there afterwards; a dry run is not."""
    topics("create", "changed", "--config", "segment.bytes=2000000")
    arguments = ("changed", "--set", "retention.ms=5000", "--unset", "segment.bytes")
    dry = topics("configs", *arguments, "--dry-run")
    assert dry.out == (
        "NAME           BEFORE     AFTER\n"
        "retention.ms   604800000  5000\n"
        "segment.bytes  2000000    (the broker's value)\n"
    )
    assert dry.err == "Nothing was changed (--dry-run); the broker accepts it.\n"
    assert "segment.bytes" in topics("configs", "changed", "--overrides").out
    done = topics("configs", *arguments, "--yes")
    assert (done.code, done.out) == (0, dry.out)
    assert done.err == "Changed 2 settings of topic 'changed'.\n"
    assert topics("configs", "changed", "--overrides", "--format", "json").document == [
        {
            "topic": "changed",
            "name": "retention.ms",
            "value": "5000",
            "source": "DYNAMIC_TOPIC_CONFIG",
            "is_read_only": False,
            "is_sensitive": False,
        }
    ]
    assert topics(
        "configs", "changed", "--set", "retention.ms=6000", "--yes", "--format", "json"
    ).document == [
        {
            "topic": "changed",
            "name": "retention.ms",
            "before": "5000",
            "after": "6000",
            "status": "changed",
        }
    ]


def test_refused_changes(topics: Callable) -> None:
    """Wrong names and values are refused before the question, and nothing changes."""
    topics("create", "unchanged")
    typo = topics("configs", "unchanged", "--set", "retention.mss=1")
    assert (typo.code, typo.out) == (1, "")
    assert typo.err == (
        "error: Topic 'unchanged' was not changed - there is no topic setting 'retention.mss'"
        " - did you mean 'retention.ms'?\n"
    )
    bad = topics("configs", "unchanged", "--set", "retention.ms=5", "--set", "cleanup.policy=no")
    assert (bad.code, bad.out) == (1, "")
    assert bad.err.startswith("error: Topic 'unchanged' was not changed - ")
    unasked = topics("configs", "unchanged", "--set", "retention.ms=5")
    assert unasked.code == 2
    assert topics("configs", "unchanged", "--overrides", "--format", "json").document == []
