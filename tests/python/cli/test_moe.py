"""`accord moe`: the load of a job's experts, and a placement that balances it."""

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from accord_command import accord
from thread_ranks import on_threads

import accord as accord_module
from accord.moe import ExpertGroup

IDS = [[[0, 1], [0, 2], [0, -1]], [[0, 5], [9, 0]], [[3, 3]]]  # indexed by rank, token and choice


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Report files of three ranks after two maps."""
    folder = tmp_path_factory.mktemp("reports")

    def body(comm):
        group = ExpertGroup(comm, experts=6, top_k=2, hidden=4, max_tokens_per_rank=4, alignment=4, dtype="float32")
        handle = group.handle()
        ids = np.array(IDS[comm.rank])
        for _ in range(2):
            group.prepare(handle, ids)
        rows = np.empty((handle.recv_rows, 4), np.float32)
        group.dispatch(handle, np.zeros((len(ids), 4), np.float32), rows)
        path = folder / f"{comm.rank}.json"
        path.write_text(json.dumps(group.report()))
        return path

    return on_threads(3, body)


def test_the_matrices_match_the_ids(reports):
    result = accord("moe", "report", *reports, "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    traffic, loads = np.zeros((3, 3), int), np.zeros(6, int)
    for rank, tokens in enumerate(IDS):
        for token in tokens:
            for expert in {e for e in token if 0 <= e < 6}:
                traffic[rank, expert // 2] += 2
                loads[expert] += 2
    assert report["traffic"] == traffic.tolist()
    assert report["loads"] == loads.tolist()
    assert report["maps"] == 2
    assert report["recv_rows"] == [2 * 12, 2 * 8, 2 * 4]  # rounded up to multiples of four
    assert report["most_rows"] == [12, 8, 4]
    assert report["out_of_range"] == [0, 2, 0]
    assert report["duplicates"] == [0, 0, 2]
    assert report["imbalance_of_experts"] == pytest.approx(loads.max() / loads.mean())
    assert [waits[rank] for rank, waits in enumerate(report["wait_seconds"])] == [0, 0, 0]
    one = json.loads(accord("moe", "report", reports[1], "--json").stdout)
    assert one["traffic"] == report["traffic"]
    assert [waits is None for waits in one["wait_seconds"]] == [True, False, True]


def test_text_and_chart_show_the_same_values(reports, tmp_path):
    chart = tmp_path / "chart.svg"
    result = accord("moe", "report", *reports, "--chart", chart)
    assert result.returncode == 0, result.stderr
    assert 'group "world.experts": 3 ranks, 6 experts, top 2, 2 maps' in result.stdout
    assert re.search(r"^ +0 +8 +2 +0$", result.stdout, re.MULTILINE)
    assert "ids out of range: 2 in total, most of them (2) by rank 1" in result.stdout
    assert "choices by expert: most 0 (10), " in result.stdout
    titles = [title.text for title in ElementTree.parse(chart).iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 9 + 6 + 9
    assert "rank 0 to rank 1: 2 rows" in titles
    assert "expert 0 on rank 0: 10 choices" in titles


def test_balance_prints_a_placement_that_a_group_accepts(reports):
    result = accord("moe", "balance", reports[0], "--per-rank", 3)
    assert result.returncode == 0, result.stderr
    placement = json.loads(result.stdout)
    assert placement == accord_module.moe.balance_experts([10, 2, 2, 2, 0, 2], 3, 3)
    busiest = re.fullmatch(
        r"the busiest of 3 ranks had (\S+) times the mean; with 3 ranks it would have (\S+) times the mean\n",
        result.stderr,
    )
    assert float(busiest[1]) == pytest.approx(12 * 3 / 18)
    assert float(busiest[2]) < 1.2


def test_invalid_arguments_are_rejected(reports, tmp_path):
    def refused(*arguments, code=1):
        result = accord("moe", *arguments)
        assert result.returncode == code, result.stdout + result.stderr
        return result.stderr

    assert "No such file" in refused("report", tmp_path / "none.json")
    other = tmp_path / "other.json"
    other.write_text("{")
    assert "other.json: expert report:" in refused("report", other)
    report = json.loads(reports[0].read_text())
    for change, text in [
        ({"format": "x"}, "format: this is not a report of an expert group"),
        ({"version": 2}, "version 2 is not supported, expected 1"),
        ({"loads": [1]}, "loads: has 1 items, expected 6"),
        ({"traffic": [-1] * 9}, "traffic[0]: expected a non-negative integer"),
        ({"placement": [[0], [99], []]}, "placement[1][0]: 99 is out of bounds: 0 to 5"),
        ({"placement": [[0, 1], [2, 3], [5]]}, "placement: no rank has expert 4"),
        ({"size": 10**9}, "size: 1000000000 is out of bounds"),
    ]:
        other.write_text(json.dumps(report | change))
        assert text in refused("report", other)
    other.write_text(json.dumps(report | {"prepares": 7}))
    assert "give reports of one group's ranks that were written at the same time" in refused(
        "report", *reports, other, code=2
    )
    assert "is of rank 0, but another file is of the same rank" in refused("report", reports[0], reports[0], code=2)
    assert "2 places, expected 6 to" in refused("balance", reports[0], "--ranks", 1, "--per-rank", 2, code=2)
    assert "REPORTS is required" in refused("report", code=2)
