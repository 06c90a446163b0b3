"""Counters and histograms for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import disable_created_metrics

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

_FIRST_TOKEN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_NEXT_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class _RankProcesses:
    """The kernel's figures of the ranks' processes, whenever the metrics are read. `processes`: their ids by rank."""

    def __init__(self, processes: Mapping[int, int]):
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        memory = GaugeMetricFamily("accord_rank_memory_bytes", "Resident memory of a rank", labels=["rank"])
        processor = CounterMetricFamily("accord_rank_cpu_seconds", "Processor time of a rank", labels=["rank"])
        for rank, process in sorted(self._processes.items()):
            try:
                pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            memory.add_metric([str(rank)], pages * os.sysconf("SC_PAGE_SIZE"))
            ticks = int(fields[11]) + int(fields[12])  # in user mode and in the kernel
            processor.add_metric([str(rank)], ticks / os.sysconf("SC_CLK_TCK"))
        yield memory
        yield processor


class Metrics:
    """What the server counts. Used by the thread of the event loop only."""

    def __init__(self) -> None:
        disable_created_metrics()  # a series beside each counter that says when it began
        self._registry = CollectorRegistry()
        self.responses = self._add(Counter, "responses", "HTTP responses", ("path", "status"))
        self.open_requests = self._add(Gauge, "open_requests", "Generations that run or wait")
        self.queued_requests = self._add(Gauge, "queued_requests", "Generations that wait for their client's turn")
        self.prompt_tokens = self._add(Counter, "prompt_tokens", "Tokens of prompts")
        self.generated_tokens = self._add(Counter, "generated_tokens", "Tokens that were generated")
        self.first_token = self._add(
            Histogram, "time_to_first_token_seconds", "From a request to its first token", buckets=_FIRST_TOKEN
        )
        self.next_token = self._add(
            Histogram, "time_between_tokens_seconds", "From a token of an answer to the next", buckets=_NEXT_TOKEN
        )
        self.ready = self._add(Gauge, "ready", "1 while the ranks take requests")
        self.restarts = self._add(Counter, "restarts", "Times that the ranks were started again")
        self.resumed = self._add(Counter, "resumed_requests", "Requests that continued on restarted ranks")
        self._engine = {
            "waiting": self._add(Gauge, "waiting_sequences", "Sequences that wait for a place"),
            "running": self._add(Gauge, "running_sequences", "Sequences that take part in steps"),
            "steps": self._add(Gauge, "steps", "Steps since the ranks were started"),
            "computed_tokens": self._add(Gauge, "computed_tokens", "Tokens computed since the ranks were started"),
            "reused_tokens": self._add(Gauge, "reused_tokens", "Tokens of prompts found in the cache, likewise"),
            "preemptions": self._add(Gauge, "preemptions", "Sequences that lost their blocks to others, likewise"),
        }
        self._cache_use = self._add(Gauge, "cache_use_ratio", "Part of the cache's blocks that sequences hold")

    def _add(self, kind, name: str, meaning: str, labels: tuple[str, ...] = (), **more):
        return kind(f"accord_{name}", meaning, labels, registry=self._registry, **more)

    def set_stats(self, stats: dict[str, int]) -> None:
        """Takes over the counters of rank 0."""
        for name, gauge in self._engine.items():
            gauge.set(stats[name])
        self._cache_use.set(1 - stats["available_blocks"] / stats["blocks"])

    def watch_ranks(self, processes: Mapping[int, int]) -> None:
        """Adds the metrics by rank of processes that may change."""
        self._registry.register(_RankProcesses(processes))

    def text(self) -> bytes:
        return generate_latest(self._registry)
