"""`accord plan list|show|verify|export|why`, as a user runs them."""

import json
import os
import textwrap
import xml.etree.ElementTree as ElementTree

import pytest
from accord_command import ROOT, accord, clean_environment, plan_answer

SVG = "{http://www.w3.org/2000/svg}"


def exported(path, algorithm: str, ranks: int) -> dict:
    result = accord("plan", "export", algorithm, "-n", ranks, "-o", path)
    assert result.returncode == 0, result.stderr
    return json.loads(path.read_text())


def test_list_has_the_textbook_figures():
    rows = {(row["collective"], row["name"]): row for row in plan_answer("list", "-n", 8, "--bytes", "64k")}
    message = 64 << 10
    assert rows["all_reduce", "two_shot"]["bytes_exchanged"] == 2 * 7 * message // 8
    assert rows["all_reduce", "one_shot"]["bytes_exchanged"] == 7 * message
    assert rows["all_reduce", "ring"]["hops"] == 14
    assert rows["all_reduce", "ring"]["order"] == "fixed"
    assert rows["all_gather", "bruck"]["hops"] == 3
    assert rows["barrier", "dissemination"]["hops"] == 3
    assert rows["barrier", "dissemination"]["bytes_exchanged"] == 0
    assert all(row["predicted_seconds"] > 0 for row in rows.values())


def test_list_of_one_collective_shows_which_algorithms_reject_an_op():
    rows = {row["name"]: row for row in plan_answer("list", "all_reduce", "--op", "avg")}
    assert set(rows) == {path.stem for path in (ROOT / "src/plan/algorithms/all_reduce").glob("*.cpp")}
    assert rows["two_shot"]["refused"] == ""
    assert "adds only some ranks at a time" in rows["ring"]["refused"]


def test_show_draws_ranks_and_steps_and_prints_the_cost():
    shown = accord("plan", "show", "all_reduce:two_shot", "-n", 2, "--bytes", "8k")
    assert shown.returncode == 0, shown.stderr
    assert "rank 0 | cp i1>s1 | sig 1#0 | wait 1#0 | add i0,1.s0>o0,s0 |" in shown.stdout
    assert "8 KiB exchanged with peers" in shown.stdout
    assert "predicted" in shown.stdout


def test_show_puts_a_step_after_the_step_that_it_waits_for():
    drawing = plan_answer("show", "all_gather:ring", "-n", 3)["drawing"]
    columns = {(step["rank"], step["text"]): step["column"] for step in drawing}
    assert columns[1, "wait for signal 0 of rank 0"] > columns[0, "signal 0 to rank 1"]
    assert columns[2, "wait for signal 1 of rank 1"] > columns[1, "signal 1 to rank 2"]


def test_show_writes_an_svg_with_a_box_per_step_and_an_arrow_per_message(tmp_path):
    path = tmp_path / "plan.svg"
    drawing = plan_answer("show", "all_reduce:one_shot", "-n", 3, "--svg", path)["drawing"]
    root = ElementTree.parse(path).getroot()
    assert root.tag == SVG + "svg"
    boxes = root.findall(f"{SVG}g")
    assert len(boxes) == len(drawing)
    assert {box.find(f"{SVG}title").text for box in boxes} == {step["text"] for step in drawing}
    arrows = [line for line in root.findall(f"{SVG}line") if line.get("marker-end")]
    dashed = [line for line in arrows if line.get("stroke-dasharray")]
    assert len(dashed) == 3 * 2  # a signal from each rank to every other rank
    assert len(arrows) - len(dashed) == 3 * 2  # and its data
    labels = [text.text for text in root.findall(f"{SVG}text")]
    assert {"rank 0", "rank 1", "rank 2"} <= set(labels)


def test_an_exported_plan_is_complete_and_exports_to_the_same_bytes(tmp_path):
    plan = exported(tmp_path / "ring.json", "all_reduce:ring", 4)
    assert (plan["format"], plan["version"], plan["size"]) == ("accord-plan", 1, 4)
    assert len(plan["programs"]) == 4
    again = accord("plan", "export", tmp_path / "ring.json")
    assert again.stdout == (tmp_path / "ring.json").read_text()


