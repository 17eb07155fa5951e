"""`anabranch topics branch`, and what the other commands on topics say of branch topics."""

import re
from collections.abc import Callable

import pytest

from support.broker_process import BrokerProcess


@pytest.fixture
def topics(run: Callable, shared_broker: BrokerProcess) -> Callable:
    """`anabranch topics ...` on the shared broker."""

    def run_topics(verb: str, *arguments: object, **options: object) -> object:
        return run(
            "topics", verb, *arguments, "--bootstrap-server", shared_broker.bootstrap, **options
        )

    return run_topics


def names(topics: Callable) -> list[str]:
    return [row["topic"] for row in topics("list", "--format", "json").document]


def own_configs(topics: Callable, topic: str) -> dict[str, str]:
    rows = topics("configs", topic, "--overrides", "--format", "json").document
    return {row["name"]: row["value"] for row in rows}


def test_branch(topics: Callable) -> None:
    """The branch topic is made, shown with its ranges, and says where to go from here."""
    topics("create", "golden", "--partitions", 3)
    result = topics("branch", "golden", "--into", 24)
    assert result.code == 0
    assert result.out == (
        "TOPIC          SOURCE  PARTITIONS  RANGES-PER-PARTITION  STATUS\n"
        "golden.by-key  golden  24          8                     created\n"
    )
    assert result.err == "Consumers subscribe to 'golden.by-key'; producers go on with 'golden'.\n"
    assert topics("branch", "golden", "--as", "golden.other", "--format", "json").document == [
        {
            "topic": "golden.other",
            "source": "golden",
            "partitions": 24,
            "ranges_per_partition": 8,
            "status": "created",
        }
    ]
    listed = topics("list", "--format", "json").document
    assert {
        "topic": "golden.by-key",
        "partitions": 24,
        "replication_factor": 1,
        "branch_of": "golden",
    } in listed
    assert re.search(r"^golden +3 +1 +-\ngolden.by-key +24 +1 +golden\n", topics("list").out, re.M)


def test_branch_dry_run(topics: Callable) -> None:
    """A dry run shows what would be, also the broker's own choice, and changes nothing."""
    topics("create", "dry-source", "--partitions", 2)
    arguments = ("dry-source", "--null-key", "ordered", "--dry-run")
    result = topics("branch", *arguments)
    assert (result.code, result.err) == (
        0,
        "Nothing was created (--dry-run); the broker accepts it.\n",
    )
    assert result.out == (
        "NAME             BEFORE     AFTER\n"
        "branch.null.key  unordered  ordered\n"
        "\n"
        "TOPIC              SOURCE      PARTITIONS  RANGES-PER-PARTITION  STATUS\n"
        "dry-source.by-key  dry-source  16          8                     valid\n"
    )
    document = topics("branch", *arguments, "--into", 2, "--format", "json").document
    assert (document[0]["partitions"], document[0]["status"]) == (2, "valid")
    assert topics("branch", *arguments, "--into", 3).code == 1
    assert "dry-source.by-key" not in names(topics)
    assert own_configs(topics, "dry-source") == {}


def test_what_decides_branches_is_set_on_the_source(topics: Callable) -> None:
    """--null-key and --ordering-header alter the source, --commit-source the branch topic."""
    topics("create", "ruled", "--partitions", 1)
    flags = ("--null-key", "ordered", "--ordering-header", "customer", "--commit-source")
    unasked = topics("branch", "ruled", "--into", 4, *flags)
    assert unasked.code == 2 and "pass --yes to go ahead" in unasked.err
    assert own_configs(topics, "ruled") == {} and "ruled.by-key" not in names(topics)
    assert topics("branch", "ruled", "--into", 4, *flags, "--yes").code == 0
    assert own_configs(topics, "ruled") == {
        "branch.null.key": "ordered",
        "branch.ordering.key.header": "customer",
    }
    assert own_configs(topics, "ruled.by-key")["branch.commit.source"] == "true"
    same = topics("branch", "ruled", "--as", "ruled.same", "--into", 2, "--null-key", "ordered")
    assert same.code == 0
    refused = topics("branch", "ruled", "--as", "ruled.no", "--null-key", "unordered")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        "error: Topic 'ruled' was not branched - branch.null.key of ruled cannot change while it"
        " has branch topics (ruled.by-key, ruled.same): keys would change branches under their"
        " consumers - delete the branch topics first\n"
    )
    assert "ruled.no" not in names(topics)


def test_nothing_is_left_of_what_is_refused(topics: Callable) -> None:
    """A source is not altered for a branch topic that cannot be made."""
    topics("create", "whole", "--partitions", 3)
    refused = topics("branch", "whole", "--into", 22, "--null-key", "ordered")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        "error: Topic 'whole' was not branched - 22 partitions do not fit: whole has 3 partitions,"
        " each to be cut into equally many ranges - use 21 or 24\n"
    )
    assert own_configs(topics, "whole") == {}


def test_refusals_say_what_to_do(topics: Callable) -> None:
    """A name that is taken, a source that is not there or a branch topic, and wrong usage."""
    topics("create", "said", "--partitions", 2)
    topics("branch", "said")
    assert topics("branch", "said").err == (
        "error: Topic 'said' was not branched - there is a topic 'said.by-key' already"
        " - give the branch topic another name with --as\n"
    )
    assert topics("branch", "sai").err == (
        "error: There is no topic 'sai' - the broker does not know it - did you mean 'said'?\n"
    )
    assert topics("branch", "said.by-key", "--as", "x").err == (
        "error: Topic 'said.by-key' was not branched - branch.source.topic names nothing to branch:"
        " said.by-key is a branch topic itself - branch its source said, into as many ranges as"
        " wanted\n"
    )
    assert topics("branch", "said", "--into", 0).code == 2
    assert topics("branch", "said", "--null-key", "sorted").code == 2


