"""Dashboards and alerts: every metric and label that they name is one that we have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from anabranch.config.definitions import BROKER_SETTINGS
from anabranch.observe.metrics import Kind
from anabranch.observe.table import ALL_METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
ALERTS = DEPLOY / "prometheus/alerts.yml"

# What Prometheus adds to every series.
OF_PROMETHEUS = {"job", "instance"}
_NAME = re.compile(r"\b((?:anabranch|kafka|process)_\w+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")


def series() -> dict[str, set[str]]:
    """The names that a query may have, with their labels."""
    found: dict[str, set[str]] = {"up": set()}
    for metric in ALL_METRICS:
        labels = set(metric.labels)
        if metric.kind is Kind.HISTOGRAM:
            found[f"{metric.name}_bucket"] = labels | {"le"}
            found[f"{metric.name}_sum"] = found[f"{metric.name}_count"] = labels
        else:
            found[metric.name] = labels
    return found


SERIES = series()


def problems(query: str) -> Iterator[str]:
    """What is wrong with a query, as far as names go."""
    named = _NAME.findall(query)
    known = set(OF_PROMETHEUS)
    if not named and not re.search(r"\bup\b", query):
        yield f"{query} names no metric"
    for name, matchers in named:
        if name not in SERIES:
            yield f"there is no {name}"
            continue
        labels = SERIES[name] | OF_PROMETHEUS
        known |= labels
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
            if label not in labels:
                yield f"{name} has no label {label}"
    for labels_text in _GROUPING.findall(query):
        for label in filter(None, re.split(r"[,\s]+", labels_text)):
            if label not in known:
                yield f"nothing in {query} has a label {label}"
    if query.count("(") != query.count(")") or query.count("{") != query.count("}"):
        yield f"the brackets of {query} do not match"


def shown_labels(text: str) -> set[str]:
    return set(re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", text)) - {"value"}


def test_a_wrong_query_is_found() -> None:
    """The check can fail: an unknown metric, a label that a metric lacks, a bracket."""
    assert not list(problems('sum by (api) (rate(anabranch_requests_total{error="NONE"}[5m]))'))
    for query in (
        "anabranch_requests",
        'anabranch_requests_total{topic="t"}',
        "sum by (topic) (anabranch_requests_total)",
        "rate(anabranch_requests_total[5m]",
        "anabranch_request_duration_seconds",
        "1 + 1",
    ):
        assert list(problems(query)), query


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_dashboard(path: Path) -> None:
    """It is one, its queries name what there is, and its panels do not lie on each other."""
    board = json.loads(path.read_text())
    assert board["uid"] == f"anabranch-{path.stem}"
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(panels) >= 8
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    variables = {variable["name"] for variable in board["templating"]["list"]}
    found = []
    for panel in panels:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            query = target["expr"]
            found += problems(query)
            used = set(re.findall(r"\$(\w+)", query)) - {"__rate_interval"}
            assert used <= variables, query
            in_query = set().union(*(SERIES.get(name, set()) for name, _ in _NAME.findall(query)))
            assert shown_labels(target["legendFormat"]) <= in_query | OF_PROMETHEUS, query
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            query = variable["query"]["query"]
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
            assert label in SERIES[metric] | OF_PROMETHEUS
    assert not found
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_alerts() -> None:
    """Each has a query over what there is, how bad it is, and words that say what to do."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 12
    for rule in rules:
        assert not list(problems(rule["expr"])), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        for text in (rule["annotations"]["summary"], rule["annotations"]["description"]):
            assert text.count("{{") == text.count("}}")
            names = {name for name, _ in _NAME.findall(rule["expr"])} or {"up"}
            labels = set().union(*(SERIES[name] for name in names))
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels | OF_PROMETHEUS, text
    # What operators ask for; see the comments in the file for how much is a lot.
    wanted = {"GroupIsLate", "GroupLagGrows", "GroupIsEmpty", "RebalanceStorm", "RecordsAreStuck"}
    assert wanted <= {rule["alert"] for rule in rules}


def test_settings_that_alerts_name_exist() -> None:
    """So that whoever follows the advice finds them."""
    named = re.findall(r"\b(?:metrics|coop|log)\.[a-z.]+[a-z*]", ALERTS.read_text())
    assert len(named) >= 3
    for name in named:
        pattern = name.replace(".", r"\.").replace("*", ".+")
        assert any(re.fullmatch(pattern, one) for one in BROKER_SETTINGS), name
