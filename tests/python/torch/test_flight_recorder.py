"""accord's flight records after conversion, as torch's own analyser reads them."""
# ruff: noqa: F821 (names that ranks.py provides)

import subprocess
import sys

import pytest
from ranks import torch_is


def calls(group, folder, differ):
    import contextlib

    rank = dist.get_rank()
    x = torch.ones(4)
    dist.all_reduce(x)
    pair = dist.new_group([0, 2])
    if rank != 1:
        dist.all_gather([torch.empty(4), torch.empty(4)], x, group=pair)
        dist.send(x, 2) if rank == 0 else dist.recv(x, 0)
    dist.all_to_all_single(torch.empty(6), torch.ones(6))
    if differ:
        with contextlib.suppress(accord.Mismatch):
            dist.all_reduce(torch.ones(5 if rank == 1 else 4))
    else:
        dist.barrier()
    group.communicator.dump(folder)
    if rank != 1:
        pair.communicator.dump(folder)


def analyse(folder, *options):
    """Returns torch's analysis: the calls that it matched, and the records that it wrote."""
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    arguments = JobConfig().parse_args([str(folder), "--prefix", "rank_", *options])
    details, version = read_dir(arguments)
    return build_db(details, arguments, version)


@pytest.mark.skipif(torch_is("2.11"), reason="the analyser of torch 2.11 refuses all backends but nccl and xccl")
@pytest.mark.parametrize("differ", [False, True], ids=["agree", "differ"])
def test_the_analyser_of_torch_reads_the_dumps(torch_ranks, tmp_path, caplog, differ):
    torch_ranks(3).run(calls, str(tmp_path / "dumps"), differ)
    result = subprocess.run(
        [sys.executable, "-m", "accord.torch.flight_recorder", tmp_path / "dumps", tmp_path / "traces/rank_"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout.split() == [str(tmp_path / f"traces/rank_{rank}") for rank in range(3)]
    found = analyse(tmp_path / "traces")
    assert sorted((group.desc, group.size) for group in found.groups) == [("default_pg", 3), ("undefined", 2)]
    # torch names a message after the side that it reads first.
    names = {"gloo:send 0->2": "message", "gloo:recv 2<-0": "message"}
    matched = [names.get(c.collective_name, c.collective_name) for c in found.collectives if c.pass_check]
    expected = ["gloo:all_gather", "gloo:all_reduce", "gloo:all_to_all", "gloo:barrier", "message"]
    assert sorted(matched) == [name for name in expected if not (differ and name == "gloo:barrier")]
    wrong = [call for call in found.collectives if not call.pass_check]
    assert [call.collective_name for call in wrong] == (["gloo:all_reduce"] if differ else [])
    # As the guide describes it for a killed rank.
    (tmp_path / "traces/rank_2").unlink()
    with pytest.raises(AssertionError, match="Missing dump files from ranks"):
        analyse(tmp_path / "traces")
    analyse(tmp_path / "traces", "--allow-incomplete-ranks")
    assert "We cannot decide what's wrong" in caplog.text


def test_a_folder_without_dumps_and_damaged_dumps_are_rejected(tmp_path):
    def convert():
        return subprocess.run(
            [sys.executable, "-m", "accord.torch.flight_recorder", tmp_path, tmp_path / "rank_"],
            capture_output=True,
            text=True,
        )

    empty = convert()
    assert empty.returncode == 1 and "no dump of accord" in empty.stderr
    (tmp_path / "accord-0-rank0.json").write_text('{"format": "accord flight log", "version": 1')
    damaged = convert()
    assert damaged.returncode == 1 and "accord-0-rank0.json" in damaged.stderr and "Traceback" not in damaged.stderr
