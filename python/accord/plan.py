"""User-defined plans: write a plan, verify it, and register it; it then serves the ordinary calls of communicators.

    from accord import plan

    p = plan.Program("all_reduce", ranks=2, name="swap")
    for mine, peer in ((p.rank(0), p.rank(1)), (p.rank(1), p.rank(0))):
        mine.copy(mine.input[0], mine.scratch[0]).signal(peer).wait(peer)
        first, second = sorted([(mine.index, mine.input[0]), (peer.index, peer.scratch[0])])
        mine.reduce([first[1], second[1]], mine.output[0])
    p.verify()
    p.register(bytes="0-4k")

The guide is docs/plans.md; the JSON format is in docs/plan-format.md.
"""

from __future__ import annotations

import json as _json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from accord import _core
from accord._integers import integer

__all__ = ["Chunk", "OnRank", "Program", "Space", "import_mscclpp", "register", "verify"]


class Chunk(NamedTuple):
    """One chunk of a space of one rank, `p.rank(1).scratch[0]`, or of all ranks, `p.every_rank[0]`."""

    rank: int | str  # or "every"
    space: str
    index: int


class Space:
    """A rank's memory of one kind, indexed by chunk."""

    def __init__(self, rank: int | str, name: str) -> None:
        self._rank = rank
        self._name = name

    def __getitem__(self, index: int) -> Chunk:
        place = f"the place of a chunk in {self._name} of rank {self._rank}"
        number = integer(index, place, IndexError)
        if number < 0:
            raise IndexError(f"{place} is {number}; chunks are counted from 0")
        return Chunk(self._rank, self._name, number)


class OnRank:
    """The steps of one rank, in order. Every method adds a step to its lane and returns the rank, to chain calls."""

    def __init__(self, program: Program, index: int, lane: int = 0) -> None:
        self.index = index
        self._program = program
        self._lane = lane
        self.input = Space(index, "input")
        self.output = Space(index, "output")
        self.scratch = Space(index, "scratch")
        self.packets = Space(index, "packets")
        self.partials = Space(index, "partials")
        self.multicast = Space(index, "multicast")

    def lane(self, lane: int) -> OnRank:
        """Returns the same rank with steps added to that lane. Lanes run at the same time."""
        return OnRank(self._program, self.index, integer(lane, "the lane"))

    def copy(self, source: Chunk, destinations: Chunk | Iterable[Chunk]) -> OnRank:
        """Copies `source` to one or two destinations. At most one of these chunks is in a peer's memory: scratch,
        registered buffers, or multicast of every rank.
        """
        return self._add({"step": "copy", "from": _chunks(source), "to": _chunks(destinations)})

    def reduce(self, sources: Sequence[Chunk], destinations: Chunk | Iterable[Chunk]) -> OnRank:
        """Adds up `sources` along the canonical tree over their list, into the rank's own output, scratch or
        partials.

        Alternatively, the only source is `every_rank[i]` of the program: a sum computed by a switch, which may also
        go to every rank.
        """
        return self._add({"step": "reduce", "from": _chunks(sources), "to": _chunks(destinations)})

    def signal(self, peer: OnRank | int, id: int = 0) -> OnRank:
        """Makes all previous steps visible to `peer` after its wait. At most once per round for each id."""
        return self._add({"step": "signal", "peer": _rank(peer), "id": integer(id, "the id of a signal")})

    def wait(self, peer: OnRank | int, id: int = 0) -> OnRank:
        """Waits for the signal with this id from `peer`."""
        return self._add({"step": "wait", "peer": _rank(peer), "id": integer(id, "the id of a signal")})

    def put_packets(self, source: Chunk, destination: Chunk) -> OnRank:
        """Writes the rank's own memory into packets of a peer; chunk i of them is for rank i % ranks."""
        return self._add({"step": "put_packets", "from": _chunks(source), "to": _chunks(destination)})

    def lane_barrier(self, id: int = 0) -> OnRank:
        """Waits until all lanes of the rank have reached this barrier."""
        return self._add({"step": "lane_barrier", "id": integer(id, "the id of a barrier")})

    def _add(self, step: dict) -> OnRank:
        self._program._add(self.index, self._lane, step)
        return self


