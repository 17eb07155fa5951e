"""Settings come from a file, the environment and overrides, and each remembers where from."""

import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.config.definitions import BROKER_SETTINGS
from anabranch.config.load import (
    ConfigError,
    Layer,
    Settings,
    _setting_name,
    environment_name,
    load_settings,
)


def load(
    *overrides: str, file: Path | None = None, environ: dict[str, str] | None = None
) -> Settings:
    return load_settings(properties_path=file, environ=environ or {}, overrides=overrides)


def refusal(
    *overrides: str, file: Path | None = None, environ: dict[str, str] | None = None
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*overrides, file=file, environ=environ)
    return str(caught.value)


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    return tmp_path / "server.properties"


def test_nothing_given_is_all_defaults() -> None:
    """Without file, environment and overrides every value is its default."""
    settings = load()
    assert settings.get_int("num.partitions") == 1
    assert settings.get_bool("auto.create.topics.enable") is True
    assert settings.get_float("log.cleaner.min.cleanable.ratio") == 0.5
    assert settings.get_list("log.cleanup.policy") == ("delete",)
    assert settings.get_str("compression.type") == "producer"
    assert settings.get_optional_str("broker.rack") is None
    assert settings.log_dirs == ("./anabranch-data",)
    assert settings.source("num.partitions").layer is Layer.DEFAULT
    assert settings.warnings == settings.infos == ()


def test_each_layer_overrules_the_one_before(properties: Path) -> None:
    """Defaults < file < environment < overrides, and the source says which it was."""
    properties.write_text("num.partitions=2\nfetch.max.bytes=2000\nmax.connections=2\n")
    settings = load(
        "num.partitions=4",
        file=properties,
        environ={"KAFKA_NUM_PARTITIONS": "3", "KAFKA_FETCH_MAX_BYTES": "3000"},
    )
    assert settings.get_int("num.partitions") == 4
    assert settings.source("num.partitions").layer is Layer.OVERRIDE
    assert settings.get_int("fetch.max.bytes") == 3000
    assert str(settings.source("fetch.max.bytes")) == "KAFKA_FETCH_MAX_BYTES"
    assert settings.get_int("max.connections") == 2
    assert str(settings.source("max.connections")) == str(properties)


def test_a_file_is_read_as_java_reads_it(properties: Path) -> None:
    """Comments, continued lines, escapes, `:` and blanks as separators."""
    properties.write_text(
        "# a comment\n! another\nlog.dirs = /a,\\\n    /b\n"
        "broker.rack : caf\\u00e9\nnum.partitions 6\n"
    )
    settings = load(file=properties)
    assert settings.log_dirs == ("/a", "/b")
    assert settings.get_str("broker.rack") == "café"
    assert settings.get_int("num.partitions") == 6


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_file_may_be_utf8_or_latin1(properties: Path, encoding: str) -> None:
    """What editors write today and what Java reads are both understood."""
    properties.write_bytes("broker.rack=café".encode(encoding))
    assert load(file=properties).get_str("broker.rack") == "café"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """The path and the next step are in the sentence."""
    message = refusal(file=tmp_path / "absent.properties")
    assert "absent.properties cannot be read: No such file or directory" in message
    assert "Give the path of a properties file" in message


def test_a_broken_escape_is_an_error(properties: Path) -> None:
    """A file that Java would refuse is refused with a sentence."""
    properties.write_text("broker.rack=\\u12")
    assert "has a broken escape" in refusal(file=properties)


def test_a_key_that_is_there_twice_is_warned_about(properties: Path) -> None:
    """The last one counts, as in Java, and the user hears of it."""
    properties.write_text("num.partitions=2\nnum.partitions=3\n")
    settings = load(file=properties)
    assert settings.get_int("num.partitions") == 3
    assert "num.partitions is there twice" in settings.warnings[0]


@pytest.mark.parametrize("name", sorted(BROKER_SETTINGS))
def test_environment_spelling_has_a_way_back(name: str) -> None:
    """Every setting can be given in the environment."""
    assert _setting_name(environment_name(name)) == name


