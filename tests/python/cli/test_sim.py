"""`accord sim run`: collectives in virtual time."""

import json
import re
import tomllib
import xml.etree.ElementTree
from collections import defaultdict
from itertools import pairwise

import pytest
from accord_command import ROOT, accord, clean_environment

CLUSTER = ROOT / "examples/sim/cluster.toml"


def simulated(*arguments, machine=CLUSTER) -> dict:
    result = accord("sim", "run", *arguments, "--machine", machine, "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer.pop("simulated_in_seconds") > 0  # which differs from run to run
    return answer


def error_of(*arguments, code: int = 2) -> str:
    result = accord("sim", "run", *arguments)
    assert result.returncode == code, result.stderr
    return result.stderr.splitlines()[0]


def test_the_page_shows_the_example():
    (text,) = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs/simulation.md").read_text(), re.DOTALL | re.MULTILINE)
    assert tomllib.loads(text) == tomllib.loads(CLUSTER.read_text())


def test_an_all_reduce_moves_the_published_bytes_between_hosts():
    answer = simulated("all_reduce", "1M", "-n", 32)
    assert (answer["algorithm"], answer["ranks"], answer["hosts"]) == ("hierarchical", 32, 4)
    out = {one["link"]: one["bytes"] for one in answer["links"] if one["link"].endswith("out")}
    assert sum(out.values()) == 4 * (2 * 3 / 4 * (1 << 20))  # each host 2 (h - 1) / h of the message
    least = max(out.values()) / tomllib.loads(CLUSTER.read_text())["network"]["nic_bytes_per_second"]
    assert least < answer["seconds"] < 20 * least
    assert len(answer["by_rank"]) == 32
    assert answer["seconds"] == max(rank["end"] for rank in answer["by_rank"])
    for rank in answer["by_rank"]:
        assert rank["working"] + rank["waiting"] <= rank["end"] * (1 + 1e-9)
    assert answer == simulated("all_reduce", "1M", "-n", 32)  # each run is the same


def test_calls_that_follow_each_other_overlap():
    one = simulated("broadcast", "64k", "-n", 8)
    many = simulated("broadcast", "64k", "-n", 8, "--calls", 50)
    assert (one["calls"], many["calls"]) == (1, 50)
    assert many["seconds"] < 0.9 * one["seconds"]  # the root is ahead of the others
    assert max(rank["end"] for rank in many["by_rank"]) == pytest.approx(50 * many["seconds"])
    text = accord("sim", "run", "broadcast", "64k", "-n", 8, "--calls", 50, "--machine", CLUSTER).stdout
    assert text.splitlines()[0].endswith("(mean of 50 calls)")


def test_a_slower_network_takes_longer(tmp_path):
    slow = tmp_path / "slow.toml"
    slow.write_text(CLUSTER.read_text().replace("nic_bytes_per_second = 12.5e9", "nic_bytes_per_second = 0.125e9"))
    fast_time, slow_time = (simulated("all_reduce", "64M", "-n", 16, machine=one)["seconds"] for one in (CLUSTER, slow))
    assert slow_time > 10 * fast_time


def test_ranks_of_other_leaves_are_not_simulated_again():
    folded = simulated("all_reduce", "1M", "-n", 256)
    whole = simulated("all_reduce", "1M", "-n", 256, "--no-fold")
    assert (folded["simulated_ranks"], whole["simulated_ranks"]) == (128, 256)  # a leaf has 16 hosts of 8 ranks
    assert folded["seconds"] == pytest.approx(whole["seconds"], rel=1e-9)
    assert {one["link"] for one in folded["links"]} == {one["link"] for one in whole["links"]}
    assert [one["end"] for one in folded["by_rank"]] == pytest.approx([one["end"] for one in whole["by_rank"]])


def test_queues_for_links_move_the_same_bytes():
    fair, queues = (simulated("all_gather", "64k", "-n", 32, "--links", links) for links in ("fair", "queues"))
    assert {one["link"]: one["bytes"] for one in fair["links"]} == {
        one["link"]: one["bytes"] for one in queues["links"]
    }
    assert queues["seconds"] == pytest.approx(fair["seconds"], rel=0.5)


def test_the_critical_path_takes_the_whole_time():
    answer = simulated("all_reduce", "1M", "-n", 32, "--path", "--calls", 2)
    path = answer["critical_path"]
    assert sum(path["seconds"].values()) == pytest.approx(2 * answer["seconds"])
    assert path["seconds"]["calls"] == pytest.approx(2 * 0.5e-6)
    end = 0.0
    for step in path["steps"]:
        assert step["begin"] == pytest.approx(end + step["waited"])
        end = step["end"]
    assert end == pytest.approx(2 * answer["seconds"])
    assert {step["waited_for"] for step in path["steps"]} >= {"order", "message"}
    assert "critical_path" not in simulated("all_reduce", "1M", "-n", 32)


def test_the_path_is_printed_with_the_part_of_each_kind():
    result = accord("sim", "run", "all_reduce", "1M", "-n", 32, "--machine", CLUSTER, "--path")
    assert result.returncode == 0, result.stderr
    found = re.search(r"^  critical path: (\d+) operations on (\d+) ranks$", result.stdout, re.MULTILINE)
    assert found
    assert int(found[1]) >= int(found[2]) > 1
    parts = [int(one) for one in re.findall(r"^    .* (\d+) %$", result.stdout, re.MULTILINE)]
    assert sum(parts) == pytest.approx(100, abs=len(parts))


def test_a_trace_has_the_operations_of_each_lane_and_the_rates_of_links(tmp_path):
    trace = tmp_path / "trace.json"
    answer = simulated("all_reduce", "256k", "-n", 16, "--trace", trace)
    events = json.loads(trace.read_text())["traceEvents"]
    slices = defaultdict(list)
    for one in events:
        if one["ph"] == "X":
            slices[one["pid"], one["tid"]].append((one["ts"], one["ts"] + one["dur"], one["cat"]))
    assert {process for process, _ in slices} == {rank + 1 for rank in range(answer["simulated_ranks"])}
    assert sum(one[2] == "operation" for track in slices.values() for one in track) == answer["operations"]
    for track in slices.values():
        for (_, end, _), (begin, _, _) in pairwise(track):
            assert begin >= end - 0.002  # microseconds; times are cut to nanoseconds
    last = max(end for track in slices.values() for _, end, _ in track)
    assert last == pytest.approx(1e6 * answer["seconds"], abs=0.002)
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names[1] == "rank 0"
    capacity = tomllib.loads(CLUSTER.read_text())["network"]["nic_bytes_per_second"] / 1e9
    rates = [one["args"]["value"] for one in events if one["ph"] == "C" and "NIC" in one["name"]]
    assert max(rates) == pytest.approx(capacity, rel=0.01)
    assert min(rates) == pytest.approx(0, abs=1e-6)


def test_a_timeline_shows_ranks_links_and_the_critical_path(tmp_path):
    chart = tmp_path / "timeline.svg"
    answer = simulated("all_reduce", "1M", "-n", 16, "--timeline", chart)
    root = xml.etree.ElementTree.fromstring(chart.read_text())
    name = "{http://www.w3.org/2000/svg}"
    texts = [one.text for one in root.iter(f"{name}text")]
    assert [one for one in texts if one.startswith("rank ")] == [f"rank {rank}" for rank in range(16)]
    assert sum(", NIC " in one for one in texts) == len(answer["links"])
    assert texts[0].startswith("all_reduce of 1 MiB by ")
    titles = [one.text for one in root.iter(f"{name}title")]
    assert any(re.fullmatch(r"rank 3, \S+( \w+)? to .*: copies and reductions", one) for one in titles)
    (path,) = root.iter(f"{name}polyline")
    x = [float(point.split(",")[0]) for point in path.get("points").split()]
    assert x == sorted(x)
    assert x[-1] - 190 == pytest.approx(1000, abs=1)  # the columns begin at 190


def test_a_trace_that_no_viewer_shows_is_refused(tmp_path):
    trace = tmp_path / "trace.json"
    error = error_of("barrier", "-n", 32, "--machine", CLUSTER, "--calls", 10000, "--trace", trace, code=1)
    assert re.fullmatch(
        r"accord sim run: unsupported: \d+ operations were simulated, .* simulate fewer ranks or bytes", error
    )
    assert not trace.exists()
    error = error_of("barrier", "--machine", CLUSTER, "--timeline", tmp_path / "none/chart.svg", code=1)
    assert "none/chart.svg" in error


def test_a_call_is_exported_and_replayed(tmp_path):
    goal = tmp_path / "call.goal"
    call = simulated("all_reduce", "256k", "-n", 16, "--goal", goal)
    assert goal.read_text().startswith("num_ranks 16\n\nrank 0 {\n")
    result = accord("sim", "replay", goal, "--machine", CLUSTER, "--json", "--path")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["seconds"] == pytest.approx(call["seconds"], rel=0.2)
    assert {one["link"]: one["bytes"] for one in answer["links"]} == {
        one["link"]: one["bytes"] for one in call["links"]
    }
    assert sum(answer["critical_path"]["seconds"].values()) == pytest.approx(answer["seconds"])
    lines = accord("sim", "replay", goal, "--machine", CLUSTER).stdout.splitlines()
    assert re.fullmatch(r".*call\.goal: \d+ tasks of 16 ranks on 2 hosts: .*s", lines[0])
    assert re.fullmatch(r"  simulated \d+ operations of 16 ranks in .*s", lines[-1])


def test_a_file_that_cannot_be_replayed_is_an_error_with_its_name(tmp_path):
    goal = tmp_path / "broken.goal"
    for text, expected, code in (
        ("num_ranks 8\nrank 0 {\nsend 5 to 1\n}", 'line 3: "to" instead of "b"', 2),
        ("num_ranks 8\nrank 0 {\nrecv 5b from -1\n}", "line 3: receives from any rank are not supported", 1),
        ("num_ranks 8\nrank 0 {\na: calc 1\na requires a\n}", "rank 0 waits forever in task 0", 2),
        ("num_ranks 12\n", "", 2),  # hosts of 8 ranks
    ):
        goal.write_text(text)
        result = accord("sim", "replay", goal, "--machine", CLUSTER)
        assert result.returncode == code, result.stderr
        assert expected in result.stderr
        assert not expected or "broken.goal" in result.stderr
    result = accord("sim", "replay", tmp_path / "none.goal", "--machine", CLUSTER)
    assert result.returncode == 1
    assert "none.goal" in result.stderr


def trained(*arguments, model="llama"):
    files = ("--model", ROOT / f"examples/sim/{model}.toml", "--machine", ROOT / "examples/sim/gpus.toml")
    return accord("sim", "train", *arguments, *files, "--links", "queues")


def test_a_training_step_computes_and_communicates_over_a_mesh():
    result = trained("tp=8,pp=4", "--world", 64, "--json", "--path")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    # Llama 3.1 70B: 6 operations for each parameter but those of the embedding, and the attention's.
    weights = 80 * (8192 * (2 * 8192 + 2 * 1024) + 3 * 8192 * 28672) + 128256 * 8192
    tokens = 2 * 16 * 8192
    assert answer["flops"] == pytest.approx(tokens * 6 * (weights + 80 * 8192 * 8192))
    assert answer["tokens_per_second"] == pytest.approx(tokens / answer["seconds"])
    assert answer["part_of_flops"] == pytest.approx(answer["flops"] / (600e12 * 64 * answer["seconds"]))
    assert 0.3 < answer["part_of_flops"] < 1
    path = answer["critical_path"]
    assert sum(path["by_task"].values()) == pytest.approx(answer["seconds"])
    assert path["seconds"]["computation"] > answer["seconds"] / 2
    assert {"forward", "backward", "tp all_gather", "tp reduce_scatter", "dp all_gather"} <= set(path["by_task"])


def test_experts_exchange_tokens_in_a_training_step():
    result = trained("tp=4,pp=8,ep=8,etp=1", "--world", 64, "--path", model="mixture")
    assert result.returncode == 0, result.stderr
    assert re.match(
        r"a step of 64 ranks \(tp 4 x dp 2 x pp 8\): .*s, .* tokens/s, [\d.]+ % of the ranks' operations\n",
        result.stdout,
    )
    assert re.search(r"^    ep all_to_all .* %$", result.stdout, re.MULTILINE)


def test_a_training_step_that_has_no_meaning_is_an_error(tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text("[model]\nlayers = 2\n")
    machine = ("--machine", ROOT / "examples/sim/gpus.toml")
    result = accord("sim", "train", "tp=2", "--world", 8, "--model", broken, *machine)
    assert result.returncode == 2
    assert result.stderr.startswith(f"accord sim train: {broken}: ")
    for arguments, expected in (
        (("tp=8,pp=3", "--world", 48), "80 layers do not divide into 3 stages"),
        (("tp=3", "--world", 24), "64 heads do not divide into 3 tensor-parallel ranks"),
        (("tp=5", "--world", 8), "tp"),
        (("tp=2,gtp=2", "--world", 8), "gtp and egtp are not simulated"),
        (("tp=2", "--world", 12), "do not fill whole hosts"),
    ):
        result = trained(*arguments)
        assert result.returncode in (1, 2), result.stderr
        assert expected in result.stderr
    result = trained("tp=4,pp=2", "--world", 32, model="mixture")
    assert result.returncode == 1
    assert "set etp=1" in result.stderr
    result = accord(
        "sim", "train", "tp=8", "--world", 8, "--model", ROOT / "examples/sim/llama.toml", "--machine", CLUSTER
    )
    assert result.returncode == 2
    assert "flops_per_second" in result.stderr


def test_a_hundred_thousand_ranks_fit():
    answer = simulated("barrier", "-n", 131072, "--algorithm", "dissemination")
    assert answer["simulated_ranks"] == 128
    assert answer["seconds"] > 17 * 2e-6  # log2 of the ranks, each with the latency


def test_a_table_of_a_simulated_machine_is_used_by_ranks(tmp_path):
    table = tmp_path / "cluster.table"
    result = accord("tune", "all_reduce", "all_gather", "--sim", CLUSTER, "-n", 16, "--quick", "-o", table)
    assert result.returncode == 0, result.stderr
    assert "# processor: simulated\n" in table.read_text()
    rules = [line for line in table.read_text().splitlines() if line.startswith("all_")]
    assert rules, "nothing is better than the defaults"
    for rule in rules:
        found = re.fullmatch(
            r"(\w+)\[ranks=16-16,hosts=2-2,oversubscribed=no,registered=no\]:\S+=([\w@]+);"
            r"  # .*?(?: at ([\d.]+ \w+))?, by default .*: ([\d.]+) x",
            rule,
        )
        assert found, rule
        assert float(found[4]) >= 1.05
    environment = {**clean_environment(), "ACCORD_SELECT": f"@{table}"}
    assert accord("bench", "barrier", "-n", 2, "--seconds", "0.01", env=environment).returncode == 0


def test_all_candidates_of_a_simulated_machine_are_compared_at_large_sizes(tmp_path):
    table = tmp_path / "cluster.table"
    sizes = ("--min", "8", "--max", "512m", "--quick")
    result = accord("tune", "all_reduce", "--sim", CLUSTER, "-n", 16, *sizes, "-o", table, "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    largest = answer["collectives"]["all_reduce"][-1]
    assert largest["bytes"] == 8 << 24
    seconds = largest["seconds"]
    for name in (
        "two_shot",
        "hierarchical@64k",
    ):  # a whole simulation has tens of thousands of rounds of the small slots
        rule = f"all_reduce:0-inf={name}"
        whole = simulated("all_reduce", largest["bytes"], "-n", 16, "--select", rule, "--links", "queues")
        assert seconds[name] == pytest.approx(whole["seconds"], rel=0.01)


def test_a_table_of_ranks_that_may_read_each_others_memory_is_compared_with_zero_copy(tmp_path):
    machine, table = tmp_path / "host.toml", tmp_path / "host.table"
    rates = "bytes_per_second = 50e9\nexchanged_bytes_per_second = 40e9\npacket_bytes_per_second = 7e9\n"
    times = "call_seconds = 0.5e-6\nstep_seconds = 5e-9\nhop_seconds = 60e-9\n"
    slow_kernel = "read_bytes_per_second = 1e6\n"  # anything else is faster than the default
    machine.write_text(f"[host]\nranks = 2\n{times}{rates}{slow_kernel}")
    result = accord("tune", "all_gather", "--sim", machine, "-n", 2, "--quick", "-o", table)
    assert result.returncode == 0, result.stderr
    ratios = [float(one) for one in re.findall(r", by default .*: ([\d.]+) x", table.read_text())]
    assert max(ratios) > 100  # of zero_copy, which is the default from 64 KB to 4 MB


def test_the_text_names_the_algorithm_the_ranks_and_the_links():
    result = accord("sim", "run", "all_gather", "64k", "-n", 16, "--machine", CLUSTER)
    assert result.returncode == 0, result.stderr
    first, *lines = result.stdout.splitlines()
    assert re.fullmatch(r"all_gather of .+ by \w+, 16 ranks on 2 hosts \(fat_tree\): .+s, .+ GB/s", first)
    assert re.fullmatch(r"  working longest: rank \d+, .+s", lines[0])
    assert any(line.startswith("  host 0, NIC 0, out: ") for line in lines[2:])
    one = accord("sim", "run", "barrier", "-n", 8, "--machine", CLUSTER).stdout
    assert "8 ranks on one host" in one and "GB/s" not in one and "NIC" not in one


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("all_reduce", "-n", 12), "12 ranks do not fill whole hosts of 8 ranks"),
        (("all_reduces", "-n", 8), 'did you mean "all_reduce"?'),
        (("all_reduce", "-n", 8, "--algorithm", "two_shots"), 'did you mean "two_shot"?'),
        (("all_reduce", "-n", 16, "--algorithm", "ring"), "ring runs inside one host only"),
        (("all_reduce", "7", "-n", 8), "7 bytes are not a whole number of elements of float32"),
        (("all_reduce", "-n", 0), "--ranks: Value 0 not in range 1 to 1048576"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    assert text in error_of(*arguments, "--machine", CLUSTER)


def test_mistakes_in_the_file_are_named_with_it(tmp_path):
    path = tmp_path / "machine.toml"
    path.write_text(CLUSTER.read_text().replace("oversubscription", "oversubscribed"))
    assert f"{path}: network.oversubscribed (line 21): unknown key" in error_of("barrier", "-n", 8, "--machine", path)
    assert "no/such.toml" in error_of("barrier", "-n", 8, "--machine", "no/such.toml", code=1)
