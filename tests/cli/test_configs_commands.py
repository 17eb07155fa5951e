"""`anabranch configs`: settings of brokers, topics and groups, on a real broker."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from command_result import Result
from groups_kit import GroupsKit

from anabranch.cli.configs import resources
from anabranch.cli.configs.resources import Entry
from anabranch.config.setting import Scope
from support.broker_process import BrokerProcess

_names = count(1)
Configs = Callable[..., Result]


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests, with a setting of its own."""
    overrides = {"log.retention.hours": "24", "group.initial.rebalance.delay.ms": "0"}
    broker = BrokerProcess(tmp_path_factory.mktemp("configs") / "data", overrides)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(params=["codec", "librdkafka"])
def configs(
    run: Configs,
    group_broker: BrokerProcess,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Configs:
    """`anabranch configs VERB ...`, by our own codecs and as through TLS, by librdkafka."""
    if request.param == "librdkafka":
        monkeypatch.setattr(resources, "can_ask", lambda connection: False)

    def run_configs(verb: str, *arguments: object) -> Result:
        return run("configs", verb, *arguments, "--bootstrap-server", group_broker.bootstrap)

    return run_configs


@pytest.fixture
def topic(kit: GroupsKit) -> str:
    return kit.topic(f"set-{next(_names)}", partitions=1)


def row(result: Result, name: str) -> dict[str, object]:
    (found,) = [one for one in result.document if one["name"] == name]
    return found  # type: ignore[no-any-return]


def test_value_source_default_and_documentation(configs: Configs, topic: str) -> None:
    """What a topic sets, what comes from the broker, and what nobody set are told apart."""
    assert configs("alter", "--topic", topic, "--set", "segment.ms=5000", "--yes").code == 0
    result = configs("describe", "--topic", topic, "--format", "json")
    own, inherited = row(result, "segment.ms"), row(result, "retention.ms")
    assert (own["value"], own["source"]) == ("5000", "DYNAMIC_TOPIC_CONFIG")
    assert own["default"] == str(7 * 24 * 3_600_000)
    assert (inherited["value"], inherited["source"]) == (str(86_400_000), "STATIC_BROKER_CONFIG")
    assert inherited["default"] == str(7 * 86_400_000)  # in ms, although the broker has hours
    assert row(result, "cleanup.policy")["source"] == "DEFAULT_CONFIG"
    assert own["type"] == "LONG"
    assert str(own["documentation"]).startswith("How old a segment may become")
    text = configs("describe", "segment.ms", "--topic", topic, "--docs")
    assert text.out.startswith(
        "NAME        VALUE  SOURCE                DEFAULT    DOCUMENTATION\n"
    )
    assert text.out.count("\n") == 2


def test_only_what_was_set(configs: Configs, topic: str) -> None:
    """--overrides leaves out what a topic has from elsewhere."""
    assert configs("alter", "--topic", topic, "--set", "segment.ms=5000", "--yes").code == 0
    result = configs("describe", "--topic", topic, "--overrides", "--format", "json")
    assert [one["name"] for one in result.document] == ["segment.ms"]


def test_a_branch_topic_has_what_is_its_own(
    configs: Configs, run: Configs, group_broker: BrokerProcess, topic: str
) -> None:
    """What a branch topic shows of its source is not counted as set for it."""
    server = ("--bootstrap-server", group_broker.bootstrap)
    assert configs("alter", "--topic", topic, "--set", "retention.ms=9000", "--yes").code == 0
    assert run("topics", "branch", topic, "--into", 2, *server).code == 0
    branch = ("--topic", f"{topic}.by-key", "--format", "json")
    assert row(configs("describe", *branch), "retention.ms")["value"] == "9000"
    own = [one["name"] for one in configs("describe", *branch, "--overrides").document]
    assert "branch.source.topic" in own and "retention.ms" not in own


def test_the_broker_is_meant_without_flags(configs: Configs) -> None:
    """Without --topic, --group and --broker the settings are the broker's."""
    result = configs("describe", "log.retention.hours", "--format", "json")
    (found,) = result.document
    assert (found["resource_type"], found["resource"]) == ("broker", "1")
    assert (found["value"], found["source"]) == ("24", "STATIC_BROKER_CONFIG")
    assert found["default"] == "168"


def test_a_change_is_shown_checked_and_done(configs: Configs, topic: str) -> None:
    """BEFORE and AFTER are shown; --dry-run changes nothing, --yes does, --unset takes it back."""
    change = ("alter", "--topic", topic, "--set", "retention.ms=1000")
    dry = configs(*change, "--dry-run")
    assert dry.out == "NAME          BEFORE    AFTER\nretention.ms  86400000  1000\n"
    assert dry.err == "Nothing was changed (--dry-run); the broker accepts it.\n"

    def value() -> str:
        return str(
            row(configs("describe", "--topic", topic, "--format", "json"), "retention.ms")["value"]
        )

    assert value() == "86400000"
    assert configs(*change).code == 2
    assert value() == "86400000"
    done = configs(*change, "--yes")
    assert (done.code, done.err) == (0, f"Changed 1 setting of topic '{topic}'.\n")
    assert value() == "1000"
    back = configs(
        "alter", "--topic", topic, "--unset", "retention.ms", "--yes", "--format", "json"
    )
    assert back.document[0] | {"resource": ""} == {
        "resource_type": "topic",
        "resource": "",
        "name": "retention.ms",
        "before": "1000",
        "after": "86400000",
        "status": "changed",
    }


def test_settings_of_a_group(configs: Configs) -> None:
    """A group can have settings before anybody joins it."""
    group = f"early-{next(_names)}"
    flags = ("--group", group)
    set_it = ("--set", "consumer.session.timeout.ms=50000", "--yes")
    assert configs("alter", *flags, *set_it).code == 0
    found = configs("describe", *flags, "--overrides", "--format", "json").document
    assert [(one["name"], one["value"], one["source"]) for one in found] == [
        ("consumer.session.timeout.ms", "50000", "DYNAMIC_GROUP_CONFIG")
    ]


@pytest.mark.parametrize(
    ("flags", "why", "next_step"),
    [
        (("--set", "retention.mss=1"), "no topic setting 'retention.mss'", "'retention.ms'?"),
        (("--set", "num.partitions=1"), "a setting of a broker, not of a topic", "configs explain"),
        (("--unset", "retentoin.ms"), "no topic setting 'retentoin.ms'", "'retention.ms'?"),
        (("--set", "retention.ms=soon"), "", ""),
    ],
)
def test_what_is_refused(
    configs: Configs, topic: str, flags: tuple[str, ...], why: str, next_step: str
) -> None:
    """A typo gets the nearest name, another's setting its owner, and a bad value the reason."""
    result = configs("alter", "--topic", topic, *flags, "--yes")
    assert (result.code, result.out) == (1, "")
    assert f"The settings of topic '{topic}' were not changed" in result.err
    assert why in result.err and next_step in result.err
    assert len(result.err.strip().split(" - ")) == 3


def test_wrong_usage_of_alter(configs: Configs) -> None:
    """Nothing to change, nobody to change it for, and two at once are wrong usage."""
    assert configs("alter", "--topic", "t").code == 2
    assert configs("alter", "--set", "retention.ms=1").code == 2
    assert configs("alter", "--topic", "t", "--group", "g", "--set", "a=1").code == 2
    assert configs("alter", "--topic", "t", "--set", "a=1", "--unset", "a").code == 2


def test_nothing_there(configs: Configs, topic: str) -> None:
    """A topic, a broker or a setting that is not there is told with what is."""
    assert f"did you mean '{topic}'?" in configs("describe", "--topic", f"{topic}x").err
    assert "the cluster has 1" in configs("describe", "--broker", 7).err
    result = configs("describe", "retention.mss", "--topic", topic)
    assert result.code == 1 and "did you mean 'retention.ms'?" in result.err


def test_list_has_what_somebody_set(run: Configs, group_broker: BrokerProcess, topic: str) -> None:
    """The list has settings of brokers, topics and groups that are not defaults."""
    server = ("--bootstrap-server", group_broker.bootstrap)
    group = f"listed-{next(_names)}"
    for scope, change in (
        (("--topic", topic), "retention.ms=7000"),
        (("--group", group), "consumer.session.timeout.ms=50000"),
        (("--broker-defaults",), "message.max.bytes=2000000"),
    ):
        assert run("configs", "alter", *scope, "--set", change, "--yes", *server).code == 0
    lines = run("configs", "list", "--format", "tsv", *server).out.splitlines()
    assert lines[0] == "TYPE\tRESOURCE\tNAME\tVALUE\tSOURCE"
    assert f"topic\t{topic}\tretention.ms\t7000\tDYNAMIC_TOPIC_CONFIG" in lines
    assert f"group\t{group}\tconsumer.session.timeout.ms\t50000\tDYNAMIC_GROUP_CONFIG" in lines
    assert "broker\t1\tmessage.max.bytes\t2000000\tDYNAMIC_DEFAULT_BROKER_CONFIG" in lines
    assert "broker\t1\tlog.retention.hours\t24\tSTATIC_BROKER_CONFIG" in lines
    topics = run("configs", "list", "--type", "topic", "--format", "tsv", *server).out
    assert {line.split("\t")[0] for line in topics.splitlines()[1:]} == {"topic"}
    defaults = run("configs", "describe", "--broker-defaults", "--format", "json", *server).document
    assert ("message.max.bytes", "2000000") in [(one["name"], one["value"]) for one in defaults]


def test_many_resources_are_asked_for_in_batches(
    run: Configs, group_broker: BrokerProcess, kit: GroupsKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many fit into a request, the list is the same, and none is asked for twice."""
    server = ("--bootstrap-server", group_broker.bootstrap)
    for _ in range(3):
        topic = kit.topic(f"batched-{next(_names)}", partitions=1)
        change = ("--topic", topic, "--set", "retention.ms=7000", "--yes")
        assert run("configs", "alter", *change, *server).code == 0
    at_once = run("configs", "list", *server)
    assert at_once.out.count("batched-") == 3
    monkeypatch.setattr(resources, "_RESOURCES_MAX", 2)
    assert run("configs", "list", *server) == at_once


def test_secrets_are_hidden(
    run: Configs, group_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret is [hidden], before and after, whatever the broker says of it."""
    secret = Entry(
        name="ssl.key.password",
        value=None,
        source="STATIC_BROKER_CONFIG",
        default=None,
        type="PASSWORD",
        is_read_only=False,
        is_sensitive=True,
        documentation=None,
    )
    monkeypatch.setattr(resources, "describe", lambda cluster, resource: {secret.name: secret})
    monkeypatch.setattr(resources, "alter", lambda *arguments, is_dry_run: None)
    server = ("--bootstrap-server", group_broker.bootstrap)
    shown = run("configs", "describe", *server)
    assert "ssl.key.password  [hidden]" in shown.out
    change = ("configs", "alter", "--broker", "1", "--set", "ssl.key.password=swordfish")
    for form in ("text", "json", "tsv"):
        result = run(*change, "--dry-run", "--format", form, *server)
        assert result.code == 0
        assert "swordfish" not in result.out + result.err
        assert result.out.count("[hidden]") == 2


def test_a_secret_of_the_wire_has_no_value() -> None:
    """The value of a secret is dropped where it arrives."""
    from anabranch.wire.messages.describe_configs import DescribeConfigsResourceResult

    told = DescribeConfigsResourceResult(
        name="ssl.key.password", value="swordfish", config_source=4, is_sensitive=True
    )
    entry = resources._entry(resources.Resource(Scope.BROKER, "1"), told)
    assert (entry.value, entry.default, entry.shown_value) == (None, None, "[hidden]")


def test_explain_needs_no_broker(run: Configs) -> None:
    """A setting is explained by its name, its other name or a part of it."""
    result = run("configs", "explain", "retention.ms", "--format", "json")
    (found,) = result.document
    assert (found["resource_type"], found["type"], found["default"]) == (
        "topic",
        "LONG",
        "604800000",
    )
    assert found["change"] == "any-time" and found["valid_values"] == "at least -1"
    assert found["broker_settings"][0] == "log.retention.ms"
    (broker,) = run("configs", "explain", "broker.id", "--format", "json").document
    assert (broker["name"], broker["change"], broker["environment"]) == (
        "node.id",
        "restart",
        "KAFKA_NODE_ID",
    )
    parts = run("configs", "explain", "retention", "--type", "topic", "--format", "tsv").out
    names = [line.split("\t")[0] for line in parts.splitlines()[1:]]
    assert "retention.ms" in names and "local.retention.ms" in names
    everything = run("configs", "explain", "--format", "json").document
    assert {one["resource_type"] for one in everything} == {"broker", "topic", "group"}


def test_explain_knows_the_nearest(run: Configs) -> None:
    """A typo gets the nearest name."""
    result = run("configs", "explain", "retnetion.ms")
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "error: Cannot explain 'retnetion.ms' - there is no setting 'retnetion.ms' -"
        " did you mean 'retention.ms'?\n"
    )
