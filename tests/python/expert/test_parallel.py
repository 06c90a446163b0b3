"""accord.moe.ExpertGroup compared with the formulas in NumPy, on 1 to 8 ranks that are threads of this process or
processes."""

import os
import re
import signal
import time

import numpy as np
import pytest
from accord_command import BUILD, ROOT
from accord_command import accord as accord_command
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import on_threads
from tiers import mostly_slow

import accord
from accord.moe import ExpertGroup, balance_experts

# The formulas: the choices of each token, the list of each expert, and the four exchanges as sums over that list.


def choices(ids, experts):
    """Returns [(k, expert)] for a token: each expert once, at its lowest k."""
    return [(k, e) for k, e in enumerate(ids) if 0 <= e < experts and e not in ids[:k]]


def slots_of(ids, experts, placement, alignment):
    """Returns [(source rank, token, k) or None] for each rank, and the padded counts of its experts."""
    replicas = {
        e: [(d, i) for d, own in enumerate(placement) for i, x in enumerate(own) if x == e] for e in range(experts)
    }
    lists = {(d, i): [] for d, own in enumerate(placement) for i in range(len(own))}
    for s, of_rank in enumerate(ids):
        for t, token in enumerate(of_rank):
            for k, e in choices(list(token), experts):
                lists[replicas[e][(s + t) % len(replicas[e])]].append((s, t, k))
    padded = {key: rows + [None] * (-len(rows) % alignment) for key, rows in lists.items()}
    by_rank = [[row for i in range(len(own)) for row in padded[d, i]] for d, own in enumerate(placement)]
    return by_rank, [[len(padded[d, i]) for i in range(len(own))] for d, own in enumerate(placement)]


def sums_of(slots, rows, tokens, hidden):
    """Returns the sum of each token's rows over the slots of all ranks."""
    sums = [np.zeros((count, hidden)) for count in tokens]
    for d, of_rank in enumerate(slots):
        for slot, source in enumerate(of_rank):
            if source is not None:
                sums[source[0]][source[1]] += rows[d][slot]
    return sums


@st.composite
def problems(draw):
    size = draw(st.integers(1, 8))
    experts = draw(st.integers(1, 12))
    top_k = draw(st.integers(1, min(8, experts)))
    ranks = st.integers(0, size - 1)
    placement = [[] for _ in range(size)]
    for e in [*range(experts), *draw(st.lists(st.integers(0, experts - 1), max_size=4))]:
        placement[draw(ranks)].append(e)
    hostile = st.one_of(st.integers(0, experts - 1), st.sampled_from([-1, -2, experts, 2**31 - 1, -(2**31)]))
    tokens = [draw(st.integers(0, 6)) for _ in range(size)]
    ids = [[draw(st.lists(hostile, min_size=top_k, max_size=top_k)) for _ in range(count)] for count in tokens]
    return {
        "placement": [sorted(own) for own in placement],
        "experts": experts,
        "top_k": top_k,
        "hidden": draw(st.integers(1, 70)),
        "alignment": draw(st.sampled_from([1, 2, 3, 4, 16])),
        "ids": ids,
        "id_type": draw(st.sampled_from([np.int32, np.int64])),
        "algorithm": draw(st.sampled_from(["auto", "all_to_all", "hierarchical"])),
        "ranks_per_host": draw(st.integers(0, 3)),
        "dtype": draw(st.sampled_from(["float32", "float64"])),
    }