def test_verify_accepts_an_exported_plan_and_names_an_incorrect_step(tmp_path):
    path = tmp_path / "plan.json"
    plan = exported(path, "all_reduce:one_shot", 2)
    good = accord("plan", "verify", path)
    assert (good.returncode, good.stdout) == (0, 'plan "one_shot" (all_reduce, 2 ranks): ok\n')
    steps = plan["programs"][1]["lanes"][0]
    steps[:] = [step for step in steps if step["step"] != "signal"]
    path.write_text(json.dumps(plan))
    bad = accord("plan", "verify", path)
    assert bad.returncode == 1
    assert "rank 0, lane 0, step 2 (wait for signal 0 of rank 1): waits for ever" in bad.stdout
    answer = json.loads(accord("plan", "verify", path, "--json").stdout)
    assert not answer["ok"]
    assert "waits for ever" in answer["message"]


def test_verify_rejects_an_all_reduce_that_does_nothing_and_ranks_that_both_wait_first(tmp_path):
    path = tmp_path / "plan.json"
    plan = exported(path, "all_reduce:one_shot", 2)
    for program in plan["programs"]:
        program["lanes"] = [[]]
    path.write_text(json.dumps(plan))
    assert "no step writes output[0] of rank 0" in accord("plan", "verify", path).stdout
    plan = exported(path, "barrier:direct", 2)
    for program in plan["programs"]:
        program["lanes"][0].reverse()
    path.write_text(json.dumps(plan))
    refused = accord("plan", "verify", path)
    assert refused.returncode == 1
    assert "wait for signal 0 of rank" in refused.stdout


def test_why_names_the_deciding_rule_and_the_reason_against_each_other_rule():
    answer = plan_answer("why", "all_reduce", "8K", "-n", 4)
    assert answer["algorithm"] == "two_shot"
    rules = {rule["rule"]: rule for rule in answer["rules"]}
    assert rules["all_reduce:8k-inf=two_shot"]["decides"]
    assert rules["all_reduce:128-8k=one_shot"]["reason"] == "is not for 8 KiB"
    assert rules["all_reduce[ranks=9-inf]:1k-inf=two_shot"]["reason"] == "is not for 4 ranks"
    assert {row["algorithm"] for row in answer["algorithms"] if row["chosen"]} == {"two_shot"}
    anywhere = {row["name"] for row in plan_answer("list", "all_reduce") if "buffers in windows" not in row["needs"]}
    of_hosts_and_switches = {"hierarchical", "nvls"}
    assert {row["algorithm"] for row in answer["algorithms"]} == anywhere - of_hosts_and_switches


def test_why_distributes_ranks_over_several_hosts_on_request():
    answer = plan_answer("why", "reduce", "1M", "-n", 8, "--hosts", 2)
    assert (answer["algorithm"], answer["hosts"]) == ("hierarchical", 2)
    decides = [rule["rule"] for rule in answer["rules"] if rule["decides"]]
    assert decides == ["reduce[hosts=2-inf]:128k-inf=hierarchical"]
    assert plan_answer("why", "reduce", "1M", "-n", 8)["algorithm"] == "two_shot"
    # Groups of 6, 6 and 5 ranks are not subtrees of the canonical tree.
    assert plan_answer("why", "reduce", "1M", "-n", 17, "--hosts", 3)["algorithm"] == "two_shot"
    refused = accord("plan", "why", "reduce", "-n", 2, "--hosts", 3)
    assert refused.returncode == 2 and "--hosts 3: there are 2 ranks" in refused.stderr


def test_why_explains_calls_on_gpu_memory():
    answer = plan_answer("why", "all_reduce", "8K", "-n", 4, "--cuda")
    assert answer["algorithm"] == "packet"
    assert all("memory=cuda" in rule["rule"] for rule in answer["rules"])
    assert plan_answer("why", "all_reduce", "1M", "-n", 4, "--cuda")["algorithm"] == "nccl"
    assert plan_answer("why", "all_reduce", "8K", "-n", 4, "--hosts", 2, "--cuda")["algorithm"] == "nccl"
    answer = plan_answer("why", "all_reduce", "8K", "-n", 4, "--cuda", "--select", "all_reduce:0-inf=ring")
    assert answer["rules"][0]["reason"] == "is for memory of the CPU"
    answer = plan_answer("why", "all_reduce", "8K", "-n", 4, "--select", "all_reduce[memory=cuda]:0-inf=ring")
    assert answer["rules"][0]["reason"] == "is for memory of GPUs (--cuda)"


