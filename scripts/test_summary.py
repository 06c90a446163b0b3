"""Counts the tests of one run of scripts/test: test_summary.py REPORTS SECONDS.

REPORTS holds stages.tsv (name, exit code or why it was left out, seconds of each stage) and the JUnit files of pytest and
of the GoogleTest programs, which may lie in folders. A stage that failed counts as a failed test if none of its own tests
says so. The exit code is 1 if anything failed.
"""

import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    """What became of all tests."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, report: Path, where: str) -> None:
        """Counts the test cases of one JUnit file."""
        try:
            cases = list(ElementTree.parse(report).iter("testcase"))
        except ElementTree.ParseError as error:
            self.failed.append(f"{where}: {report.name} is no whole report: {error}")
            return
        for case in cases:
            name = f"{where}: {case.get('classname', '')}.{case.get('name')}"
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed.append(name)
            elif skipped is not None:
                reason = (skipped.get("message") or "").strip().splitlines()
                self.skipped.append(f"{name}: {reason[-1] if reason else 'no reason given'}")
            elif case.get("status") != "notrun":
                self.passed += 1


def main() -> int:
    reports, seconds = Path(sys.argv[1]), int(sys.argv[2])
    tally = Tally()
    for report in sorted(reports.rglob("*.xml")):
        tally.add(report, str(report.relative_to(reports).with_suffix("")))
    stages = [line.split("\t") for line in (reports / "stages.tsv").read_text().splitlines()]
    print()
    for name, code, duration in stages:
        mark = {"0": "ok    "}.get(code, "FAILED" if code.isdigit() else "-     ")
        print(f"{mark} {int(duration):>5} s  {name}")
        if code == "0":
            tally.passed += 1
        elif not code.isdigit():
            tally.skipped.append(f"stage {name}: {code}")
        else:
            tally.failed.append(f"stage {name}: exit code {code}")
    for title, names in (("skipped", tally.skipped), ("failed", tally.failed)):
        for name in names:
            print(f"{title}: {name}")
    counts = [f"{len(tally.failed)} failed"] if tally.failed else []
    counts.append(f"{tally.passed} passed")
    counts += [f"{len(tally.skipped)} skipped"] if tally.skipped else []
    print(
        f"===== {', '.join(counts)} in {seconds}.00s ({seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}) ====="
    )
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
