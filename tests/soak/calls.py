"""Random calls and their expected results. All ranks make the same choices from one seed, and each knows every rank's
input.

Inputs are small integers, so that every dtype represents every result exactly and NumPy is the reference.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

DTYPES = [
    np.dtype(name) for name in "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
]
DTYPES += [np.dtype(name) for name in ("complex64", "complex128", "bool")]
OPS: dict[str, Callable] = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
OPS |= {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


@dataclass
class Call:
    """One rank's part of a call: comm.NAME(*arguments), after which each array of `outputs` must equal its expected
    value."""

    name: str
    arguments: tuple
    outputs: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        for have, want in self.outputs:
            if not np.array_equal(have, want):
                place = int(np.flatnonzero(have != want)[0])
                raise AssertionError(
                    f"{self.name} of {have.size} x {have.dtype}: element {place} is {have[place]}, not {want[place]}"
                )


def count_of(choice: random.Random) -> int:
    """Returns a count of any order of magnitude: none, one, a cache line, a slot, several slots."""
    return choice.choice([0, 1, choice.randrange(64), choice.randrange(4096), choice.randrange(100_000), 300_000])


def ops_of(dtype: np.dtype) -> list[str]:
    if dtype.kind == "c":
        return ["sum"]
    if dtype.kind == "f":
        return ["sum", "product", "min", "max"]
    return ["band", "bor", "bxor"] if dtype.kind == "b" else list(OPS)


def data(seed: str, rank: int, count: int, dtype: np.dtype) -> np.ndarray:
    """Returns `rank`'s input: 0 to 3, so that even a product over 8 ranks is exact in every dtype except int8, where
    it wraps."""
    values = np.random.default_rng([*seed.encode(), rank]).integers(0, 2 if dtype.kind == "b" else 4, count)
    return values.astype(dtype)


def combined(op: str, parts: list[np.ndarray]) -> np.ndarray:
    return reduce(OPS[op], parts)


def random_call(choice: random.Random, seed: str, me: int, size: int) -> Call:
    """Returns the same call on all `size` ranks that pass the same `choice` and `seed`."""
    name = choice.choice(list(MAKERS))
    dtype, count, root = choice.choice(DTYPES), count_of(choice), choice.randrange(size)
    op = choice.choice(ops_of(dtype))
    counts = [choice.choice([0, count // 4, choice.randrange(count // 4 + 1)]) for _ in range(size * size)]
    return MAKERS[name](Request(seed, me, size, dtype, count, root, op, counts))


@dataclass
class Request:
    seed: str
    me: int
    size: int
    dtype: np.dtype
    count: int
    root: int
    op: str
    counts: list[int]  # size * size counts, for parts

    def inputs(self, count_of_rank: Callable[[int], int]) -> list[np.ndarray]:
        return [data(self.seed, rank, count_of_rank(rank), self.dtype) for rank in range(self.size)]

    def equal_inputs(self, factor: int = 1) -> list[np.ndarray]:
        return self.inputs(lambda _: self.count // self.size * factor if factor > 1 else self.count)

    def out(self, count: int) -> np.ndarray:
        return np.zeros(count, self.dtype)


def barrier(_: Request) -> Call:
    return Call("barrier", ())


def all_reduce(r: Request) -> Call:
    inputs = r.equal_inputs()
    want = combined(r.op, inputs)
    x = inputs[r.me].copy()
    if r.root % 2:
        return Call("all_reduce", (x, r.op), [(x, want)])
    out = r.out(r.count)
    return Call("all_reduce", (x, r.op), [(out, want), (x, inputs[r.me])], {"out": out})


def reduce_to_root(r: Request) -> Call:
    inputs = r.equal_inputs()
    x = inputs[r.me].copy()
    return Call("reduce", (x, r.root, r.op), [(x, combined(r.op, inputs))] if r.me == r.root else [])


def broadcast(r: Request) -> Call:
    inputs = r.equal_inputs()
    x = inputs[r.me].copy()
    return Call("broadcast", (x, r.root), [(x, inputs[r.root])])


def all_gather(r: Request) -> Call:
    inputs = r.equal_inputs()
    out = r.out(r.count * r.size)
    return Call("all_gather", (inputs[r.me], out), [(out, np.concatenate(inputs))])


def reduce_scatter(r: Request) -> Call:
    part = r.count // r.size
    inputs = r.inputs(lambda _: part * r.size)
    out = r.out(part)
    return Call("reduce_scatter", (inputs[r.me], out, r.op), [(out, combined(r.op, inputs)[r.me * part :][:part])])


def all_to_all(r: Request) -> Call:
    part = r.count // r.size
    inputs = r.inputs(lambda _: part * r.size)
    out = r.out(part * r.size)
    want = np.concatenate([theirs[r.me * part :][:part] for theirs in inputs])
    return Call("all_to_all", (inputs[r.me], out), [(out, want)])


def gather(r: Request) -> Call:
    inputs = r.equal_inputs()
    if r.me != r.root:
        return Call("gather", (inputs[r.me], None, r.root))
    out = r.out(r.count * r.size)
    return Call("gather", (inputs[r.me], out, r.root), [(out, np.concatenate(inputs))])


def scatter(r: Request) -> Call:
    part = r.count // r.size
    whole = data(r.seed, r.root, part * r.size, r.dtype)
    out = r.out(part)
    given = whole if r.me == r.root else None
    return Call("scatter", (given, out, r.root), [(out, whole[r.me * part :][:part])])


def all_gather_v(r: Request) -> Call:
    counts = r.counts[: r.size]
    inputs = r.inputs(lambda rank: counts[rank])
    out = r.out(sum(counts))
    return Call("all_gather_v", (inputs[r.me], out, counts), [(out, np.concatenate(inputs))])


def reduce_scatter_v(r: Request) -> Call:
    counts = r.counts[: r.size]
    inputs = r.inputs(lambda _: sum(counts))
    out = r.out(counts[r.me])
    want = combined(r.op, inputs)[sum(counts[: r.me]) :][: counts[r.me]]
    return Call("reduce_scatter_v", (inputs[r.me], out, counts, r.op), [(out, want)])


def gather_v(r: Request) -> Call:
    counts = r.counts[: r.size]
    inputs = r.inputs(lambda rank: counts[rank])
    if r.me != r.root:
        return Call("gather_v", (inputs[r.me], None, None, r.root))
    out = r.out(sum(counts))
    return Call("gather_v", (inputs[r.me], out, counts, r.root), [(out, np.concatenate(inputs))])


def scatter_v(r: Request) -> Call:
    counts = r.counts[: r.size]
    whole = data(r.seed, r.root, sum(counts), r.dtype)
    out = r.out(counts[r.me])
    given = (whole, counts) if r.me == r.root else (None, None)
    return Call("scatter_v", (*given, out, r.root), [(out, whole[sum(counts[: r.me]) :][: counts[r.me]])])


def all_to_all_v(r: Request) -> Call:
    sent = [r.counts[rank * r.size :][: r.size] for rank in range(r.size)]  # [from][to]
    inputs = r.inputs(lambda rank: sum(sent[rank]))
    received = [sent[rank][r.me] for rank in range(r.size)]
    out = r.out(sum(received))
    want = np.concatenate([inputs[k][sum(sent[k][: r.me]) :][: sent[k][r.me]] for k in range(r.size)])
    return Call("all_to_all_v", (inputs[r.me], sent[r.me], out, received), [(out, want)])


MAKERS: dict[str, Callable[[Request], Call]] = {
    factory.__name__: factory
    for factory in (
        barrier, all_reduce, reduce_to_root, broadcast, all_gather, reduce_scatter, all_to_all, gather, scatter,
        all_gather_v, reduce_scatter_v, gather_v, scatter_v, all_to_all_v,
    )
}  # fmt: skip


def ring(seed: str, me: int, size: int, count: int) -> list[Call]:
    """Messages to the next rank and from the previous one, for a batch."""
    dtype = np.dtype("int64")
    got = np.zeros(count, dtype)
    before = (me - 1) % size
    return [
        Call("recv", (got, before), [(got, data(seed, before, count, dtype))]),
        Call("send", (data(seed, me, count, dtype), (me + 1) % size)),
    ]