def test_environment_spelling_of_underscores_and_dashes() -> None:
    """`_` is spelled `__` and `-` is spelled `___`, as in the official image."""
    assert environment_name("a.b_c-d") == "KAFKA_A_B__C___D"
    assert _setting_name("KAFKA_A_B__C___D") == "a.b_c-d"


@pytest.mark.parametrize(
    "variable",
    [
        "KAFKA_HEAP_OPTS",
        "KAFKA_OPTS",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_VERSION",
        "KAFKA_PORT",
        "KAFKA_SERVICE_HOST",
        "KAFKA_SERVICE_PORT_CLIENT",
        "KAFKA_PORT_9092_TCP_ADDR",
        "KAFKA_BROKER_SERVICE_HOST",
        "PATH",
    ],
)
def test_variables_that_are_no_settings_are_passed_over(variable: str) -> None:
    """Variables of Kafka's scripts and of Kubernetes cause neither error nor warning."""
    settings = load(environ={variable: "tcp://10.0.0.1:9092"})
    assert settings.warnings == settings.infos == ()
    assert not settings.given


def test_the_cluster_id_of_the_image() -> None:
    """The official image's CLUSTER_ID is the cluster id."""
    assert load(environ={"CLUSTER_ID": "abc"}).get_str("cluster.id") == "abc"


def test_an_empty_variable_leaves_a_file_alone(properties: Path) -> None:
    """A compose file that passes on an unset variable does not undo a setting."""
    properties.write_text("broker.rack=r1\n")
    settings = load(file=properties, environ={"KAFKA_BROKER_RACK": ""})
    assert settings.get_str("broker.rack") == "r1"


def test_an_empty_override_takes_a_setting_back(properties: Path) -> None:
    """A setting without a default can be unset again."""
    properties.write_text("log.retention.ms=1000\n")
    settings = load("log.retention.ms=", file=properties)
    assert settings.value("log.retention.ms") is None
    assert not settings.is_set("log.retention.ms")


def test_broker_id_is_node_id() -> None:
    """The old name sets the new one, and reads it."""
    settings = load("broker.id=7")
    assert settings.get_int("node.id") == settings.get_int("broker.id") == 7


def test_the_branch_cache_may_be_called_as_in_kip_x(properties: Path) -> None:
    """`max.bytes.key.range.cache` in a properties file sets branch.cache.max.bytes."""
    properties.write_text("max.bytes.key.range.cache=1048576\n")
    settings = load(file=properties)
    assert settings.get_int("branch.cache.max.bytes") == 1048576
    assert settings.warnings == ()
    assert load().get_int("branch.cache.max.bytes") == 209715200
    environ = {"KAFKA_MAX_BYTES_KEY_RANGE_CACHE": "5"}
    assert load(environ=environ).get_int("max.bytes.key.range.cache") == 5


def test_two_names_of_one_setting_must_agree(properties: Path) -> None:
    """Different values under both names in one place are an error; across layers the later wins."""
    properties.write_text("broker.id=1\nnode.id=2\n")
    message = refusal(file=properties)
    assert "node.id=2 contradicts broker.id=1" in message
    properties.write_text("broker.id=1\n")
    assert load("node.id=2", file=properties).get_int("node.id") == 2


def test_a_typo_is_warned_about_with_the_nearest_name() -> None:
    """An unknown name is no error, since Kafka takes it too, but it is not silent."""
    settings = load("num.partition=3")
    assert settings.warnings == (
        "--override: num.partition is not a setting. Did you mean num.partitions?",
    )
    assert load("colour=red").warnings == (
        "--override: colour is not a setting. It has no effect.",
    )


def test_a_topic_setting_on_the_broker_names_the_right_one() -> None:
    """`retention.ms` in a broker's file is a common slip."""
    (warning,) = load("retention.ms=5").warnings
    assert "is a setting of topics" in warning
    assert "log.retention.ms" in warning


def test_kafkas_other_settings_are_information() -> None:
    """A setting that Kafka has and this broker does not use is no warning."""
    settings = load("num.network.threads=3", "zookeeper.connect=localhost:2181")
    assert settings.warnings == ()
    assert settings.infos == (
        "--override: num.network.threads is a setting of Kafka that has no effect here.",
        "--override: zookeeper.connect is a setting of Kafka that has no effect here.",
    )


