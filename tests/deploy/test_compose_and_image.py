"""The image and the composition of services, as far as they can be checked without an engine."""

import json
import re
import shlex
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from anabranch.config.load import load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines if line.strip()]


def last_stage(word: str) -> list[str]:
    """What an instruction says in the stage that becomes the image."""
    found = instructions()
    start = max(i for i, (name, _) in enumerate(found) if name == "FROM")
    return [text for name, text in found[start:] if name == word]


def image_environment() -> dict[str, str]:
    return dict(
        one.split("=", 1) for text in last_stage("ENV") for one in shlex.split(text) if "=" in one
    )


# The image ----------------------------------------------------------------------------------------


def test_what_is_copied_is_there_and_not_ignored() -> None:
    """Every file that the image is made of exists, and the ignore file lets it through."""
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    copied = [
        source
        for name, text in instructions()
        if name == "COPY" and not text.startswith("--from")
        for source in text.split()[:-1]
    ]
    assert copied and "*" in ignored
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source in allowed, f"{source} is ignored"


def test_it_runs_as_somebody_without_rights() -> None:
    """Of two stages the last has no compiler, a user of its own, and its data in a volume."""
    assert len([name for name, _ in instructions() if name == "FROM"]) == 2
    assert last_stage("USER") == ["anabranch"]
    assert last_stage("VOLUME") == ["/var/lib/anabranch"]
    assert not any("gcc" in text for text in last_stage("RUN"))
    assert "--uid 10001" in last_stage("RUN")[0]


def test_its_settings_are_settings() -> None:
    """Every KAFKA_ variable names one that the broker knows and takes, without a word."""
    environ = {k: v for k, v in image_environment().items() if k.startswith("KAFKA_")}
    assert len(environ) == 5
    settings = load_settings(environ=environ, overrides=[])
    assert not settings.warnings and not settings.infos
    ports = {int(port) for text in environ.values() for port in re.findall(r":(\d+)", text)}
    assert ports == {int(port) for port in last_stage("EXPOSE")[0].split()}


def test_the_lock_gives_constraints(tmp_path: Path) -> None:
    """The command that makes them of the lock makes one for each package, with its version."""
    (build,) = (text for name, text in instructions() if name == "RUN" and "constraints" in text)
    (sed,) = (part for part in build.split(" && ") if part.startswith("sed"))
    subprocess.run(["sh", "-c", sed.replace("requirements.lock", str(ROOT / "requirements.lock"))],
                   cwd=tmp_path, check=True)  # fmt: skip
    found = (tmp_path / "constraints.txt").read_text().splitlines()
    lock = (ROOT / "requirements.lock").read_text()
    assert len(found) == len(re.findall(r"^\S+==", lock, flags=re.MULTILINE)) > 20
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!]+", line) for line in found)


def test_its_command_starts_a_broker_that_is_healthy(tmp_path: Path) -> None:
    """Entry point, environment and health check, run here as they are run there.

    Only the folder, the interface and the ports are others. The health check tells a broker that
    is gone from one that is well.
    """
    environ = image_environment() | {"KAFKA_LOG_DIRS": str(tmp_path / "data")}
    environ["PATH"] = f"{BIN}:/usr/bin:/bin"
    for name in ("KAFKA_LISTENERS", "KAFKA_METRICS_LISTENERS", "KAFKA_CONSOLE_LISTENERS"):
        assert re.search(r"(^|//):\d+$", environ[name]), "it listens on all interfaces"
        environ[name] = re.sub(r":\d+$", "127.0.0.1:0", environ[name])
    command = json.loads(last_stage("ENTRYPOINT")[0])
    assert (BIN / command[0]).exists()
    process = subprocess.Popen(
        [BIN / command[0], *command[1:]], env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        banner = ""
        while "settings" not in banner:
            line = process.stdout.readline()  # type: ignore[union-attr]
            assert line, "it ended"
            banner += line
        metrics, console = (
            re.search(rf"{name} +http://(\S+?)(/|$)", banner, re.MULTILINE)[1]  # type: ignore[index]
            for name in ("metrics", "console")
        )
        assert healthy(metrics) == (0, "ok\n")
        for path in ("/health", "/ready", "/metrics"):
            with urllib.request.urlopen(f"http://{console}{path}", timeout=60) as answer:
                assert answer.status == 200, path
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()  # type: ignore[union-attr]
    code, said = healthy(metrics)
    assert code == 1 and "does not answer" in said


def healthy(address: str) -> tuple[int, str]:
    """How the health check of the image ends, asking another address."""
    _, _, command = last_stage("HEALTHCHECK")[0].partition("CMD ")
    python, script, url = json.loads(command)
    assert (python, script) == ("python", "/opt/anabranch/health.py")
    assert f"deploy/health.py {script}" in last_stage("COPY")
    asked = subprocess.run(
        [sys.executable, DEPLOY / "health.py", url.replace("127.0.0.1:9308", address)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return asked.returncode, asked.stdout


# The composition ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def test_services_fit_together(compose: dict[str, Any]) -> None:
    """Who waits for whom, what is mounted and where things are looked for: all of it exists."""
    services = compose["services"]
    assert set(services) == {"broker", "prometheus", "grafana"}
    for name, service in services.items():
        for other in service.get("depends_on", ()):
            assert other in services, f"{name} waits for {other}"
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
            else:
                assert source in compose["volumes"], source
        for published in service["ports"]:
            assert published.startswith("127.0.0.1:"), "nothing is open to the network"
    build = services["broker"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).exists()
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in services and port in last_stage("EXPOSE")[0].split()
    for rules in scraped["rule_files"]:
        assert (DEPLOY / "prometheus" / rules).exists()
    source = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    )
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    boards = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/anabranch.yaml").read_text())
    folder = boards["providers"][0]["options"]["path"]
    mounted = {mount.split(":")[1] for mount in services["grafana"]["volumes"]}
    for board in (DEPLOY / "grafana").glob("*.json"):
        assert f"{folder}/{board.name}" in mounted


def test_the_settings_of_the_broker_are_settings(compose: dict[str, Any]) -> None:
    """With those of the image beneath them; clients inside and outside find their listener."""
    broker = compose["services"]["broker"]
    environ = {k: v for k, v in image_environment().items() if k.startswith("KAFKA_")}
    settings = load_settings(environ=environ | broker["environment"], overrides=[])
    assert not settings.warnings and not settings.infos
    inside = {port.split(":")[-1] for port in broker["ports"]}
    assert inside == {"9092", "8080"}


def test_a_notification_reaches_whoever_started_it(tmp_path: Path) -> None:
    """systemd is told when the broker is ready, and when it stops."""
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(address))
        notify.settimeout(60)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "anabranch.cli", "serve", "--console", ""),
                *("--override", f"log.dirs={tmp_path / 'data'}"),
                *("--override", "listeners=PLAINTEXT://127.0.0.1:0"),
            ],
            env={"NOTIFY_SOCKET": str(address), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.DEVNULL,
        )
        try:
            assert notify.recv(100) == b"READY=1"
        finally:
            process.terminate()
        assert notify.recv(100) == b"STOPPING=1"
        assert process.wait(60) == 0
