"""accord.plan: programs that are written, proved and registered, and then serve ordinary calls of rank processes."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from accord_command import BUILD, ROOT, accord, clean_environment, plan_answer
from execution_plans import execution_plan
from ranks import Ranks

from accord import Communicator, Corrupt, InvalidArgument, MemoryStore, Unsupported
from accord import plan as plans


def swap(name: str = "swap", rank_order: bool = True) -> plans.Program:
    """An all_reduce of two ranks in one step."""
    program = plans.Program("all_reduce", ranks=2, name=name)
    for mine, peer in ((program.rank(0), program.rank(1)), (program.rank(1), program.rank(0))):
        mine.copy(mine.input[0], mine.scratch[0]).signal(peer).wait(peer)
        mine.reduce(sorted([mine.input[0], peer.scratch[0]], reverse=not rank_order), mine.output[0])
    return program


def ring_all_gather(ranks: int) -> plans.Program:
    program = plans.Program("all_gather", ranks=ranks, name="my_ring")
    for index in range(ranks):
        mine, previous = program.rank(index), program.rank((index - 1) % ranks)
        mine.copy(mine.input[0], [mine.output[index], mine.scratch[index]]).signal((index + 1) % ranks)
        for step in range(1, ranks):
            part = (index - step) % ranks
            continues = step < ranks - 1
            mine.wait(previous, step - 1)
            mine.copy(previous.scratch[part], [mine.output[part]] + [mine.scratch[part]] * continues)
            if continues:
                mine.signal((index + 1) % ranks, step)
    return program


def test_a_program_is_proved_correct():
    swap().verify()
    for ranks in (2, 3, 5):
        ring_all_gather(ranks).verify()


def test_more_signals_than_fit_in_a_pair_are_rejected_before_a_call():
    program = plans.Program("all_reduce", ranks=2, name="many_signals")
    for mine, peer in ((program.rank(0), program.rank(1)), (program.rank(1), program.rank(0))):
        mine.copy(mine.input[0], mine.scratch[0]).signal(peer, 16).wait(peer, 16)
        mine.reduce(sorted([mine.input[0], peer.scratch[0]]), mine.output[0])
    for refuse in (program.verify, program.register):
        with pytest.raises(Corrupt, match="17 signals; a pair of 2 ranks has 0-16"):
            refuse()


@pytest.mark.parametrize("ranks", [0, -1, 1048577, 10**9])
def test_an_unsupported_number_of_ranks_is_rejected_immediately(ranks):
    with pytest.raises(InvalidArgument, match=f"ranks: a plan has 1 to 1048576 ranks, not {ranks}"):
        plans.Program("all_reduce", ranks=ranks, name="none")


def test_every_kind_of_step_can_be_written():
    program = plans.Program("all_reduce", ranks=2, name="packets")
    for mine, peer in ((program.rank(0), program.rank(1)), (program.rank(1), program.rank(0))):
        mine.put_packets(mine.input[0], peer.packets[mine.index]).lane_barrier(0)
        sources = [mine.input[0], mine.packets[peer.index]]
        mine.reduce(sources if mine.index == 0 else sources[::-1], mine.output[0])
        mine.lane(1).lane_barrier(0)
    program.verify()
    assert json.loads(program.json())["chunks"] == {"input": 1, "output": 1, "scratch": 0, "packets": 2}


def test_partials_are_counted():
    program = plans.Program("all_reduce", ranks=2, name="partial")
    one = program.rank(0)
    one.reduce([one.input[0], one.input[0]], one.partials[2])
    assert json.loads(program.json())["chunks"]["partials"] == 3


def test_a_switch_plan_matches_the_built_in_one():
    program = plans.Program("all_reduce", ranks=2, name="nvls", chunks=2, order="switch", pacing="by_plan")
    for mine, peer in ((program.rank(0), program.rank(1)), (program.rank(1), program.rank(0))):
        for part in (0, 1):
            mine.copy(mine.input[part], mine.multicast[part])
        mine.signal(peer).wait(peer)
        its = program.every_rank[mine.index]
        mine.reduce([its], [its, mine.output[mine.index]]).signal(peer, 1).wait(peer, 1)
        mine.copy(mine.multicast[peer.index], mine.output[peer.index])
    program.verify()
    exported = accord("plan", "export", "all_reduce:nvls", "-n", "2").stdout
    assert json.loads(exported) == json.loads(program.json())


def test_switch_plans_are_shown_and_listed_but_not_run():
    rows = {row["name"]: row for row in plan_answer("list", "all_reduce", "-n", 4, "--bytes", "64k")}
    assert rows["nvls"]["order"] == "switch"
    assert rows["nvls"]["bytes_exchanged"] == 2 * (64 << 10) // 4
    assert "needs multicast, which only GPUs have" in rows["nvls"]["refused"]
    shown = accord("plan", "show", "all_reduce:nvls", "-n", 2)
    assert "rank 0 | cp i0>m0 | cp i1>m1 | sig 1#0 | wait 1#0 | add *.m0>*.m0,o0 | sig 1#1" in shown.stdout
    run = accord("plan", "run", "all_reduce:nvls", "-n", 2)
    assert run.returncode == 1
    assert 'accord plan run: plan "nvls" needs multicast, which only GPUs have' in run.stderr


def test_errors_name_the_step():
    with pytest.raises(
        InvalidArgument, match=r'plan "wrong" \(all_reduce, 2 ranks\), rank 0: no step writes output\[0\]'
    ):
        plans.Program("all_reduce", ranks=2, name="wrong").verify()
    deadlock = plans.Program("barrier", ranks=2, name="deadlock")
    deadlock.rank(0).wait(1).signal(1)
    deadlock.rank(1).wait(0).signal(0)
    with pytest.raises(
        InvalidArgument, match=r"rank 0, lane 0, step 0 \(wait for signal 0 of rank 1\): waits for ever"
    ):
        deadlock.verify()
    with pytest.raises(InvalidArgument, match="adds up in the wrong order"):
        swap(rank_order=False).verify()
    with pytest.raises(InvalidArgument, match='did you mean "all_reduce"'):
        plans.Program("all_redce", ranks=2, name="x")
    with pytest.raises(IndexError, match="there is no rank 2"):
        swap().rank(2)
    with pytest.raises(TypeError, match="is not a chunk"):
        swap().rank(0).copy(0, [1])


def test_the_command_reads_a_saved_program(tmp_path):
    path = tmp_path / "ring.json"
    ring_all_gather(4).save(path)
    assert accord("plan", "verify", path).stdout == 'plan "my_ring" (all_gather, 4 ranks): ok\n'
    again = json.loads(accord("plan", "export", path).stdout)
    assert again == json.loads(path.read_text())
    built_in = json.loads(accord("plan", "show", "all_gather:ring", "-n", 4, "--json").stdout)
    shown = json.loads(accord("plan", "show", path, "--json").stdout)
    assert (shown["hops"], shown["bytes_exchanged"]) == (built_in["hops"], built_in["bytes_exchanged"]) == (3, 3 << 16)


def test_files_texts_and_programs_are_registered_equally(tmp_path):
    path = tmp_path / "plan.json"
    swap("alike").save(path)
    plans.register(path)
    plans.register(path.read_text())
    swap("alike").register()
    with pytest.raises(
        InvalidArgument, match='another plan for 2 ranks and root 0 is registered under the name "alike"'
    ):
        other = swap("alike")
        other.rank(0).signal(1, 1)
        other.rank(1).wait(0, 1)
        other.register()
    with pytest.raises(InvalidArgument, match='all_reduce has a built-in algorithm "two_shot"'):
        plans.register(path, name="two_shot")
    with pytest.raises(Corrupt, match="this is not a plan"):
        plans.register("{}")
    with pytest.raises(InvalidArgument, match='unknown all_reduce algorithm "alik"; did you mean "alike"'):
        Communicator.create(MemoryStore(), 0, 1, select="all_reduce:0-inf=alik")


def test_mscclpp_plans_are_imported():
    with pytest.raises(Corrupt, match='MSCCL.. plan: lacks "name"'):
        plans.import_mscclpp("{}")
    with pytest.raises(Unsupported, match='collective: "custom" is a collective that no call'):
        plans.import_mscclpp('{"name": "x", "collective": "custom"}')


@pytest.fixture(scope="module")
def two_ranks():
    ranks = Ranks(2)
    yield ranks
    ranks.end()


def serve(comm, text):
    from accord import plan

    before = np.full(100, comm.rank + 1, dtype=np.float32)
    comm.all_reduce(before)
    plan.register(text, name="served", bytes="0-4k")
    comm.barrier()
    after = np.full(100, comm.rank + 1, dtype=np.float32)
    comm.all_reduce(after)
    return before.tolist() == after.tolist() == [3.0] * 100


def test_a_plan_registered_after_init_serves_the_calls_of_processes(two_ranks):
    assert two_ranks.run(serve, swap("served").json()) == [True, True]


def differ(comm, text):
    from accord import Mismatch, plan

    plan.register(text, name="differing", bytes="0-4k")
    try:
        comm.all_reduce(np.ones(100, dtype=np.float32))
    except Mismatch as error:
        return str(error)
    return None


def test_different_registered_plans_are_reported_immediately():
    other = swap("differing")
    other.pacing = "by_plan"
    ranks = Ranks(2)
    try:
        messages = ranks.run(differ, per_rank=[(swap("differing").json(),), (other.json(),)], deadline=20)
    finally:
        ranks.end()
    assert all(
        "chose another algorithm" in message and "registered plans must be equal" in message for message in messages
    )


def only_one(comm, text):
    from accord import Mismatch, plan

    if comm.rank == 1:
        plan.register(text, name="lonely", bytes="0-4k")
    try:
        comm.all_reduce(np.ones(100, dtype=np.float32))
    except Mismatch as error:
        return str(error)
    return None


def test_a_plan_registered_by_one_rank_only_is_a_mismatch_and_not_a_hang():
    ranks = Ranks(2)
    try:
        messages = ranks.run(only_one, swap("lonely").json(), deadline=20)
    finally:
        ranks.end()
    assert all("chose another algorithm" in message for message in messages)


PAGE = (ROOT / "docs/plans.md").read_text()


def test_the_whole_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for snippet in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(snippet, "docs/plans.md", "exec"), names)
    Path("foreign.json").write_text(json.dumps(execution_plan()))
    commands = re.findall(r"^    accord (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 7
    for command in commands:
        result = accord(*command.split(), cwd=tmp_path)
        assert result.returncode == 0, f"{command}: {result.stderr}"
    assert "swap" in accord("plan", "verify", "swap.json", cwd=tmp_path).stdout


def test_the_guide_shows_the_examples():
    shown = re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert {name for name, _ in shown} == {"examples/own_plan.py", "examples/own_plan.cpp"}
    for name, text in shown:
        assert text == (ROOT / name).read_text(), f"docs/plans.md shows another {name}"


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_example_gathers_with_its_own_plan(ranks):
    result = accord(
        "run",
        "-n",
        ranks,
        ROOT / "examples/own_plan.py",
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", "")),
    )
    assert result.returncode == 0, result.stderr
    all_ranks = " ".join(f"{rank}." for rank in range(ranks))
    assert sorted(re.findall(rf"rank (\d) of {ranks}: \[{re.escape(all_ranks)}\]", result.stdout)) == [
        str(rank) for rank in range(ranks)
    ]


def test_the_cpp_example_adds_with_a_plan_from_a_file(tmp_path):
    program = BUILD / "examples/own_plan"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    path = tmp_path / "plan.json"
    swap().save(path)
    result = accord("run", "-n", 2, program, path)
    assert result.returncode == 0, result.stderr
    assert sorted(re.findall(r"rank (\d) of 2: 3$", result.stdout, re.MULTILINE)) == ["0", "1"]
    wrong = plans.Program("all_reduce", ranks=2, name="wrong")
    wrong.save(path)
    refused = accord("run", "-n", 2, program, path)
    assert refused.returncode != 0
    assert "no step writes output[0] of rank 0" in refused.stderr
