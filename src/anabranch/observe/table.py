"""All metrics: what the reference page lists and what dashboards and alerts may name."""

from anabranch.observe.broker_metrics import BROKER_METRICS
from anabranch.observe.exporter_metrics import EXPORTER_METRICS
from anabranch.observe.metrics import METRICS

ALL_METRICS = (*METRICS, *BROKER_METRICS, *EXPORTER_METRICS)
