"""`accord mesh show`: the groups of a job before it runs."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from accord_command import ROOT, accord

from accord.mesh import MeshPlan

SIZES = "tp=2,pp=2,cp=2,ep=2"


def shown(*arguments) -> dict:
    result = accord("mesh", "show", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_json_has_the_contents_of_the_plan():
    plan, answer = MeshPlan(SIZES, world_size=16), shown(SIZES, "--world", 16, "--rank", 5, "--all")
    assert answer["plan"] == plan.text
    assert answer["axes"] == plan.axes
    assert answer["expert_axes"] == plan.expert_axes
    assert [family["name"] for family in answer["families"]] == [family.name for family in plan.families]
    for family in answer["families"]:
        assert family["all_groups"] == plan.all_groups(family["name"])
    assert [(group["families"], group["ranks"]) for group in answer["groups"]] == [
        (names, ranks) for names, ranks, _ in plan.groups_of(5)
    ]
    assert answer["new_group_calls"] == sum(family.groups for family in plan.families) == 97
    assert answer["window_bytes"] > answer["exchanged_bytes"] > 0
    assert "all_groups" not in shown(SIZES, "--world", 16)["families"][0]


def test_text_lists_the_groups_of_a_rank_and_of_a_family():
    result = accord("mesh", "show", SIZES, "--world", 16, "--rank", 15, "--family", "pp")
    assert result.returncode == 0, result.stderr
    assert "dense layers  tp 2 x cp 2 x dp 2 x pp 2" in result.stdout
    assert "rank 15 is in 16 groups of 11 distinct sets of ranks, 11 of them with more than one rank:" in result.stdout
    assert re.search(r"^  cp, ep +2 ranks: 13, 15$", result.stdout, re.MULTILINE)
    assert re.search(r"^  tp_dp_cp +8 ranks: 8-15$", result.stdout, re.MULTILINE)
    assert result.stdout.split("\npp:\n")[1].split() == "0, 8 1, 9 2, 10 3, 11 4, 12 5, 13 6, 14 7, 15".split()


def test_the_chart_has_a_square_for_each_rank_in_the_color_of_its_group(tmp_path):
    path = tmp_path / "mesh.svg"
    arguments = (SIZES, "--world", 16, "--family", "tp_cp", "--chart", path, "--rank", 4)
    assert accord("mesh", "show", *arguments).returncode == 0
    squares = [
        (rect.get("fill"), rect.get("stroke"), rect[0].text)
        for rect in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}rect")
        if len(rect)
    ]
    assert len(squares) == 16
    colors = {}
    for color, stroke, title in squares:
        rank = int(re.match(r"rank (\d+),", title)[1])
        assert colors.setdefault(rank // 4, color) == color
        assert (stroke == "#000000") == (rank in (4, 5, 6, 7))
    assert len(set(colors.values())) == 4


def test_two_configurations_are_compared_by_their_groups():
    same = accord("mesh", "show", "tp=2,pp=2", "--world", 8, "--check", "pp=2,tp=2,dp=2,order=tp-dp-pp")
    assert same.returncode == 0, same.stderr
    assert "all 17 families have the same groups" in same.stdout
    other = accord("mesh", "show", "tp=2", "--world", 8, "--check", "tp=4,optimizer_instances=2")
    assert other.returncode == 1
    assert "tp                         4 groups and 2; the first that differ: 0, 1, and 0-3" in other.stdout
    assert re.search(r"^inter_ep_dp +only in the second$", other.stdout, re.MULTILINE)
    assert not re.search(r"^pp ", other.stdout, re.MULTILINE)
    answer = shown("tp=2", "--world", 8, "--check", "tp=2")
    assert answer["differences"] == {}


def test_sizes_that_determine_the_number_of_ranks_need_no_world():
    given = shown("tp=2,pp=2,dp=2", "--world", 8, "--all")
    assert given["world_size"] == 8
    assert shown("tp=2,pp=2,dp=2", "--all") == given
    assert MeshPlan("tp=2,pp=2,dp=2").text == given["plan"]
    assert MeshPlan(tp=2, pp=2, dp=2).world_size == 8
    assert shown("tp=2,world_size=8")["world_size"] == 8
    same = accord("mesh", "show", "tp=2,dp=4", "--check", "tp=2")
    assert same.returncode == 0, same.stderr
    spaced = accord("mesh", "show", " tp=2, dp=4 ", "--check", "tp=2")
    assert spaced.returncode == 0, spaced.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tp=3", "--world", 8), "tp = 3, which does not divide the 8 ranks"),
        (("tpp=2", "--world", 8), 'did you mean "tp"'),
        (("tp=2", "--world", 8, "--rank", 8), "rank 8 is not in the mesh, which has ranks 0 to 7"),
        (("tp=2", "--world", 8, "--family", "dpcp"), 'did you mean "dp_cp"'),
        (("tp=2", "--world", 8, "--check", "tp=x"), "tp"),
        (("tp=2", "--world", 0), "--world: 0 is not greater than 0"),
        (("tp=2",), "dp has no size"),
        (("tp=0",), "tp is 0, expected 1 to 1048576"),
        (("cp=-2",), "cp is -2, expected 1 to 1048576"),
        (("tp=2, ,dp=2",), '"" has no value'),
        (("tp=2,dp=2", "--world", 8), "dp is 2, expected 4: the 8 ranks"),
        (("tp=2,world_size=8", "--world", 4), "world_size=8, but 4 ranks were given"),
        (("tp=2,dp=2", "--check", "dp=8"), "dp is 8, expected 4: the 4 ranks"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message):
    result = accord("mesh", "show", *arguments)
    assert result.returncode == 2
    assert message in result.stderr


def test_a_chart_that_cannot_be_written_is_named(tmp_path):
    result = accord("mesh", "show", "tp=2", "--world", 8, "--chart", tmp_path / "none/mesh.svg")
    assert result.returncode == 1
    assert "none" in result.stderr


CLUSTER = ROOT / "examples/sim/cluster.toml"  # hosts of 8 ranks and two NICs of 12.5 GB/s


def test_calls_of_families_are_estimated_on_a_machine():
    answer = shown("tp=8", "--world", 32, "--sim", CLUSTER, "--bytes", "64m")
    assert answer["call"] == {"collective": "all_reduce", "bytes": 64 << 20}
    seconds = {family["name"]: family.get("seconds") for family in answer["families"]}
    one_host = accord(
        *("sim", "run", "all_reduce", "64m", "-n", 8, "--machine", CLUSTER, "--links", "queues", "--dtype", "uint8"),
        "--json",
    )
    assert seconds["tp"]["alone"] == pytest.approx(json.loads(one_host.stdout)["seconds"], rel=1e-9)
    assert seconds["tp"]["together"] == seconds["tp"]["alone"]  # it has its host to itself
    # Each of the two NICs of a host carries 2 * 3/4 of the buffer for four groups.
    assert seconds["dp"]["together"] == pytest.approx(4 * 1.5 * (64 << 20) / 12.5e9, rel=0.03)
    assert seconds["cp"] is None and seconds["pp"] is None  # groups of one rank
    in_parts = shown("tp=8", "--world", 32, "--sim", CLUSTER, "--bytes", "64k", "--collective", "all_to_all")
    assert in_parts["call"] == {"collective": "all_to_all", "bytes": 64 << 10}
    text = accord("mesh", "show", "tp=8", "--world", 2048, "--sim", CLUSTER, "--bytes", "64k").stdout
    assert re.search(r"^tp +256 +8 +[\d.]+ us +[\d.]+ us  tensor parallel$", text, re.MULTILINE)
    assert re.search(r"^tp_dp +1 +2048 +- +-  tensor and data parallel$", text, re.MULTILINE)
    assert "alone: all_reduce of 64 KiB of one group" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sim", "absent.toml"), "absent.toml"),
        (("--sim", CLUSTER, "--collective", "all_reduc"), 'did you mean "all_reduce"?'),
        (("--sim", CLUSTER, "--bytes", "many"), "many"),
        (("--bytes", "64k"), "--sim"),
    ],
)
def test_estimates_that_cannot_be_made_are_refused(arguments, message):
    result = accord("mesh", "show", "tp=8", "--world", 16, *arguments)
    assert result.returncode != 0 and message in result.stderr


def test_a_mesh_that_does_not_fill_hosts_is_not_estimated():
    result = accord("mesh", "show", "tp=4", "--world", 12, "--sim", CLUSTER)
    assert result.returncode == 2 and "12 ranks" in result.stderr
