"""`accord plan import`, as a user runs it."""

import json

from accord_command import accord, plan_answer
from execution_plans import execution_plan


def test_import_creates_a_plan_that_the_verifier_accepts(tmp_path):
    foreign, ours = tmp_path / "foreign.json", tmp_path / "ours.json"
    foreign.write_text(json.dumps(execution_plan()))
    imported = accord("plan", "import", foreign, "--name", "mine", "-o", ours)
    assert imported.returncode == 0, imported.stderr
    assert accord("plan", "verify", ours).stdout == 'plan "mine" (all_reduce, 2 ranks): ok\n'
    shown = plan_answer("show", ours, "--bytes", "8k")
    assert (shown["hops"], shown["bytes_exchanged"], shown["order"]) == (1, 8192, "canonical")


def test_import_converts_switch_operations_as_requested(tmp_path):
    plan = execution_plan()
    plan["protocol"] = "Simple"
    peers = {"name": "signal", "channel_type": "memory", "channel_ids": [0]}
    place = {"switch_channel_id": 0, "index": 0, "size": 1}
    for gpu in plan["gpus"]:
        group = {"size": 2, "ranks": [0, 1]}
        gpu["channels"].append({"channel_type": "switch", "buffer_type": "i", "rank_groups": [group]})
        block = gpu["threadblocks"][0]
        block["channels"].append({"channel_type": "switch", "channel_ids": [0]})
        store = {**place, "switch_channel_id": 1}
        block["channels"].append({"channel_type": "switch", "channel_ids": [1]})
        gpu["channels"].append({"channel_type": "switch", "buffer_type": "o", "rank_groups": [group]})
        adds = {"name": "glres", "channel_type": "switch", "src_buff": [place], "dst_buff": [store]}
        meet = [peers, {**peers, "name": "wait"}]
        block["ops"] = [*meet, *([adds] if gpu["id"] == 0 else []), *meet]
    foreign, ours = tmp_path / "foreign.json", tmp_path / "ours.json"
    foreign.write_text(json.dumps(plan))
    assert accord("plan", "import", foreign, "-o", ours).returncode == 0
    assert plan_answer("show", ours, "--bytes", "8k")["order"] == "switch"
    assert accord("plan", "run", ours, "--bytes", "8k").returncode == 1  # it is for GPUs only
    assert accord("plan", "import", foreign, "--without-switch", "-o", ours).returncode == 0
    assert plan_answer("show", ours, "--bytes", "8k")["order"] == "canonical"
    assert plan_answer("run", ours, "--bytes", "8k")["right"]


def test_import_names_the_part_that_it_rejects(tmp_path):
    path = tmp_path / "plan.json"
    plan = execution_plan()
    plan["gpus"][1]["threadblocks"][0]["ops"][1]["name"] = "rrf"
    path.write_text(json.dumps(plan))
    refused = accord("plan", "import", path)
    assert refused.returncode == 1
    assert 'gpus[1].threadblocks[0].ops[1].name: unknown operation "rrf"' in refused.stderr
    missing = accord("plan", "import", tmp_path / "none.json")
    assert missing.returncode == 1
    assert "No such file" in missing.stderr
    as_ours = accord("plan", "show", path)
    assert as_ours.returncode == 1
    assert "accord plan import" in as_ours.stderr
