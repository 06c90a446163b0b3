"""Engines of several ranks: bound in a separate call, over one group or two, damaged on one rank, interrupted."""

import os
import shutil
import signal
import time
from pathlib import Path

import accord_command
import numpy as np
import pytest

import accord

torch = pytest.importorskip("torch")

HIDDEN, INNER = 16, 64


class Model(torch.nn.Module):
    """Two blocks, each with its own group."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.factor = 2.0 + seed
        self.up, self.down = torch.nn.Linear(HIDDEN, INNER), torch.nn.Linear(INNER, HIDDEN)
        self.wide, self.narrow = torch.nn.Linear(HIDDEN, INNER), torch.nn.Linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(torch.nn.functional.gelu(self.up(x)))
        return self.narrow(torch.nn.functional.gelu(self.wide(x))) * self.factor


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> list[str]:
    """Two packages of the same layout, with different weights and a different factor in the graph."""
    sharding = {
        "up": accord.Column(unit=8, group="inner"),
        "down": accord.Row(unit=8, group="inner"),
        "wide": accord.Column(unit=16, group="outer"),
        "narrow": accord.Row(unit=16, group="outer"),
    }
    folder = tmp_path_factory.mktemp("groups")
    return [
        str(accord.export(Model(seed).eval(), (x(),), path=folder / f"{seed}.accord", sharding=sharding))
        for seed in (0, 1)
    ]


def x() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((3, HIDDEN), dtype=np.float32))


def load_then_bind(comm, path, given):
    inner, outer = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
    engine = accord.Engine.load(path, {"inner": (inner.rank, inner.size), "outer": (outer.rank, outer.size)})
    unbound = engine.state
    engine.bind({"outer": outer, "inner": inner})
    return unbound, engine.state, np.array(engine.run(given)[0]), engine.load_report.shard_bytes


def test_ranks_that_load_and_then_bind_two_groups_match_the_model(ranks, packages):
    with torch.no_grad():
        expected = Model(0)(x()).numpy()
    results = ranks(4).run(load_then_bind, packages[0], x().numpy())
    # In each group, half of the columns with their biases and half of the rows. A unit of 8 columns takes a panel of
    # 16.
    shard = 4 * (INNER // 2) * ((2 * HIDDEN + 1 + HIDDEN) + (HIDDEN + 1 + HIDDEN))
    for unbound, bound, y, shard_bytes in results:
        assert (unbound, bound, shard_bytes) == ("unbound", "bound", shard)
        np.testing.assert_allclose(y, expected, atol=1e-5)
        assert y.tobytes() == results[0][2].tobytes()


def bind_different_packages(comm, path):
    inner, outer = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
    engine = accord.Engine.load(path, {"inner": (inner.rank, inner.size), "outer": (outer.rank, outer.size)})
    try:
        engine.bind({"inner": inner, "outer": outer})
    except accord.Mismatch as error:
        return error.ranks, str(error), engine.state
    return (), "bound", engine.state


def test_a_package_that_differs_on_one_rank_is_rejected_by_the_ranks_of_both_groups(ranks, packages):
    paths = [(packages[0],), (packages[0],), (packages[0],), (packages[1],)]
    results = ranks(4).run(bind_different_packages, per_rank=paths)
    # Ranks 2 and 3 share the first group, in which world rank 3 is rank 1. They notify ranks 0 and 1 through the
    # other group.
    for at_fault, message, state in results:
        assert (at_fault, state) == ((1,), "unbound")
        assert 'group "inner": rank 1 loaded a different package' in message
    assert all('rank 1 of group "outer" could not get ready' in message for _, message, _ in results[:2])


def bind_one_group(comm, path):
    engine = accord.Engine.load(path, {"inner": (comm.rank, comm.size)})
    try:
        engine.bind({"inner": comm})
    except accord.Mismatch as error:
        return error.ranks, str(error)
    return (), "bound"


def test_bind_names_the_ranks_whose_package_differs_from_the_majority(ranks, packages):
    for at_fault, message in ranks(3).run(bind_one_group, per_rank=[(packages[number],) for number in (0, 1, 0)]):
        assert at_fault == (1,)
        assert 'group "inner": rank 1 loaded a different package' in message


def load_over_both(comm, path):
    inner, outer = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
    try:
        accord.load(path, groups={"inner": inner, "outer": outer})
    except accord.Error as error:
        return error.code, str(error)
    return "loaded", ""


def load_late(comm, path, given, seconds):
    inner, outer = comm.split(0), comm.split(comm.rank)
    if comm.rank == 1:
        time.sleep(seconds)
    began = time.monotonic()
    with accord.load(path, {"inner": inner, "outer": outer}) as engine:
        return time.monotonic() - began, np.array(engine.run(given)[0])


def test_a_rank_that_is_still_loading_at_the_timeout_is_waited_for(ranks, packages):
    (waited, first), (_, second) = ranks(2).run(load_late, packages[0], x().numpy(), 5.0, timeout=4)
    assert waited > 4
    assert first.tobytes() == second.tobytes()


def die_while_others_wait(comm, path):
    if comm.rank == 1:
        os.kill(os.getpid(), 9)
    try:
        accord.load(path, {"inner": comm})
    except accord.PeerLost as error:
        return list(error.ranks)


def test_a_rank_that_dies_while_loading_is_named_by_the_waiting_ranks(fresh_ranks, packages):
    first, second = fresh_ranks(2).outcomes(die_while_others_wait, packages[0])
    assert (first.value, second.exit_code) == ([1], -9)


def test_if_one_rank_cannot_load_no_rank_of_either_group_does(ranks, packages):
    paths = [(packages[0],), (packages[0],), (packages[0],), (packages[0] + ".missing",)]
    for code, message in ranks(4).run(load_over_both, per_rank=paths):
        assert code == "not_found"
        assert "0.accord.missing" in message


def flip(file: Path, _other: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


def cut(file: Path, _other: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def swap(file: Path, other: Path) -> None:
    shutil.copy(other / file.name, file)


def load_from(comm, path):
    try:
        accord.load(path, groups={"inner": comm})
    except accord.Error as error:
        return error.code, error.ranks, str(error)
    return "loaded", (), ""


@pytest.mark.parametrize("damage", [flip, cut, swap])
@pytest.mark.parametrize("name", ["manifest.json", "graph.json", "weights-00001.safetensors"])
def test_damage_found_by_one_rank_is_named_on_all_ranks(ranks, packages, tmp_path, name, damage):
    seen_by_rank_1 = tmp_path / "damaged.accord"
    shutil.copytree(packages[0], seen_by_rank_1)
    damage(seen_by_rank_1 / name, Path(packages[1]))
    errors = ranks(2).run(load_from, per_rank=[(packages[0],), (str(seen_by_rank_1),)])
    for code, _, message in errors:
        assert code == "corrupt"
        assert name in message
        assert damage is cut or name != "weights-00001.safetensors" or 'tensor "' in message
    assert errors[0][1] == (1,) and 'rank 1 of group "inner"' in errors[0][2]
    listed = accord_command.accord("engine", "verify", seen_by_rank_1)
    assert listed.returncode == 1
    assert any(line.startswith(f"{name}: ") for line in listed.stdout.splitlines())


def interrupted_in_a_run(comm, path, given, folder):
    import pathlib
    import time

    begins, ended = pathlib.Path(folder, "begins"), pathlib.Path(folder, "ended")
    engine = accord.Engine.load(path, {"inner": (comm.rank, comm.size)})
    context = engine.create_context()
    engine.bind({"inner": comm})
    if comm.rank == 0:
        begins.touch()
        try:
            context.run(given)
        except KeyboardInterrupt:
            return comm.state
        finally:
            ended.touch()
    while not ended.exists():
        time.sleep(0.01)
    try:
        context.run(given)
    except accord.Aborted as error:
        return str(error)


def test_ctrl_c_ends_a_run_in_a_context_that_is_older_than_the_binding(fresh_ranks, packages, tmp_path):
    def sleeps(process: int) -> bool:
        return all(accord_command.process_state(process) == "S" for _ in range(5))

    def interrupt(processes) -> None:
        accord_command.wait_until((tmp_path / "begins").exists, "rank 0 begins its run")
        accord_command.wait_until(lambda: sleeps(processes[0].pid), "rank 0 waits for rank 1")
        processes[0].send_signal(signal.SIGINT)

    outcomes = fresh_ranks(2).outcomes(
        interrupted_in_a_run, packages[0], x().numpy(), str(tmp_path), timeout=20, while_running=interrupt
    )
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert outcomes[0].value == "failed"
    assert "rank 0 was interrupted from the keyboard" in outcomes[1].value
