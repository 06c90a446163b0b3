"""The model of how ranks pass rounds to each other (tests/model/rounds.pml). Spin explores it in every order.

The correct model passes. Each variant that breaks one rule fails; otherwise the model would prove nothing.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from accord_command import ROOT
from tiers import mostly_slow

MODEL = ROOT / "tests/model/rounds.pml"
ALL = 255

EXCHANGE, BROADCAST, BROADCAST_LAST, PACKETS, SEND_PACKETS, TO_FIRST, PUT_TO_FIRST, BARRIER = (1 << i for i in range(8))

pytestmark = pytest.mark.skipif(not shutil.which("spin"), reason="spin (packages.txt) is not installed")


def explore(folder: Path, ranks: int, scratch: int, flags: int, rounds: int, calls: int, *more: str) -> tuple[str, int]:
    """Explores all states. Returns the violated claim, or an empty string, and the number of states."""
    values = {"N": ranks, "SCRATCH": scratch, "FLAGS": flags, "ROUNDS": rounds, "CALLS": calls}
    options = [f"-D{name}={value}" for name, value in values.items()] + [f"-D{name}" for name in more]
    shutil.copy(MODEL, folder)
    subprocess.run(["spin", "-a", *options, MODEL.name], cwd=folder, check=True, capture_output=True, timeout=60)
    compiler = ["cc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=4096", "-o", "pan", "pan.c"]
    subprocess.run(compiler, cwd=folder, check=True, timeout=120)
    # -E: a killed rank stops forever. The model's Judge checks that all other ranks terminate.
    report = subprocess.run(
        ["./pan", "-E", "-m1000000"], cwd=folder, capture_output=True, text=True, timeout=300
    ).stdout
    assert "errors:" in report and "max search depth too small" not in report and "out of memory" not in report, report
    states = int(re.search(r"(\d+) states, stored", report).group(1))
    violation = re.search(r"pan:1: (.*)", report)
    assert (violation is None) == ("errors: 0" in report), report
    print(f"{values} {more}: {states} states, {violation.group(1) if violation else 'all is well'}")
    return violation.group(1) if violation else "", states


MIXED = (2, 1, 4, 5, EXCHANGE | BROADCAST | BROADCAST_LAST | SEND_PACKETS | TO_FIRST)
AFTER_PACKETS = (2, 2, 8, 5, BROADCAST | SEND_PACKETS, "DISAGREE")
RIGHT = {
    "any calls of 2 ranks": (2, 2, 3, 4, ALL),
    "flags and packets of 8 rounds": (2, 2, 8, 10, BROADCAST | SEND_PACKETS),
    "cells of 4 rounds among packets of 2": (2, 1, 2, 7, SEND_PACKETS | TO_FIRST | PACKETS, "CELLS=4"),
    "cells of 4 rounds among flags of 2 and scratch": (
        2,
        1,
        2,
        6,
        BROADCAST | BROADCAST_LAST | SEND_PACKETS | BARRIER,
        "CELLS=4",
    ),
    "cells of 4 rounds, and ranks that disagree": (2, 1, 2, 6, BROADCAST | SEND_PACKETS, "CELLS=4", "DISAGREE"),
    "flags of 4 rounds among scratch": MIXED,
    "3 ranks that wait for all, and roots": (3, 1, 2, 3, EXCHANGE | BROADCAST | PACKETS | TO_FIRST),
    "3 ranks of which none waits for all": (3, 1, 2, 3, BROADCAST | SEND_PACKETS | PUT_TO_FIRST),
    "2 ranks that disagree after rounds of packets": AFTER_PACKETS,
    "2 ranks that disagree": (2, 2, 3, 3, ALL, "DISAGREE"),
    "3 ranks that disagree": (3, 1, 2, 2, BROADCAST | BROADCAST_LAST | TO_FIRST, "DISAGREE"),
    "ranks that disagree and never wait": (2, 1, 2, 5, BROADCAST | BROADCAST_LAST | SEND_PACKETS, "DISAGREE_FREELY"),
    "a death among 2": (2, 1, 2, 3, ALL, "DEATH"),
    "a death among 3": (3, 1, 1, 2, EXCHANGE | BROADCAST, "DEATH"),
}
QUICK = (
    "flags of 4 rounds among scratch",
    "2 ranks that disagree",
    "a death among 2",
)


@pytest.mark.parametrize("case", mostly_slow(RIGHT, *QUICK))
def test_no_order_of_steps_loses_a_wake_up_or_overwrites_data_being_read(tmp_path, case):
    violation, states = explore(tmp_path, *RIGHT[case])
    assert not violation
    assert states > 50_000, "the model ended too early to show anything"


OVERWRITTEN, HUNG, NOT_NOTIFIED = r"scratch|packet_data|cell_data", r"ended", r"history_of|alarm"
TWO = (2, 2, 3, 4, ALL)
BROKEN = {
    "BROKEN_DEPTH": (TWO, OVERWRITTEN),
    "BROKEN_CLAIM": (TWO, OVERWRITTEN),
    "BROKEN_ROOTED_CLAIM": (TWO, OVERWRITTEN),
    "BROKEN_NO_GATE": (TWO, OVERWRITTEN),
    "BROKEN_EARLY_END": (TWO, OVERWRITTEN),
    "BROKEN_WORDS": (TWO, OVERWRITTEN),
    "BROKEN_SILENT_GATE": (MIXED, HUNG),
    "BROKEN_SILENT_WAIT": (AFTER_PACKETS, HUNG),
    "BROKEN_SIGNAL_FIRST": (TWO, OVERWRITTEN),
    "BROKEN_FEW_RECORDS": ((*TWO, "DISAGREE"), HUNG),
    "BROKEN_NO_RECORDS": ((*TWO, "DISAGREE"), HUNG),
    "BROKEN_NO_HISTORY": ((*TWO, "DISAGREE"), NOT_NOTIFIED),
    "BROKEN_NO_ALARM": ((*TWO, "DISAGREE"), HUNG),
    "BROKEN_ALARM_FIRST": ((*TWO, "DISAGREE"), r"violated 0\b"),
    "BROKEN_BLIND_GATE": ((2, 1, 2, 5, BROADCAST | BROADCAST_LAST | SEND_PACKETS, "DISAGREE_FREELY"), NOT_NOTIFIED),
    "BROKEN_NO_DEATHS": ((2, 1, 2, 3, ALL, "DEATH"), HUNG),
}


QUICK_BROKEN = ("BROKEN_CLAIM", "BROKEN_SILENT_GATE", "BROKEN_NO_HISTORY", "BROKEN_NO_DEATHS")


@pytest.mark.parametrize("variant", mostly_slow(BROKEN, *QUICK_BROKEN))
def test_each_rule_of_the_model_is_necessary(tmp_path, variant):
    case, expected = BROKEN[variant]
    violation, _ = explore(tmp_path, *case, variant)
    assert re.search(expected, violation), violation or "nothing went wrong"


def test_every_variant_of_the_model_is_checked():
    assert set(re.findall(r"BROKEN_\w+", MODEL.read_text())) == set(BROKEN)
