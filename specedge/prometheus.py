"""Sums and probes as Prometheus metrics, by way of `prometheus-client` (extra "metrics").

    registry.register(prometheus.collector(model))          # an application's own /metrics
    prometheus.write(prometheus.text(model), "/var/lib/node_exporter/specedge.prom")

docs/metrics.md lists every name and the bounds of every label; a prompt or a reason is never one.
Models of the same bundle add up; bundles are told apart by the label `bundle`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from specedge.counters import Counters
from specedge.errors import SpecedgeError
from specedge.metric_families import Family, Probed, families, probe_families
from specedge.replacing import write_file

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class Counted(Protocol):
    """What has counters: a `Model`."""

    @property
    def counters(self) -> Counters: ...


class Collector:
    """Asked by a registry at every scrape; `collector` makes it.

    Args:
        look: gives the families as they are now.
        names: gives the same families with or without values.
    """

    def __init__(
        self, look: Callable[[], Iterable[Family]], names: Callable[[], Iterable[Family]]
    ) -> None:
        self._look = look
        self._names = names

    def collect(self) -> Iterable[Metric]:
        return map(_metric, self._look())

    def describe(self) -> Iterable[Metric]:
        """Lets a registry refuse a second collector of the same names, which no scraper reads."""
        return map(_metric, self._names())


def collector(*sources: Counted | Counters) -> Collector:
    """For `register` of a prometheus-client registry; one collector takes all models.

    Raises:
        SpecedgeError: prometheus-client is not installed.
    """
    _require_client()
    counters = [each if isinstance(each, Counters) else each.counters for each in sources]
    once = list(dict.fromkeys(counters))
    return Collector(lambda: families([each.snapshot() for each in once]), lambda: families([]))


def text(*sources: Counted | Counters) -> str:
    """The metrics of models, or of their counters, in Prometheus' text format.

    Raises:
        SpecedgeError: prometheus-client is not installed.
    """
    return _generate(collector(*sources))


def probe_text(record: Probed, bundle: str) -> str:
    """What a stored probe found, in Prometheus' text format; `bundle` is the bundle's name.

    Raises:
        SpecedgeError: prometheus-client is not installed.
    """
    _require_client()
    found = list(probe_families(record, bundle))
    return _generate(Collector(lambda: found, lambda: found))


def write(text: str, path: str | os.PathLike[str]) -> None:
    """Put a text in place whole or not at all, for node exporter's textfile collector.

    Args:
        text: of `text` or `probe_text`.
        path: the collector reads names that end in ".prom".

    Raises:
        SpecedgeError: the file cannot be written.
    """
    path = Path(path)
    try:
        write_file(path, text)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error


def check_place(path: Path) -> None:
    """What can be known before there is a text, and the library that makes one.

    Raises:
        SpecedgeError: the path is a folder, its folder is missing, or prometheus-client is.
    """
    _require_client()
    try:
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    if is_folder or not has_folder:
        raise _refused(path, "it is a folder" if is_folder else f"there is no {path.parent}")


def _refused(path: Path, why: str) -> SpecedgeError:
    return SpecedgeError(
        f"{path}: metrics cannot be written: {why}; name a file in a folder that exists and is "
        "writable"
    )


def _require_client() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise SpecedgeError(
            "metrics: prometheus-client is not installed; run: pip install 'specedge[metrics]'"
        ) from error


def _generate(source: Collector) -> str:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(source)
    return generate_latest(registry).decode()


def _metric(family: Family) -> Metric:
    from prometheus_client import metrics_core as core

    if family.kind == "histogram":
        histogram = core.HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, counts, total in family.counts:
            histogram.add_metric(_clean(labels), _cumulative(family.ends, counts), total)
        return histogram
    kind = core.CounterMetricFamily if family.kind == "counter" else core.GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, value in family.rows:
        metric.add_metric(_clean(labels), value)
    return metric


def _cumulative(ends: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Each bucket holds what the ones before it hold, too; the last end is infinity."""
    names = ["+Inf" if isinf(end) else str(end) for end in ends]
    return list(zip(names, accumulate(counts), strict=True))


def _clean(labels: Iterable[str]) -> list[str]:
    """Half a surrogate pair, which a name given in Python may hold, is no UTF-8."""
    return [label.encode("utf-8", "replace").decode() for label in labels]
