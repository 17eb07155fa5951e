"""The Helm chart, rendered by a stand-in, and the systemd unit, by systemd's own check."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from go_template import Chart, TemplateError

from anabranch.config.load import load_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm/anabranch"
UNIT = DEPLOY / "systemd/anabranch.service"


def rendered(release: str = "orders", **changes: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects of the chart, by kind and name; changes are by path, `a__b=1`."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path, value in changes.items():
        *outer, last = path.split("__")
        inner = values
        for name in outer:
            inner = inner[name]
        assert last in inner, path
        inner[last] = value
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    context = {
        "Values": values,
        "Chart": {
            "Name": described["name"],
            "Version": described["version"],
            "AppVersion": described["appVersion"],
        },
        "Release": {"Name": release, "Namespace": "streams", "Service": "Helm"},
        "Template": {"BasePath": "anabranch/templates"},
    }
    files = {
        f"anabranch/templates/{path.name}": path.read_text()
        for path in sorted((CHART / "templates").iterdir())
    }
    chart = Chart(files)
    objects = [
        found
        for name in files
        if name.endswith(".yaml")
        for found in yaml.safe_load_all(chart.render(name, context))
        if found
    ]
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def properties(objects: dict[tuple[str, str], dict[str, Any]]) -> str:
    text: str = objects["ConfigMap", "orders-anabranch"]["data"]["server.properties"]
    return text


def test_what_is_installed() -> None:
    """A stateful set with its data and settings, services, and a budget of disruptions."""
    assert set(rendered()) == {
        ("ConfigMap", "orders-anabranch"),
        ("StatefulSet", "orders-anabranch"),
        ("Service", "orders-anabranch"),
        ("Service", "orders-anabranch-metrics"),
        ("Service", "orders-anabranch-console"),
        ("PodDisruptionBudget", "orders-anabranch"),
    }
    assert ("StatefulSet", "my-anabranch") in rendered("my-anabranch")


def test_selectors_find_the_pod_and_its_ports() -> None:
    """Labels and names of ports, which fail without a word where they do not fit."""
    objects = rendered(metrics__serviceMonitor__enabled=True)
    spec = objects["StatefulSet", "orders-anabranch"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    (container,) = spec["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    budget = objects["PodDisruptionBudget", "orders-anabranch"]["spec"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    for (kind, _), one in objects.items():
        if kind == "Service":
            assert one["spec"]["selector"].items() <= labels.items()
            for port in one["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "metrics"
    monitor = objects["ServiceMonitor", "orders-anabranch"]["spec"]
    scraped = objects["Service", "orders-anabranch-metrics"]
    assert monitor["selector"]["matchLabels"].items() <= scraped["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == scraped["spec"]["ports"][0]["name"]
    # Alerts and dashboards name the job.
    assert scraped["metadata"]["labels"][monitor["jobLabel"]] == "anabranch"
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert mounts == volumes | claims


@pytest.mark.parametrize("console", [True, False])
def test_the_broker_takes_its_settings(tmp_path: Path, console: bool) -> None:
    """File and environment of the pod, as the broker reads them, without a warning."""
    objects = rendered(console__enabled=console, service__advertised="kafka.example.com:19092")
    assert (("Service", "orders-anabranch-console") in objects) == console
    (container,) = objects["StatefulSet", "orders-anabranch"]["spec"]["template"]["spec"][
        "containers"
    ]
    path = tmp_path / "server.properties"
    path.write_text(properties(objects))
    environ = {one["name"]: one["value"] for one in container["env"]}
    settings = load_settings(properties_path=str(path), environ=environ, overrides=[])
    assert not settings.warnings and not settings.infos
    assert settings.get_list("console.listeners") == ((":8080",) if console else ())
    assert settings.get_int("num.partitions") == 4
    assert settings.value("advertised.listeners") == ("PLAINTEXT://kafka.example.com:19092",)
    data, config = (mount["mountPath"] for mount in container["volumeMounts"][:2])
    assert settings.log_dirs[0].startswith(f"{data}/")
    assert container["command"][-1] == f"{config}/server.properties"


def test_values_that_change_something() -> None:
    """Storage classes, extra labels, no budget."""
    none = rendered(persistence__storageClass="-", podDisruptionBudget__enabled=False)
    claim = none["StatefulSet", "orders-anabranch"]["spec"]["volumeClaimTemplates"][0]
    assert claim["spec"]["storageClassName"] == ""
    assert not [kind for kind, _ in none if kind == "PodDisruptionBudget"]
    named = rendered(
        persistence__storageClass="fast",
        nodeSelector={"disk": "ssd"},
        tolerations=[{"key": "streams", "operator": "Exists"}],
        podAnnotations={"team": "orders"},
    )["StatefulSet", "orders-anabranch"]["spec"]
    assert named["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    pod = named["template"]
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert pod["spec"]["tolerations"][0]["key"] == "streams"
    assert pod["metadata"]["annotations"]["team"] == "orders"


def test_the_stand_in_is_strict() -> None:
    """A value that is not there, or a block that is not closed, is no template."""
    with pytest.raises(TemplateError):
        Chart({"a": "{{ .Values.nothing }}"}).render("a", {"Values": {}})
    for text in ("{{ if .Values }}", "{{ end }}"):
        with pytest.raises(TemplateError):
            Chart({"a": text})
    shown = Chart({"a": "x\n{{- if .V }}\n  {{ .V | quote }}\n{{- else }}no{{ end }}"})
    assert shown.render("a", {"V": "v"}) == 'x\n  "v"'
    assert shown.render("a", {"V": ""}) == "xno"


# systemd ------------------------------------------------------------------------------------------


def unit() -> list[tuple[str, str]]:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#"]
    return [(line.partition("=")[0], line.partition("=")[2]) for line in lines]


def test_the_unit_says_what_the_broker_does() -> None:
    """It notifies, keeps its data where it may write, and its environment is made of settings."""
    said = dict(unit())
    assert (said["Type"], said["DynamicUser"]) == ("notify", "yes")
    environ = dict(value.split("=", 1) for name, value in unit() if name == "Environment")
    settings = load_settings(environ=environ, overrides=[])
    assert settings.log_dirs == (f"/var/lib/{said['StateDirectory']}",)
    assert said["ExecStart"].split()[1:] == ["serve", "/etc/anabranch/server.properties"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    """Every line is known to it; only the place of the program is another one here."""
    here = Path(sys.executable).with_name("anabranch")
    copy = tmp_path / "anabranch.service"
    copy.write_text(UNIT.read_text().replace("/opt/anabranch/bin/anabranch", str(here)))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    about_us = [line for line in checked.stderr.splitlines() if "anabranch" in line]
    assert not about_us