def test_why_explains_the_choice_for_registered_buffers():
    answer = plan_answer("why", "all_to_all", "64K", "--registered")
    assert answer["algorithm"] == "zero_copy" and answer["registered"]
    assert answer["rules"][0]["rule"] == "all_to_all[registered=yes]:2k-inf=zero_copy"
    in_place = plan_answer("why", "all_to_all", "64K", "--registered", "--in-place")
    assert in_place["algorithm"] == "direct"
    assert in_place["rules"][0]["reason"] == "zero_copy is not for calls in place"
    ordinary = plan_answer("why", "all_to_all", "64K", ACCORD_SINGLE_COPY="off")
    reasons = {rule["rule"]: rule["reason"] for rule in ordinary["rules"]}
    assert "ranks that may read each other's memory" in reasons["all_to_all:64k-2m=zero_copy"]
    assert ordinary["rules"][0]["reason"] == "is for buffers in windows (--registered)"
    assert "zero_copy" not in {row["algorithm"] for row in ordinary["algorithms"]}


@pytest.mark.parametrize(
    "plan", ["two_shot_zero_copy", "one_shot_zero_copy", "all_to_all:zero_copy", "gather:zero_copy"]
)
def test_plans_for_registered_buffers_are_verified_exported_and_run(tmp_path, plan):
    path = tmp_path / "plan.json"
    exported(path, plan, 3)
    assert accord("plan", "verify", path).stdout.endswith(": ok\n")
    for transport in ("inproc", "shm"):
        answer = plan_answer("run", path, "--bytes", "96k", "--transport", transport, "--repeat", 3)
        assert answer["right"]
    [row] = [row for row in plan_answer("list", "all_to_all") if row["name"] == "zero_copy"]
    assert row["needs"] == ["mapped peers", "buffers in windows", "input and output apart"]


def test_why_reads_the_environment_then_the_option_and_the_last_match_decides():
    table = "all_reduce:0-16k=one_shot@4k"
    answer = plan_answer("why", "all_reduce", "8K", ACCORD_SELECT=table)
    assert (answer["algorithm"], answer["slot_bytes"]) == ("one_shot", 4096)
    assert answer["rules"][0] == {"rule": table, "table": "ACCORD_SELECT", "decides": True, "reason": "matches"}
    overridden = plan_answer("why", "all_reduce", "8K", "--select", "all_reduce:0-inf=packet", ACCORD_SELECT=table)
    assert overridden["algorithm"] == "packet"
    assert overridden["rules"][1]["reason"] == "matches, but a later rule takes precedence"
    canonical = plan_answer("why", "all_reduce", "8K", "--select", "all_reduce:0-inf=ring;deterministic=canonical")
    assert canonical["algorithm"] == "one_shot"
    assert "canonical order" in canonical["rules"][0]["reason"]


def test_why_compares_ranks_with_the_cores_of_this_machine():
    ranks = 2 * os.cpu_count()
    answer = plan_answer(
        "why", "all_reduce", "1k", "-n", ranks, "--select", "all_reduce[oversubscribed=yes]:0-inf=ring"
    )
    assert answer["oversubscribed"]
    assert answer["algorithm"] == "ring"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "all_redce"), 'unknown collective "all_redce"; did you mean "all_reduce"?'),
        (("show", "two_shoot"), 'unknown algorithm "two_shoot"; did you mean "two_shot"?'),
        (("show", "all_reduce:rin"), 'unknown all_reduce algorithm "rin"; did you mean "ring"?'),
        (("show", "direct"), "write one of barrier:direct, broadcast:direct"),
        (("show", "all_reduce:ring", "--bytes", "7"), "7 bytes are not a whole number of elements of float32"),
        (("why", "all_reduce", "8X"), '"8X" is not a size'),
        (("why", "all_reduce", "8k", "--dtype", "float31"), 'did you mean "float32"?'),
        (("why", "all_reduce", "8k", "--op", "band"), "band has no meaning for float32"),
        (("why", "all_reduce", "8k", "--select", "all_reduce:0-4k=rig"), "--select: selection table, at character 17"),
        (("verfy", "x"), 'unknown command "verfy"; did you mean "verify"?'),
    ],
)
def test_an_unknown_name_is_reported_with_the_nearest_one(arguments, message):
    result = accord("plan", *arguments)
    assert result.returncode == 2
    assert message in result.stderr


def test_missing_broken_and_unwritable_files_have_different_errors(tmp_path):
    missing = accord("plan", "verify", tmp_path / "none.json")
    assert missing.returncode == 1
    assert "none.json: No such file or directory" in missing.stderr
    (tmp_path / "broken.json").write_text('{"format": "accord-plan", "version": 1}')
    broken = accord("plan", "show", tmp_path / "broken.json")
    assert broken.returncode == 1
    assert 'broken.json: plan JSON: lacks "name"' in broken.stderr
    unwritable = accord("plan", "export", "all_reduce:ring", "-o", tmp_path / "no" / "where.json")
    assert unwritable.returncode == 1
    assert "No such file or directory" in unwritable.stderr


