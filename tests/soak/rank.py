"""One rank of the soak test: reads episodes from its standard input, plays them, and reports how they went.

An episode creates a communicator, then random groups of random groups, and makes random calls on them. Every rank
makes the same choices, from one seed. A rank that gets an error aborts all its groups, so that no other rank waits
for it, and shrinks the first group; the episode continues with the remaining ranks.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

import numpy as np
from calls import Call, random_call, ring
from member import send, serve

import accord

MOST_GROUPS = 6


class OnPurpose(Exception):
    """The error that a rank raises on request."""


@dataclass
class Member:
    """A group that this rank is a member of. The other ranks know of it too and make the same choices."""

    comm: accord.Communicator
    ranks: list[int]  # world ranks, in the group's order


class Play:
    """One life of a world, from its creation to its end or first failure."""

    def __init__(self, world: accord.Communicator, seed: str, episode: dict, part: int) -> None:
        self.world, self.seed, self.episode, self.part = world, f"{seed}/{part}", episode, part
        self.me = world.rank
        self.choice = random.Random(self.seed)
        self.groups: list[Member | None] = [Member(world, list(range(world.size)))]  # None: a group without this rank
        self.ranks_of = [list(range(world.size))]
        self.pending: list[tuple[accord.Work, list[Call]]] = []
        self.calls = 0

    def run(self, steps: int) -> None:
        for step in range(steps):
            self.fault(step)
            action = self.choice.random()
            if action < 0.08 and len(self.groups) < MOST_GROUPS:
                self.split()
            elif action < 0.12 and len(self.groups) > 1:
                self.close_one()
            else:
                self.call(f"{self.seed}/{step}")
        self.finish(0)
        self.world.barrier()

    def fault(self, step: int) -> None:
        kind, victim, at = self.episode["fault"], self.episode["victims"], self.episode["at"]
        if self.part > 0 or step != at or self.episode["rank"] not in victim:
            return
        if kind == "exit":
            os._exit(7)
        if kind == "raise":
            raise OnPurpose
        if kind == "mismatch":
            self.world.all_reduce(np.zeros(1 + len(self.seed), np.float16))

    def split(self) -> None:
        index = self.choice.randrange(len(self.groups))
        ranks, parent = self.ranks_of[index], self.groups[index]
        colors = [self.choice.choice([0, 1, -1]) for _ in ranks]
        keys = [self.choice.randrange(100) for _ in ranks]
        made = None
        if parent is not None:
            mine = parent.comm.rank
            made = parent.comm.split(colors[mine], keys[mine], name=f"part{len(self.groups)}")
        for color in (0, 1):
            members = [k for k in range(len(ranks)) if colors[k] == color]
            members.sort(key=lambda k: keys[k])
            if not members:
                continue
            order = [ranks[k] for k in members]
            member = Member(made, order) if self.me in order else None
            if member:
                assert (made.rank, made.size) == (order.index(self.me), len(order)), (made, order)
            self.groups.append(member)
            self.ranks_of.append(order)

    def close_one(self) -> None:
        index = self.choice.randrange(1, len(self.groups))
        self.finish(0)
        member = self.groups.pop(index)
        self.ranks_of.pop(index)
        if member:
            member.comm.close()

    def call(self, seed: str) -> None:
        index = self.choice.randrange(len(self.groups))
        member, ranks = self.groups[index], self.ranks_of[index]
        way = self.choice.choice(["sync", "sync", "async", "batch", "start batch", "prepared"])
        number = 1 if way in ("sync", "async") else self.choice.randrange(1, 4)
        place = ranks.index(self.me) if member else 0
        calls = [random_call(self.choice, f"{seed}/{k}", place, len(ranks)) for k in range(number)]
        with_ring = self.choice.random() < 0.5
        length = self.choice.choice([0, 1, 1000, 50_000])
        most_pending = self.choice.choice([0, 1, 3])
        if member is None:
            return
        comm = member.comm
        self.calls += len(calls)
        if way == "sync":
            (call,) = calls
            getattr(comm, call.name)(*call.arguments, **call.options)
            call.check()
        elif way == "async":
            (call,) = calls
            self.pending.append((getattr(comm, call.name + "_async")(*call.arguments, **call.options), calls))
        else:
            if with_ring and len(ranks) > 1:
                calls += ring(seed, place, len(ranks), length)
            batch = comm.batch()
            for call in calls:
                getattr(batch, call.name)(*call.arguments, **call.options)
            if way == "start batch":
                self.pending.append((batch.start(), calls))
            elif way == "batch":
                batch.run()
                self.check(calls)
            else:
                batch.prepare().run()
                self.check(calls)
        self.finish(most_pending)

    def finish(self, most: int) -> None:
        while len(self.pending) > most:
            work, calls = self.pending.pop(0)
            work.wait()
            self.check(calls)

    def check(self, calls: list[Call]) -> None:
        for call in calls:
            call.check()

    def give_up(self, why: str) -> None:
        for member in self.groups:
            if member:
                member.comm.abort(why)

    def close(self) -> None:
        members = [member for member in self.groups if member]
        random.Random(self.seed).shuffle(members)
        for member in members:
            member.comm.close()


def play(episode: dict) -> dict:
    store = accord.FileStore(episode["store"])
    world = accord.Communicator.create(store, episode["rank"], episode["size"], timeout=episode["timeout"])
    reported, part, members, calls, errors = False, 0, list(range(episode["size"])), 0, []
    while True:
        life = Play(world, episode["seed"], episode, part)
        try:
            if part > 0:
                found = np.zeros(world.size, np.int64)
                world.all_gather(np.array([episode["rank"]]), found)
                members = found.tolist()
            if not reported:
                send({"began": True})
                reported = True
            life.run(episode["steps"])
            return {"members": members, "calls": calls + life.calls, "errors": errors}
        except (accord.Error, OnPurpose) as error:
            errors.append([type(error).__name__, list(getattr(error, "ranks", ())), str(error)])
            if len(errors) > 8:
                raise
            life.give_up(f"{type(error).__name__} in the soak test")
            calls += life.calls
            part += 1
            world = life.world.shrink(timeout=episode["timeout"])
        finally:
            life.close()
            life.pending.clear()


if __name__ == "__main__":
    serve(play)
