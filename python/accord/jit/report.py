"""Reports what runs where in a compiled graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PartitionReport:
    """A part of a graph: `where` it runs ("engine" or "pytorch"), its ops in order, and for PyTorch their reasons."""

    name: str
    where: str
    ops: tuple[str, ...]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class CollectiveReport:
    """One collective: its op, its logical group, and where it runs."""

    op: str
    group: str
    where: str


@dataclass
class CompilationReport:
    """One compiled graph. `engines`: number of sets of weights that it was built for. `builds`: how often engines
    were built, including rebuilds after weights changed. `from_cache`: how many engines came from the engine cache."""

    name: str
    partitions: list[PartitionReport] = field(default_factory=list)
    collectives: list[CollectiveReport] = field(default_factory=list)
    engines: int = 0
    builds: int = 0
    from_cache: int = 0

    def ops(self, where: str) -> Counter[str]:
        """Counts how often each op runs in the "engine" or in "pytorch"."""
        return Counter(op for part in self.partitions if part.where == where for op in part.ops)

    def __str__(self) -> str:
        in_engine, in_torch = self.ops("engine").total(), self.ops("pytorch").total()
        lines = [f"{self.name}: {in_engine} ops in engines, {in_torch} in PyTorch, built {self.builds} times"]
        for part in self.partitions:
            counts = ", ".join(f"{op} x{n}" if n > 1 else op for op, n in Counter(part.ops).most_common(6))
            more = len(Counter(part.ops)) - 6
            lines.append(f"  {part.name} ({part.where}): {counts}{f' and {more} others' if more > 0 else ''}")
            lines += [f"    because {reason}" for reason in dict.fromkeys(part.reasons)]
        lines += [f"  {one.op} over {one.group!r}: {one.where}" for one in self.collectives]
        return "\n".join(lines)
