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
    Metric,
    Stream,
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
        self._escape = _Escaped().__getitem__

    @property
    def content_type(self) -> str:
        return OPEN_TYPE if self.is_open else PLAIN_TYPE

    def family(self, metric: Metric, values: Values | Stream) -> Iterator[str]:
        """The lines of a metric: its head, then a piece for each series."""
        # Only what has labels can become too many.
        series_max = self._series_max if metric.labels else None
        pairs = values.pairs if isinstance(values, Stream) else values.items()
        yield self._head(metric)
        template, escape = _template(metric), self._escape
        count, left_out = 0, 0
        for labels, value in pairs:
            # A histogram is a series for each of its lines: the bounds, +Inf, count and sum.
            size = len(value.bounds_s) + 3 if isinstance(value, Histogram) else 1
            if series_max is not None and self.series + count + size > series_max:
                left_out += size
                yield ""
                continue
            count += size
            if isinstance(value, Histogram):
                yield _histogram(metric, [escape(label) for label in labels], value)
            else:
                yield template % (*map(escape, labels), value)
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


class _Escaped(dict[str, str]):
    """Labels as they are written, each made once: most come again and again."""

    def __missing__(self, label: str) -> str:
        text = label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        self[label] = text
        return text


def _template(metric: Metric) -> str:
    """The line of a series, to be filled with labels and a value."""
    names = ",".join(f'{name}="%s"' for name in metric.labels)
    return f"{metric.name}{{{names}}} %s\n" if names else f"{metric.name} %s\n"


def _histogram(metric: Metric, labels: list[str], histogram: Histogram) -> str:
    name = metric.name
    text = ",".join(f'{n}="{label}"' for n, label in zip(metric.labels, labels, strict=True))
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
