"""Metrics as text: the format of Prometheus, and that of OpenMetrics where a scraper asks for it.

Ours and not prometheus_client's, which makes several objects for each series: ten thousand of them
would hold up the loop for a hundred milliseconds. This writes one line after the other, so that it
can stop between any two.
"""

from collections.abc import Iterator

from anabranch.observe.metrics import (
    Families,
    Histogram,
    Kind,
    Labels,
    Metric,
    Stream,
    Value,
    Values,
)

PLAIN_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPEN_END = "# EOF\n"


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header asks for OpenMetrics."""
    for entry in accept.split(","):
        media, *parameters = (part.strip().lower() for part in entry.split(";"))
        if media == "application/openmetrics-text":
            versions = [p.partition("=")[2] for p in parameters if p.startswith("version=")]
            if not versions or versions[0].strip('"') in ("0.0.1", "1.0.0"):
                return True
    return False


class TextWriter:
    """Writes families as text, piece by piece."""

    def __init__(self, *, is_open: bool = False, series_max: int | None = None) -> None:
        self.is_open = is_open
        self.series = 0
        # How many were not written, because there were that many already.
        self.left_out = 0
        self._series_max = series_max
        self._escaped: dict[str, str] = {}

    @property
    def content_type(self) -> str:
        return OPEN_TYPE if self.is_open else PLAIN_TYPE

    def family(self, metric: Metric, values: Values | Stream) -> Iterator[str]:
        """The lines of a metric: its head, then a piece for each series."""
        # Only what has labels can become too many.
        series_max = self._series_max if metric.labels else None
        pairs = values.pairs if isinstance(values, Stream) else values.items()
        yield self._head(metric)
        count, left_out = 0, 0
        for labels, value in pairs:
            if series_max is not None and self.series + count >= series_max:
                left_out += 1
                yield ""
                continue
            count += 1
            yield self._series(metric, labels, value)
        self.series += count
        self.left_out += left_out

    def end(self) -> str:
        return _OPEN_END if self.is_open else ""

    def _head(self, metric: Metric) -> str:
        name = metric.name
        if self.is_open and metric.kind is Kind.COUNTER:
            name = name.removesuffix("_total")
        documentation = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
        if self.is_open:
            documentation = documentation.replace('"', r"\"")
        return f"# HELP {name} {documentation}\n# TYPE {name} {metric.kind.value}\n"

    def _series(self, metric: Metric, labels: Labels, value: Value) -> str:
        text = self._labels(metric.labels, labels)
        if isinstance(value, Histogram):
            return self._histogram(metric.name, text, value)
        return f"{metric.name}{{{text}}} {value}\n" if text else f"{metric.name} {value}\n"

    def _labels(self, names: Labels, labels: Labels) -> str:
        escaped = self._escaped
        parts = []
        for name, label in zip(names, labels, strict=True):
            text = escaped.get(label)
            if text is None:
                text = label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
                escaped[label] = text
            parts.append(f'{name}="{text}"')
        return ",".join(parts)

    @staticmethod
    def _histogram(name: str, text: str, histogram: Histogram) -> str:
        before = f"{text}," if text else ""
        after = f"{{{text}}}" if text else ""
        lines, total = [], 0
        for bound, count in zip((*histogram.bounds_s, "+Inf"), histogram.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{before}le="{bound}"}} {total}\n')
        lines.append(f"{name}_count{after} {total}\n{name}_sum{after} {histogram.sum_s}\n")
        return "".join(lines)


def render_text(families: Families, accept: str = "") -> tuple[bytes, str]:
    """Metrics as text and its content type, at once: for few of them."""
    writer = TextWriter(is_open=wants_openmetrics(accept))
    lines = [line for metric, values in families for line in writer.family(metric, values)]
    return "".join([*lines, writer.end()]).encode(), writer.content_type
