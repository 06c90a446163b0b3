"""The last lines of scripts/test name each test that failed and give the reason."""

import subprocess
import sys
from pathlib import Path

from accord_command import ROOT

# Three programs that fail without writing a report, two whose reports name the failed test (one is a part of its
# program), and one that passes.
PROGRAMS = r"""
add_test(unit_crash bash -c "echo '[ RUN      ] Ring.turns'; kill -ABRT $$")
add_test(unit_late bash -c "echo '[ RUN      ] Ring.ends'; sleep 20")
set_tests_properties(unit_late PROPERTIES TIMEOUT 1)
add_test(unit_race bash -c "cat race; exit 66")
add_test(unit_told bash -c "echo '[  FAILED  ] Slot.holds'; exit 1")
add_test(unit_told.2 bash -c "echo '[  FAILED  ] Slot.holds'; exit 1")
add_test(unit_fine true)
"""
RACE = """\
[ RUN      ] Group.closes
WARNING: ThreadSanitizer: data race (pid=12)
  Write of size 8 at 0x7b0 by thread T1:
    #0 accord::close() /src/comm/group.cpp:12:3 (a+0x1)

SUMMARY: ThreadSanitizer: data race /src/comm/group.cpp:12:3 in accord::close()
[       OK ] Group.closes (2 ms)
[ RUN      ] Group.opens
"""
GOOGLE_TEST = """<testsuites><testsuite>
<testcase name="holds" classname="Slot" status="run">
<failure message="ROOT/tests/unit/slot_test.cpp:7&#x0A;Expected equality of these values:&#x0A;  1&#x0A;  2"/>
<failure message="another"/>
</testcase>
<testcase name="waits" classname="Slot" status="run"/>
<testcase name="is_off" classname="Slot" status="notrun"/>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite>
<testcase classname="tests.python.test_a" name="test_long"><failure message="{}">whole text</failure></testcase>
<testcase classname="tests.python.test_a" name="test_skipped"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def test_each_failure_is_named_with_its_reason(tmp_path: Path):
    programs, reports = tmp_path / "programs", tmp_path / "reports"
    programs.mkdir()
    (reports / "tsan").mkdir(parents=True)
    (programs / "CTestTestfile.cmake").write_text(PROGRAMS)
    (programs / "race").write_text(RACE)
    subprocess.run(
        ["ctest", "--output-on-failure", "--output-log", reports / "tsan.log"],
        cwd=programs,
        capture_output=True,
        check=False,
        timeout=60,
    )
    (reports / "tsan/unit_told.2").mkdir()
    for report in ("accord_unit_told_test.xml", "unit_told.2/accord_unit_told_test.xml"):
        (reports / "tsan" / report).write_text(GOOGLE_TEST.replace("ROOT", str(ROOT)))
    (reports / "pytest.xml").write_text(PYTEST.format("word " * 1000))
    (reports / "stages.tsv").write_text("setup\t0\t4\nThreadSanitizer\t8\t61\n")
    summary = subprocess.run(
        [sys.executable, ROOT / "scripts/tally.py", reports, "65"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    words = " ".join(["word"] * 40)
    assert summary.stdout.splitlines() == [
        "",
        "ok         4 s  setup",
        "FAILED    61 s  ThreadSanitizer",
        "skipped: pytest: tests.python.test_a.test_skipped: no GPU",
        "failed: pytest: tests.python.test_a.test_long",
        *[f"    {words}"] * 2,
        f"    {words[:-5]} ...",
        "failed: tsan/accord_unit_told_test: Slot.holds",
        "    tests/unit/slot_test.cpp:7 Expected equality of these values:   1   2",
        "failed: tsan/unit_told.2/accord_unit_told_test: Slot.holds",
        "    tests/unit/slot_test.cpp:7 Expected equality of these values:   1   2",
        "failed: tsan: unit_crash",
        "    Subprocess aborted in Ring.turns: [ RUN      ] Ring.turns",
        "failed: tsan: unit_late",
        "    Timeout in Ring.ends: [ RUN      ] Ring.ends",
        "failed: tsan: unit_race",
        "    Failed in Group.closes: WARNING: ThreadSanitizer: data race (pid=12) SUMMARY: ThreadSanitizer: data race "
        "/src/comm/group.cpp:12:3 in accord::close()",
        "failed: stage ThreadSanitizer: exit code 8",
        "===== 7 failed, 3 passed, 1 skipped in 65.00s (0:01:05) =====",
    ]
    assert (summary.returncode, summary.stderr) == (1, "")