def test_a_folder_is_named_in_the_error(tmp_path):
    result = accord("plan", "verify", tmp_path)
    assert result.returncode == 1
    assert result.stderr == f"accord plan verify: io: {tmp_path}: Is a directory\n"


def test_the_example_of_the_format_is_correct(tmp_path):
    page = (ROOT / "docs/plan-format.md").read_text()
    block = page[page.index("    {\n") : page.index("Every key is required")]
    path = tmp_path / "example.json"
    path.write_text(textwrap.dedent(block))
    assert accord("plan", "verify", path).returncode == 0
    assert json.loads(accord("plan", "export", path).stdout) == json.loads(path.read_text())
    assert json.loads(accord("plan", "export", "all_reduce:one_shot", "-n", 2).stdout) == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ("barrier:direct", ()),
        ("broadcast:chain", ("--root", 2)),
        ("all_gather:bruck", ("--transport", "shm")),
        ("reduce_scatter:ring", ("--dtype", "int64", "--op", "max")),
        ("all_reduce:ring", ("--bytes", "8m", "--repeat", 2)),
        ("reduce:binomial", ("--root", 1, "--dtype", "float64")),
        ("gather:packet", ("--root", 2, "--dtype", "int32")),
        ("scatter:binomial", ("--root", 1)),
        ("all_to_all:pairwise", ("--bytes", "12")),
        ("send_recv:direct", ("-n", 2)),
    ],
)
def test_run_checks_and_times_a_plan(plan, options):
    ranks = () if "-n" in options else ("-n", 3)
    answer = plan_answer("run", plan, *ranks, *options)
    assert answer["right"]
    assert 0 < answer["minimum_seconds"] <= answer["median_seconds"]


@pytest.mark.parametrize(
    ("name", "shown"), [("mine", "mine"), ("my plan!", "my_plan_"), ("one_shot", "one_shot.given")]
)
def test_run_calls_a_plan_by_its_own_name(tmp_path, name, shown):
    path = tmp_path / "plan.json"
    plan = exported(path, "all_reduce:one_shot", 2)
    path.write_text(json.dumps(plan | {"name": name}))
    result = accord("plan", "run", path, env=clean_environment(ACCORD_DEBUG="info"))
    assert f": {shown}, " in result.stderr
    assert name in result.stdout


@pytest.mark.parametrize("name", ["\x1b[31mred", "line\nline", "\x7f", "\x9b31m"])
def test_names_with_terminal_escapes_are_rejected(tmp_path, name):
    path = tmp_path / "plan.json"
    plan = exported(path, "all_reduce:one_shot", 2)
    path.write_text(json.dumps(plan | {"name": name}))
    for command in ("run", "show", "verify"):
        refused = accord("plan", command, path)
        assert refused.returncode == 1
        assert "has a control character" in refused.stderr
        assert name not in refused.stderr


def test_run_rejects_an_incorrect_plan(tmp_path):
    path = tmp_path / "plan.json"
    plan = exported(path, "all_reduce:one_shot", 2)
    plan["programs"][1]["lanes"][0].pop()
    path.write_text(json.dumps(plan))
    refused = accord("plan", "run", path)
    assert refused.returncode == 1
    assert accord("plan", "show", path).returncode == 1
    assert "no step writes output[0] of rank 1" in refused.stderr


def test_why_includes_a_user_plan(tmp_path):
    path = tmp_path / "mine.json"
    plan = exported(path, "all_reduce:one_shot", 2)
    plan["name"] = "mine"
    path.write_text(json.dumps(plan))
    arguments = ("why", "all_reduce", "8k", "--plan", path, "--select", "all_reduce:0-16k=mine")
    answer = plan_answer(*arguments, "-n", 2)
    assert answer["algorithm"] == "mine"
    assert [row["algorithm"] for row in answer["algorithms"] if row["chosen"]] == ["mine"]
    skipped = plan_answer(*arguments, "-n", 3)
    assert skipped["rules"][0]["reason"] == "no plan of that name supports 3 ranks"
    assert skipped["algorithm"] == "two_shot"
    assert "mine" not in {row["algorithm"] for row in skipped["algorithms"]}
