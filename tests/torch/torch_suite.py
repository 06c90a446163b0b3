"""Compares accord with gloo in torch's own distributed tests (distributed_tests.py). accord must pass every test that
gloo passes.

    python tests/torch/torch_suite.py [--ranks 4] [--output build/torch-suite.json] [TEST ...]

Prints a table of the tests that either backend ran and writes it as JSON. The last line gives the counts. The exit
code is 1 if there is a difference that is not in DIFFERENCES.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Tests that gloo passes and accord does not, with the reason. docs/pytorch.md lists them too.
DIFFERENCES = {
    "test_barrier_timeout_arg": "the other ranks have left the group, which accord reports instead of waiting",
    "test_ddp_dist_autograd_sparse_grads": "sparse tensors are refused",
    "test_sparse_all_reduce_sum": "sparse tensors are refused",
}


def run(backend: str, ranks: int, tests: list[str] = (), seconds: float = 1800) -> dict[str, dict]:
    """Returns the result of each test with `backend` (by name: outcome, message, seconds, detail). All processes are
    killed after `seconds`. Tests that have not ended by then, and those of a runner that died, are missing."""
    with tempfile.TemporaryDirectory(prefix="accord-torch-suite-") as folder:
        outcomes, log = Path(folder) / "outcomes.jsonl", Path(folder) / "log.txt"
        with log.open("w") as output:
            runner = subprocess.Popen(
                [sys.executable, HERE / "distributed_tests.py", backend, str(ranks), outcomes, *tests],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = runner.wait(seconds)
            except subprocess.TimeoutExpired:
                code = "it took too long"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(runner.pid, signal.SIGKILL)
                runner.wait()
        if code != 0:
            print(f"the tests of {backend} ended early: {code}\n{log.read_text()[-3000:]}", file=sys.stderr)
        rows = outcomes.read_text().splitlines() if outcomes.exists() else []
    return {row["test"]: row for row in map(json.loads, rows)}


def compare(ours: dict[str, dict], theirs: dict[str, dict]) -> list[dict]:
    """Returns a row for each test that accord (`ours`) or gloo (`theirs`) did not skip."""
    missing = {"outcome": "missing", "message": "did not end"}
    rows = []
    for test in sorted(ours | theirs):
        accord, gloo = ours.get(test, missing), theirs.get(test, missing)
        if {accord["outcome"], gloo["outcome"]} != {"skipped"}:
            rows.append({"test": test, "gloo": gloo["outcome"], "accord": accord["outcome"]})
            rows[-1] |= {"message": accord["message"] or gloo["message"], "detail": accord.get("detail", "")}
            rows[-1]["reason"] = DIFFERENCES.get(test, "")
    return rows


def is_worse(row: dict) -> bool:
    return row["gloo"] == "passed" and row["accord"] != "passed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "build/torch-suite.json")
    parser.add_argument("tests", nargs="*", metavar="TEST")
    arguments = parser.parse_args()
    rows = compare(*(run(backend, arguments.ranks, arguments.tests) for backend in ("accord", "gloo")))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(rows, indent=1))
    for row in rows:
        print(f"{row['test']:70} {row['gloo']:8} {row['accord']:8} {row['message'][:200]}")
    worse = [row for row in rows if is_worse(row)]
    unexpected = [row["test"] for row in worse if not row["reason"]]
    passed = {backend: sum(row[backend] == "passed" for row in rows) for backend in ("gloo", "accord")}
    print(
        f"torch suite, {arguments.ranks} ranks: gloo passes {passed['gloo']}, accord {passed['accord']}; "
        f"{len(worse) - len(unexpected)} known differences, {len(unexpected)} others: {', '.join(unexpected) or 'none'}"
    )
    return 1 if unexpected or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
