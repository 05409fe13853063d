"""What Prometheus reads; docs/serving.md has the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aner.llm import Response

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_EACH_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_CANCEL = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_GAUGES = {
    "running": "Requests that run now",
    "waiting": "Requests that wait for a slot",
    "slots": "Requests that can run at a time",
    "kv_bytes": "KV memory of the contexts that are allocated",
    "sessions": "Conversations that are kept",
}


class Metrics:
    """The counters of one application."""

    def __init__(self, load: Callable[[], Iterable[tuple[str, dict[str, int]]]]) -> None:
        """``load`` gives the present figures of each model, by the names of ``_GAUGES``."""
        self._registry = CollectorRegistry()
        self._registry.register(_Load(load))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"aner_{name}", text, ("model", *labels), registry=self._registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"aner_{name}", text, ("model",), buckets=buckets, registry=self._registry)

        self._requests = counter("requests", "Requests that finished", "finish_reason")
        self._input = counter("input_tokens", "Tokens of prompts")
        self._cached = counter("cached_input_tokens", "Tokens of prompts that were taken from retained KV")
        self._output = counter("output_tokens", "Tokens generated")
        self._proposed = counter("speculative_proposed_tokens", "Tokens that prompt lookup proposed")
        self._accepted = counter("speculative_accepted_tokens", "Proposed tokens that the model agreed with")
        self._first = histogram("first_token_seconds", "From admission to the first token, waiting included", _FIRST_TOKEN)
        self._each = histogram("output_token_seconds", "Mean time of each token after the first, by request", _EACH_TOKEN)
        self._queue = histogram("queue_seconds", "Waiting for a slot", _FIRST_TOKEN)
        self._cancel = histogram("cancel_seconds", "From cancelling a request to its slot being free", _CANCEL)
        self.rejections = Counter("aner_rejections", "Answers that were not a success", ("code",), registry=self._registry)

    def finished(self, alias: str, response: Response, wait_seconds: float) -> None:
        timings: Any = response.timings()
        self._requests.labels(alias, response.finish_reason()).inc()
        for counter, name in (
            (self._input, "input_tokens"),
            (self._cached, "cached_input_tokens"),
            (self._output, "output_tokens"),
            (self._proposed, "speculative_proposed_tokens"),
            (self._accepted, "speculative_accepted_tokens"),
        ):
            counter.labels(alias).inc(max(0, timings[name]))
        self._queue.labels(alias).observe(wait_seconds + max(0, timings["queue_duration"]) / 1e9)
        if timings["first_token_duration"] >= 0:
            self._first.labels(alias).observe(wait_seconds + timings["first_token_duration"] / 1e9)
        if rate := response.tokens_per_second():
            self._each.labels(alias).observe(1 / rate)

    def cancelled(self, alias: str, seconds: float) -> None:
        self._cancel.labels(alias).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Load(Collector):
    def __init__(self, load: Callable[[], Iterable[tuple[str, dict[str, int]]]]) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        gauges = {name: GaugeMetricFamily(f"aner_{name}", text, labels=("model",)) for name, text in _GAUGES.items()}
        for alias, figures in self._load():
            for name, gauge in gauges.items():
                gauge.add_metric((alias,), figures[name])
        yield from gauges.values()