def test_describe(topics: Callable) -> None:
    """A branch topic is described with its source, and each partition with its slots."""
    topics("create", "shown", "--partitions", 2, "--config", "retention.ms=86400000")
    topics("branch", "shown", "--into", 6, "--commit-source")
    result = topics("describe", "shown.by-key", "shown")
    assert (result.code, result.err) == (0, "")
    ids = re.findall(r"[A-Za-z0-9_-]{22}", result.out)
    assert result.out == (
        "TOPIC         TOPIC-ID                PARTITION-COUNT  REPLICATION-FACTOR  CONFIGS\n"
        f"shown.by-key  {ids[0]}  6                1                  "
        " branch.commit.source=true\n"
        f"shown         {ids[1]}  2                1                   retention.ms=86400000\n"
        "\n"
        "TOPIC         BRANCH-OF  RANGES\n"
        "shown.by-key  shown      2 x 3\n"
        "\n"
        "TOPIC         PARTITION  LEADER  REPLICAS  ISR  SOURCE-PARTITION  SLOTS\n"
        "shown.by-key  0          1       1         1    0                 0-21844\n"
        "shown.by-key  1          1       1         1    1                 0-21844\n"
        "shown.by-key  2          1       1         1    0                 21845-43689\n"
        "shown.by-key  3          1       1         1    1                 21845-43689\n"
        "shown.by-key  4          1       1         1    0                 43690-65535\n"
        "shown.by-key  5          1       1         1    1                 43690-65535\n"
        "shown         0          1       1         1    -                 -\n"
        "shown         1          1       1         1    -                 -\n"
    )
    (document,) = topics("describe", "shown.by-key", "--offsets", "--format", "json").document
    assert (document["branch_of"], document["ranges_per_partition"]) == ("shown", 3)
    assert document["configs"] == {
        "branch.commit.source": "true",
        "branch.ranges": "3",
        "branch.source.partitions": "2",
        "branch.source.topic": "shown",
        "branch.source.topic.id": ids[1],
    }
    assert document["partitions"][3] == {
        "partition": 3,
        "leader": 1,
        "replicas": [1],
        "isr": [1],
        "log_start_offset": 0,
        "log_end_offset": 0,
        "source_partition": 1,
        "first_slot": 21845,
        "last_slot": 43689,
    }


def test_configs(topics: Callable) -> None:
    """The source's settings are shown and cannot be set; its own can."""
    topics("create", "kept", "--partitions", 1, "--config", "retention.ms=86400000")
    topics("branch", "kept", "--into", 2)
    rows = topics("configs", "kept.by-key", "--format", "json").document
    (row,) = [row for row in rows if row["name"] == "retention.ms"]
    assert (row["value"], row["is_read_only"]) == ("86400000", True)
    refused = topics("configs", "kept.by-key", "--set", "retention.ms=1", "--yes")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        "error: Topic 'kept.by-key' was not changed - retention.ms of branch topic kept.by-key"
        " cannot change: it belongs to kept, which keeps the records - set it on that topic\n"
    )
    done = topics("configs", "kept.by-key", "--set", "branch.commit.source=true", "--yes")
    assert done.err == "Changed 1 setting of topic 'kept.by-key'.\n"
    assert own_configs(topics, "kept.by-key")["branch.commit.source"] == "true"


def test_delete_with_branches(topics: Callable) -> None:
    """A source goes only with its branch topics, by flag or by name."""
    topics("create", "gone", "--partitions", 1)
    topics("branch", "gone", "--into", 2)
    topics("branch", "gone", "--into", 3, "--as", "a.gone")
    refused = topics("delete", "gone", "--yes")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        "error: Topic 'gone' was not deleted - its records are shown by 'a.gone', 'gone.by-key'"
        " - pass --with-branches to delete the branch topics as well\n"
    )
    dry = topics("delete", "gone", "--with-branches", "--dry-run")
    assert dry.out == (
        "TOPIC        PARTITIONS  RECORDS\n"
        "gone         1           0\n"
        "a.gone       3           0\n"
        "gone.by-key  2           0\n"
    )
    assert topics("delete", "a.gone", "--yes").err == "Deleted 1 topic.\n"
    assert topics("delete", "gone", "gone.by-key", "--yes").err == "Deleted 2 topics.\n"
    topics("create", "gone", "--partitions", 1)
    topics("branch", "gone")
    assert topics("delete", "gone", "--with-branches", "--yes").err == "Deleted 2 topics.\n"
    assert not {"gone", "gone.by-key", "a.gone"} & set(names(topics))


def test_deleting_a_branch_topic_takes_no_records(
    run: Callable, topics: Callable, shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows none that would go, and the question says that they stay."""
    topics("create", "staying", "--partitions", 1)
    topics("branch", "staying", "--into", 2)
    flags = ("--bootstrap-server", shared_broker.bootstrap)
    run("produce", "staying", *flags, stdin=b"one\ntwo\n")
    questions: list[str] = []
    monkeypatch.setattr(
        "anabranch.cli.options.click.confirm", lambda text, **_: questions.append(text) or True
    )
    monkeypatch.setattr("anabranch.cli.options.is_interactive", lambda: True)
    result = topics("delete", "staying.by-key")
    assert result.out == "TOPIC           PARTITIONS  RECORDS\nstaying.by-key  2           0\n"
    assert questions == ["Delete 1 branch topic? The records stay where they are, in the source."]
    assert run("consume", "staying", "--exit-at-end", *flags).out == "one\ntwo\n"