def test_a_protection_that_is_not_given_is_a_warning() -> None:
    """An authorizer that will not authorize must not pass as information."""
    settings = load("authorizer.class.name=org.example.Authorizer")
    assert "every client may do everything" in settings.warnings[0]
    assert load("authorizer.class.name=").warnings == ()


def test_a_kafka_file_for_one_combined_node_works(properties: Path) -> None:
    """The settings of a KRaft node that is broker and controller start a broker here."""
    properties.write_text(
        "process.roles=broker,controller\n"
        "node.id=1\n"
        "controller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\n"
        "inter.broker.listener.name=PLAINTEXT\n"
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL\n"
        "num.network.threads=3\n"
        "num.io.threads=8\n"
        "socket.send.buffer.bytes=102400\n"
        "log.dirs=/tmp/kraft-combined-logs\n"
        "num.recovery.threads.per.data.dir=1\n"
        "offsets.topic.replication.factor=1\n"
        "share.coordinator.state.topic.replication.factor=1\n"
        "transaction.state.log.min.isr=1\n"
        "log.retention.hours=168\n"
        "log.segment.bytes=1073741824\n"
    )
    settings = load(file=properties)
    assert settings.warnings == ()
    assert settings.log_dirs == ("/tmp/kraft-combined-logs",)


def test_every_bad_value_is_reported_at_once(properties: Path) -> None:
    """What, why and what to write instead, with file and key, for each mistake."""
    properties.write_text("num.partitions=zero\n")
    message = refusal("fetch.max.bytes=1", "nonsense", file=properties)
    assert message.splitlines() == [
        (
            "--override 'nonsense' is not a setting, because it has no '=' after a name. "
            "Write it as --override num.partitions=3."
        ),
        (
            f"{properties}: num.partitions=zero cannot be used: Not a number of type INT. "
            "It takes a whole number of 32 bits: at least 1. The default is 1."
        ),
        (
            "--override: fetch.max.bytes=1 cannot be used: Value must be at least 1024. "
            "It takes a whole number of 32 bits: at least 1024. The default is 57671680."
        ),
    ]


@pytest.mark.parametrize("text", ["0", "-2"])
@pytest.mark.parametrize("unit", ["ms", "minutes", "hours"])
def test_retention_is_positive_or_unlimited(unit: str, text: str) -> None:
    """A broker that would delete everything at once is refused, as in Kafka."""
    assert "unlimited (-1) or at least 1" in refusal(f"log.retention.{unit}={text}")
    load(f"log.retention.{unit}=-1")


def test_values_that_contradict_each_other_are_refused() -> None:
    """Two valid values can still make no sense together."""
    assert "queued.max.request.bytes=1 is less than" in refusal("queued.max.request.bytes=1")
    assert "no record could ever be compacted" in refusal(
        "log.cleaner.min.compaction.lag.ms=2", "log.cleaner.max.compaction.lag.ms=1"
    )
    assert "which has no port" in refusal("listeners=PLAINTEXT://localhost")


def test_access_with_the_wrong_type_is_a_bug() -> None:
    """A reader that mistakes a type hears of it instead of getting a wrong value."""
    settings = load()
    with pytest.raises(TypeError):
        settings.get_int("auto.create.topics.enable")
    with pytest.raises(TypeError):
        settings.get_int("log.retention.ms")
    with pytest.raises(TypeError):
        settings.get_list("compression.type")
    with pytest.raises(TypeError):
        settings.get_str("num.partitions")
    with pytest.raises(TypeError):
        settings.get_bool("num.partitions")
    with pytest.raises(TypeError):
        settings.get_float("compression.type")
    with pytest.raises(KeyError):
        settings.value("no.such.setting")


def test_loading_imports_nothing_heavy() -> None:
    """Start-up time is a promise: what only mistakes or files need is imported only then."""
    program = (
        "import sys; from anabranch.config.load import load_settings; "
        "load_settings(environ={}); "
        "heavy = {'asyncio', 'socket', 'logging', 'difflib', 'javaproperties', 'ipaddress'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
