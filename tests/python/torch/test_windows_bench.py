"""The benchmark `torch_windows` measures each case over both backends, or prints the reason."""

import json
import subprocess
import sys

import pytest
import torch
from accord_command import ROOT, clean_environment


@pytest.mark.slow
def test_puts_and_signals_are_measured_beside_gloo_and_a_copy(tmp_path):
    report = tmp_path / "report.json"
    few = ["--rounds", "1", "--sizes", "8", "4096", "--stream-sizes", "4096"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.torch_windows", "--output", report, *few],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if not hasattr(torch.distributed, "_new_window"):
        assert "nothing measured" in done.stdout and "no dist._new_window" in done.stdout
        assert not report.exists()
        return
    lines = {line["case"]: line for line in json.loads(report.read_text())}
    assert lines.keys() == {"signal", "put 8 B", "put 4096 B", "stream 4096 B"}
    for case, line in lines.items():
        ours, gloo = line["accord"], line["peers"]["gloo"]
        assert ours > 0 and gloo > 0
        assert (line["unit"], line["ratio"]) == (("GB/s", ours / gloo) if "stream" in case else ("us", gloo / ours))
        assert line["bounds"].keys() == (set() if case == "signal" else {"copy"})