class Program:
    """A plan for `ranks` ranks, written step by step.

    collective: "all_reduce", "all_gather", ... name: the plan's name in selection tables. chunks: number of chunks
    that a buffer is divided into, or each rank's part if the collective divides the buffer. order: the order of
    summation: "canonical" (the default for collectives that reduce), "fixed" (an order of its own, such as a ring's),
    "switch" (the order of a switch between GPUs), "none". pacing: "by_plan" promises that a rank hears from all
    others in every round, which the verifier checks. buffers: "in_windows" for a plan that accesses the input and
    output of peers, only for calls on registered buffers; "in_windows_apart" if it is correct only when input and
    output are different memory.
    """

    def __init__(
        self,
        collective: str,
        ranks: int,
        name: str,
        *,
        chunks: int = 1,
        root: int = 0,
        order: str | None = None,
        pacing: str = "by_executor",
        buffers: str = "anywhere",
    ) -> None:
        ranks, chunks, root = integer(ranks, "ranks"), integer(chunks, "chunks"), integer(root, "root")
        inputs, outputs = _core.parts_of_buffers(collective, ranks)
        self.collective = collective
        self.ranks = ranks
        self.name = name
        self.root = root
        self.order = order or ("canonical" if "reduce" in collective else "none")
        self.pacing = pacing
        self.buffers = buffers
        self.every_rank = Space("every", "multicast")
        self._chunks = {"input": inputs * chunks, "output": outputs * chunks, "scratch": 0, "packets": 0}
        self._chunks |= {"partials": 0, "multicast": 0}
        self._signals = 0
        self._lanes: list[list[list[dict]]] = [[[]] for _ in range(ranks)]

    def rank(self, index: int) -> OnRank:
        """Returns the steps of rank `index`, in lane 0."""
        number = integer(index, "the rank", IndexError)
        if not 0 <= number < self.ranks:
            raise IndexError(f"there is no rank {number}, only ranks 0 to {self.ranks - 1}")
        return OnRank(self, number)

    def json(self) -> str:
        """Returns the plan as text, one step per line: docs/plan-format.md."""
        chunks = {
            space: count for space, count in self._chunks.items() if count or space not in ("partials", "multicast")
        }
        programs = [
            '{"lanes": ['
            + ",\n".join("[" + ",\n".join(_json.dumps(step) for step in lane) + "]" for lane in lanes)
            + "]}"
            for lanes in self._lanes
        ]
        head = {
            "format": "accord-plan",
            "version": 1,
            "name": self.name,
            "collective": self.collective,
            "size": self.ranks,
            "root": self.root,
            "order": self.order,
            "pacing": self.pacing,
            "buffers": self.buffers,
            "signals": self._signals,
            "chunks": chunks,
        }
        if self.buffers == "anywhere":
            del head["buffers"]
        return _json.dumps(head)[:-1] + ',\n"programs": [\n' + ",\n".join(programs) + "]}\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes json() to a file, for `accord plan show` and register()."""
        Path(path).write_text(self.json())

    def verify(self) -> None:
        """Verifies the plan, in place and with separate buffers. Raises InvalidArgument, which names the wrong step."""
        verify(self)

    def register(self, *, name: str | None = None, bytes: str | None = None) -> None:
        """Registers the plan; see plan.register()."""
        register(self, name=name, bytes=bytes)

    def _add(self, rank: int, lane: int, step: dict) -> None:
        if lane < 0:
            raise IndexError(f"a rank has lanes from 0 on, not {lane}")
        for chunk in (*step.get("from", ()), *step.get("to", ())):
            if chunk.space in ("scratch", "packets", "partials", "multicast"):
                self._chunks[chunk.space] = max(self._chunks[chunk.space], chunk.index + 1)
        if step["step"] in ("signal", "wait"):
            self._signals = max(self._signals, step["id"] + 1)
        lanes = self._lanes[rank]
        lanes.extend([] for _ in range(lane + 1 - len(lanes)))
        lanes[lane].append(step)


Plan = Program | str | os.PathLike[str]


def verify(plan: Plan) -> None:
    """Verifies that a plan is correct.

    plan: a Program, the path of a file, or JSON as text. Raises InvalidArgument, which names the wrong step, or
    Corrupt, which says where the text is not a plan.
    """
    _core.verify_plan(_text(plan))


def register(plan: Plan, *, name: str | None = None, bytes: str | None = None) -> None:
    """Registers a plan for all communicators of this process, including existing ones.

    plan: a Program, the path of a file, or JSON as text. It is verified first. name: name in selection tables; by
    default the plan's own name. bytes: "0-4k": serves calls of these sizes even if no table names it.

    Every rank registers the same plans before any rank makes a call that they serve; otherwise that call raises
    Mismatch. A call that the plan does not fit (ranks, root) is passed on to the next rule of the table. Registering
    the same plan again does nothing.
    """
    _core.register_plan(_text(plan), name or "", bytes or "")


def import_mscclpp(plan: str | os.PathLike[str], *, without_switch: bool = False) -> str:
    """Returns the JSON of a plan that does the same as an MSCCL++ execution plan, given as a file or as JSON text.

    The result is verified. Corrupt and Unsupported name the place of what is rejected. Transfers through a switch
    between all ranks are kept as such in the plan, which then runs only on GPUs behind a switch; without_switch
    converts them to copies and sums, which run anywhere.
    """
    return _core.import_mscclpp_plan(_text(plan), without_switch)


def _text(plan: Plan) -> str:
    if isinstance(plan, Program):
        return plan.json()
    if isinstance(plan, str) and plan.lstrip().startswith("{"):
        return plan
    return Path(plan).read_text(encoding="utf-8", errors="replace")


def _chunks(chunks: Chunk | Iterable[Chunk]) -> list[Chunk]:
    found = list(chunks) if isinstance(chunks, Iterable) and not isinstance(chunks, Chunk) else [chunks]
    for chunk in found:
        if not isinstance(chunk, Chunk):
            raise TypeError(f"{chunk!r} is not a chunk, such as program.rank(0).scratch[1]")
    return found


def _rank(peer: OnRank | int) -> int:
    return peer.index if isinstance(peer, OnRank) else integer(peer, "the peer")
