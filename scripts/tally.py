"""Counts the tests of one run of scripts/test: tally.py REPORTS SECONDS.

REPORTS contains stages.tsv (name, exit code or reason for leaving it out, and seconds of each stage), the JUnit files
of pytest and of the GoogleTest programs, possibly in folders, and ctest's output, as FOLDER.log beside the folder of
its programs' files. The reason is shown below each test that failed. A program that failed counts as a failed test if
none of its own tests reports it: one that crashed, took too long, or was rejected by a sanitizer. The exit code is 1
if anything failed.
"""

import re
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SANITIZER = re.compile(r"^.*(?:(?:WARNING|ERROR): \w+Sanitizer|: runtime error: ).*$", re.MULTILINE)


def shortened(text: str) -> list[str]:
    """Returns the first 600 characters of `text`, in lines of 200."""
    return textwrap.wrap(text.replace(f"{ROOT}/", ""), 200, max_lines=3, placeholder=" ...")


def why_program_failed(end: str, output: str) -> str:
    """`end` is ctest's word for it. Adds the test that was running, and the sanitizer's message or the last lines."""
    report = SANITIZER.search(output)
    before = output[: report.start()] if report else output
    running = re.findall(r"^\[ RUN +\] (.*)$", before, re.MULTILINE)
    first = end + (f" in {running[-1]}:" if running else ":")
    if report is None:
        return " ".join([first, *output.splitlines()[-3:]])
    place = re.search(r"^SUMMARY: .*$", output, re.MULTILINE)
    return " ".join([first, report[0], place[0] if place else ""])


@dataclass
class Tally:
    """The outcome of all tests."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def fail(self, name: str, why: str = "") -> None:
        self.failed.append("\n    ".join([name, *shortened(why)]))

    def add(self, report: Path, where: str) -> None:
        """Counts the test cases of one JUnit file."""
        try:
            cases = list(ElementTree.parse(report).iter("testcase"))
        except ElementTree.ParseError as error:
            self.fail(f"{where}: {report.name} is no whole report: {error}")
            return
        for case in cases:
            name = f"{where}: {case.get('classname', '')}.{case.get('name')}"
            skipped = case.find("skipped")
            failures = [*case.iter("failure"), *case.iter("error")]
            if failures:
                self.fail(name, failures[0].get("message") or "")
            elif skipped is not None:
                reason = (skipped.get("message") or "").strip().splitlines()
                self.skipped.append(f"{name}: {reason[-1] if reason else 'no reason given'}")
            elif case.get("status") != "notrun":
                self.passed += 1

    def add_programs(self, log: Path) -> None:
        """Counts the programs that failed although none of their tests did. Call it after adding their JUnit files."""
        text, where = log.read_text(errors="replace"), log.stem
        for name, end in re.findall(r"^\t *\d+ - (\S+) \((.*)\)$", text, re.MULTILINE):
            # A part of a program has a folder of its own for its report (cmake/AccordLayer.cmake).
            reported = (f"{where}/{name}/", f"{where}/accord_{name}_test: ")
            if any(failed.startswith(reported) for failed in self.failed):
                continue
            output = re.search(
                rf"Test +#\d+: {re.escape(name)} .*\n((?s:.*?))(?:^ +Start +\d+: |\Z)", text, re.MULTILINE
            )
            self.fail(f"{where}: {name}", why_program_failed(end, output[1] if output else ""))


def main() -> int:
    reports, seconds = Path(sys.argv[1]), int(sys.argv[2])
    tally = Tally()
    for report in sorted(reports.rglob("*.xml")):
        tally.add(report, str(report.relative_to(reports).with_suffix("")))
    for log in sorted(reports.glob("*.log")):
        tally.add_programs(log)
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
            tally.fail(f"stage {name}: exit code {code}")
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