@settings(max_examples=120, deadline=None)
@given(problems())
def test_all_exchanges_follow_the_formulas(problem):
    ids, hidden, top_k = problem["ids"], problem["hidden"], problem["top_k"]
    tokens = [len(of_rank) for of_rank in ids]
    slots, counts = slots_of(ids, problem["experts"], problem["placement"], problem["alignment"])
    random = np.random.default_rng(0)
    dtype = np.dtype(problem["dtype"])
    # Integers, whose sums are exact.
    x = [random.integers(-9, 9, (count, hidden)).astype(dtype) for count in tokens]
    w = [random.integers(-9, 9, (count, top_k)).astype(dtype) for count in tokens]
    y = [random.integers(-9, 9, (len(of_rank), hidden)).astype(dtype) for of_rank in slots]
    gw = [random.integers(-9, 9, len(of_rank)).astype(dtype) for of_rank in slots]

    def body(comm):
        me = comm.rank
        group = ExpertGroup(
            comm,
            experts=problem["experts"],
            top_k=top_k,
            hidden=hidden,
            max_tokens_per_rank=max(1, *tokens),
            alignment=problem["alignment"],
            dtype="float64",
            placement=problem["placement"],
            algorithm=problem["algorithm"],
            ranks_per_host=problem["ranks_per_host"],
            staging_bytes=1,
        )
        handle = group.handle()
        group.prepare(handle, np.array(ids[me], dtype=problem["id_type"]).reshape(tokens[me], top_k))
        recv, recv_w = np.full((handle.recv_rows, hidden), 99, dtype), np.full(handle.recv_rows, 99, dtype)
        group.dispatch(handle, x[me], recv, weights=w[me], recv_weights=recv_w)
        result, grad_x, grad_w = np.empty_like(x[me]), np.empty_like(x[me]), np.empty_like(w[me])
        group.combine(handle, y[me], result)
        group.dispatch_backward(handle, y[me], grad_x, grad_recv_weights=gw[me], grad_weights=grad_w)
        grad_y = np.empty_like(recv)
        group.combine_backward(handle, x[me], grad_y)
        return handle.counts, recv, recv_w, result, grad_x, grad_w, grad_y

    sums = sums_of(slots, y, tokens, hidden)
    everything = on_threads(len(tokens), body)
    for me, (got_counts, recv, recv_w, result, grad_x, grad_w, grad_y) in enumerate(everything):
        assert got_counts == counts[me]
        rows = [np.zeros(hidden) if source is None else x[source[0]][source[1]] for source in slots[me]]
        np.testing.assert_array_equal(recv, np.array(rows).reshape(-1, hidden))
        np.testing.assert_array_equal(grad_y, recv)
        np.testing.assert_array_equal(
            recv_w, [0 if source is None else w[source[0]][source[1:]] for source in slots[me]]
        )
        np.testing.assert_array_equal(result, sums[me])
        np.testing.assert_array_equal(grad_x, sums[me])
        expected = np.zeros_like(w[me])
        for d, of_rank in enumerate(slots):
            for slot, source in enumerate(of_rank):
                if source is not None and source[0] == me:
                    expected[source[1:]] = gw[d][slot]
        np.testing.assert_array_equal(grad_w, expected)
    # <dispatch x, y> = <x, dispatch_backward y>, over all ranks.
    forward = sum((recv * y[me]).sum() for me, (_, recv, *_) in enumerate(everything))
    backward = sum((x[me] * grad_x).sum() for me, (*_, grad_x, _, _) in enumerate(everything))
    assert forward == backward


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(1, 12), st.sampled_from(["drop_by_weight", "drop_by_slot"]))
def test_overflow_drops_rows_by_the_documented_rule(problem, capacity, overflow):
    ids, alignment = problem["ids"], problem["alignment"]
    tokens = [len(of_rank) for of_rank in ids]
    random = np.random.default_rng(1)
    w = [random.integers(0, 4, (count, problem["top_k"])).astype(np.float32) for count in tokens]
    slots, _ = slots_of(ids, problem["experts"], problem["placement"], alignment)
    replicas = {}
    for d, own in enumerate(problem["placement"]):
        for i, e in enumerate(own):
            replicas.setdefault(e, []).append((d, i))

    def place(source):
        s, t, k = source
        at = replicas[ids[s][t][k]]
        return at[(s + t) % len(at)]

    dropped = []
    for of_rank in slots:
        if len(of_rank) <= capacity:
            continue
        if overflow == "drop_by_slot":
            dropped += [source for source in of_rank[capacity:] if source is not None]
            continue
        kept = [source for source in of_rank if source is not None]

        def padded(rows):
            return sum(-(-sum(place(s) == p for s in rows) // alignment) * alignment for p in {*map(place, rows)})

        gone = []
        for source in sorted(kept, key=lambda s: (w[s[0]][s[1:]], [-i for i in s])):
            if padded(kept) <= capacity:
                break
            kept.remove(source)
            gone.append(source)
        for source in reversed(gone):
            rows = padded(kept)
            if padded([*kept, source]) == rows and rows:
                kept.append(source)
            else:
                dropped.append(source)

    def body(comm):
        me = comm.rank
        group = ExpertGroup(
            comm,
            experts=problem["experts"],
            top_k=problem["top_k"],
            hidden=1,
            max_tokens_per_rank=max(1, *tokens),
            max_recv_rows=capacity,
            alignment=alignment,
            overflow=overflow,
            placement=problem["placement"],
        )
        handle = group.handle()
        group.prepare(handle, np.array(ids[me], np.int64).reshape(tokens[me], problem["top_k"]), w[me])
        return handle.dropped, handle.recv_rows

    for got, rows in on_threads(len(tokens), body):
        assert got == sorted(dropped)
        assert rows <= capacity


def test_windows_are_exchanged_in_place():
    def body(comm):
        group = ExpertGroup(comm, experts=2, top_k=1, hidden=64, max_tokens_per_rank=4)
        window = comm.window(1 << 16)
        group.add_window(window)
        handle = group.handle()
        group.prepare(handle, np.array([[1 - comm.rank]] * 3, np.int32))
        tokens, recv = window.empty((3, 64), "uint16"), window.empty((3, 64), "uint16")
        np.asarray(tokens)[:] = 0x3F80 + comm.rank  # bfloat16 numbers of 1 and a little more
        group.dispatch(handle, tokens, recv, dtype="bfloat16")
        received = np.asarray(recv).copy()
        result = np.empty((3, 64), np.uint16)
        group.combine(handle, recv, result, dtype="bfloat16")
        return received, result

    for rank, (received, result) in enumerate(on_threads(2, body)):
        np.testing.assert_array_equal(received, np.full((3, 64), 0x3F80 + 1 - rank))
        np.testing.assert_array_equal(result, np.full((3, 64), 0x3F80 + rank))


def die_in_dispatch(comm, doomed):
    """Rank `doomed` is killed by one of its threads while it is in a dispatch. Returns what the other ranks observe,
    and how they continue with other experts on each rank."""
    import threading

    from accord.moe import ExpertGroup

    config = {"experts": 12, "top_k": 2, "hidden": 4096, "max_tokens_per_rank": 256, "dtype": "float32"}
    group = ExpertGroup(comm, **config)
    handle = group.handle()
    tokens, ids = np.ones((256, 4096), np.float32), np.arange(512).reshape(256, 2) % 12
    group.prepare(handle, ids)
    recv = np.empty((handle.recv_rows, 4096), np.float32)
    inside = threading.Event()

    def kill():
        inside.wait()
        os.kill(os.getpid(), 9)

    if comm.rank == doomed:
        threading.Thread(target=kill).start()
    try:
        for step in range(1000000):
            if step == 20 and comm.rank == doomed:
                inside.set()
            began = time.monotonic()
            group.dispatch(handle, tokens, recv)
    except accord.PeerLost as error:
        lost = (error.ranks, time.monotonic() - began)
    smaller = comm.shrink("survivors")
    placement = [[e for e in range(12) if e % smaller.size == r] for r in range(smaller.size)]
    again = ExpertGroup(smaller, **config, placement=placement)
    handle = again.handle()
    again.prepare(handle, ids)
    recv = np.empty((handle.recv_rows, 4096), np.float32)
    again.dispatch(handle, tokens, recv)
    result = np.empty_like(tokens)
    again.combine(handle, recv, result)
    return lost, handle.counts, float(result.min()), float(result.max())


@pytest.mark.alone
def test_a_killed_rank_ends_the_step_and_the_survivors_continue(fresh_ranks):
    outcomes = fresh_ranks(4).outcomes(die_in_dispatch, 2)
    assert outcomes[2].exit_code == -signal.SIGKILL
    for new, rank in enumerate((0, 1, 3)):
        (ranks, seconds), counts, least, most = outcomes[rank].value
        assert ranks == (2,)
        assert seconds < 1.5  # a second, plus a margin for a busy machine
        assert counts == [3 * (43 if e < 512 % 12 else 42) for e in range(new, 12, 3)]
        assert least == most == 2  # both choices of a row of ones


def test_groups_accept_balanced_placements():
    placement = balance_experts([90, 10, 10, 10, 10, 20], 2, 4)
    assert [len(own) for own in placement] == [4, 4]
    assert sorted({e for own in placement for e in own}) == list(range(6))
    with pytest.raises(accord.InvalidArgument, match="2 places, expected 6 to"):
        balance_experts([1] * 6, 2, 1)

    def body(comm):
        group = ExpertGroup(comm, experts=6, top_k=1, hidden=1, max_tokens_per_rank=1, placement=placement)
        return group.local_experts

    assert on_threads(2, body) == placement


PAGE = (ROOT / "docs/expert-parallelism.md").read_text()


@pytest.mark.parametrize("size", mostly_slow([1, 2, 4], 2))
def test_the_whole_guide_runs(tmp_path, size):
    program = tmp_path / "guide.py"
    program.write_text("".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)))
    result = accord_command("run", "-n", str(size), str(program), cwd=tmp_path, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(f"{20 * size - 6 * size} choices were dropped") == size


def test_the_c_example_sums_the_outputs_of_the_experts():
    result = accord_command("run", "-n", "2", str(BUILD / "examples/experts_c"))
    assert result.returncode == 0, result.stdout + result.stderr
    lines = re.findall(r"rank (\d) token (\d) of experts (\d) and (\d): ([\d.]+)", result.stdout)
    assert len(lines) == 6
    for rank, token, first, second, value in lines:
        assert (int(first), int(second)) == tuple((3 * int(rank) + int(token) + 5 * k) % 8 for k in range(2))
        expected = (int(token) + 1) * (0.75 * (int(first) + 1) + 0.25 * (int(second) + 1))
        assert float(value) == expected
