"""Counters and histograms for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase, disable_created_metrics

__all__ = ["CONTENT_TYPE_LATEST", "Metrics", "ModelMetrics"]

_FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_NEXT_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class _RankProcesses:
    """The kernel's figures of the ranks' processes, whenever the metrics are read."""

    def __init__(self) -> None:
        self.by_model: dict[str, dict[int, int]] = {}  # process ids by rank

    def collect(self) -> Iterator[Metric]:
        labels = ["model", "rank"]
        memory = GaugeMetricFamily("accord_rank_memory_bytes", "Resident memory of a rank", labels=labels)
        processor = CounterMetricFamily("accord_rank_cpu_seconds", "Processor time of a rank", labels=labels)
        for model, processes in self.by_model.items():
            for rank, process in sorted(processes.items()):
                try:
                    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
                    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                except OSError:  # it has just ended
                    continue
                memory.add_metric([model, str(rank)], pages * os.sysconf("SC_PAGE_SIZE"))
                ticks = int(fields[11]) + int(fields[12])  # in user mode and in the kernel
                processor.add_metric([model, str(rank)], ticks / os.sysconf("SC_CLK_TCK"))
        yield memory
        yield processor


class Metrics:
    """The counters of the server, and those of each model. Used by the thread of the event loop only."""

    def __init__(self) -> None:
        disable_created_metrics()  # a series beside each counter that says when it began
        self._registry = CollectorRegistry()
        self._processes = _RankProcesses()
        self._registry.register(self._processes)
        self._by_model: dict[str, MetricWrapperBase] = {}  # by name; the label "model" distinguishes the models
        # An empty label "model" is the same as none: for paths that no model answers.
        labels = ("model", "path", "status")
        self.responses = Counter("accord_responses", "HTTP responses", labels, registry=self._registry)

    def of_model(self, model: str) -> ModelMetrics:
        """Returns the metrics of a model, which are new."""

        def add(kind: type[MetricWrapperBase], name: str, meaning: str, **more: Any) -> Any:
            if name not in self._by_model:
                self._by_model[name] = kind(f"accord_{name}", meaning, ("model",), registry=self._registry, **more)
            return self._by_model[name].labels(model)

        self._processes.by_model[model] = {}
        return ModelMetrics(add, self._processes.by_model[model])

    def text(self) -> bytes:
        return generate_latest(self._registry)


class ModelMetrics:
    """`rank_processes`: ids of the ranks' processes by rank, for the metrics by rank."""

    def __init__(self, add: Callable[..., Any], rank_processes: dict[int, int]):
        """add: returns the model's metric of a kind, a name and a meaning."""
        self.rank_processes = rank_processes
        self.open_requests = add(Gauge, "open_requests", "Generations that run or wait")
        self.queued_requests = add(Gauge, "queued_requests", "Generations that wait for their client's turn")
        self.prompt_tokens = add(Counter, "prompt_tokens", "Tokens of prompts")
        self.generated_tokens = add(Counter, "generated_tokens", "Tokens that were generated")
        self.first_token = add(
            Histogram, "time_to_first_token_seconds", "From a request to its first token", buckets=_FIRST_TOKEN
        )
        self.next_token = add(
            Histogram, "time_between_tokens_seconds", "From a token of an answer to the next", buckets=_NEXT_TOKEN
        )
        self.ready = add(Gauge, "ready", "1 while the ranks take requests")
        self.restarts = add(Counter, "restarts", "Times that the ranks were started again")
        self.resumed = add(Counter, "resumed_requests", "Requests that continued on restarted ranks")
        self._engine = {
            "waiting": add(Gauge, "waiting_sequences", "Sequences that wait for a place"),
            "running": add(Gauge, "running_sequences", "Sequences that take part in steps"),
            "steps": add(Gauge, "steps", "Steps since the ranks were started"),
            "computed_tokens": add(Gauge, "computed_tokens", "Tokens computed since the ranks were started"),
            "reused_tokens": add(Gauge, "reused_tokens", "Tokens of prompts found in the cache, likewise"),
            "preemptions": add(Gauge, "preemptions", "Sequences that lost their blocks to others, likewise"),
        }
        self._cache_use = add(Gauge, "cache_use_ratio", "Part of the cache's blocks that sequences hold")

    def set_stats(self, stats: dict[str, int]) -> None:
        """Takes over the counters of rank 0."""
        for name, gauge in self._engine.items():
            gauge.set(stats[name])
        self._cache_use.set(1 - stats["available_blocks"] / stats["blocks"])
