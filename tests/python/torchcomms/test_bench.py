"""The benchmark `torchcomms` measures if torchcomms can be imported, and otherwise reports the reason."""

import importlib.util
import json
import subprocess
import sys

from accord_command import ROOT, clean_environment


def test_the_benchmark_measures_both_backends_or_reports_the_reason(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "bench.torchcomms", "--output", report, "--rounds", "1", "--sizes", "8"]
    done = subprocess.run(
        command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if importlib.util.find_spec("torchcomms") is None:
        assert "nothing measured" in done.stdout
        assert "torchcomms cannot be imported" in done.stdout
        assert not report.exists()
    else:
        lines = json.loads(report.read_text())
        assert {line["case"].split()[0] for line in lines} >= {"all_reduce", "broadcast", "ping_pong", "barrier"}
        assert all(line["accord"] > 0 and line["peers"]["gloo"] > 0 for line in lines)
