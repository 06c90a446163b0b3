"""`accord tune` and the table that it writes, as a user sees them."""

import json
import os
import re
import signal
from xml.etree import ElementTree

import pytest
from accord_command import BUILD, accord, clean_environment, end, start_accord, wait_until

pytestmark = pytest.mark.alone

SHORT = ("--seconds", "0.001", "--quick")
HEAD = "# accord tuning table 1"
SVG = "{http://www.w3.org/2000/svg}"


def tuned(path, *arguments: object, output: bool = False):
    """Returns the table, or what the command has printed."""
    result = accord("tune", *arguments, "-o", path, *SHORT, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout if output else path.read_text()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "tuned.table"
    tuned(path, "all_reduce", "barrier", "send_recv", "--max", "4k")
    return path


def this_processor(text: str) -> str:
    return re.search("^# processor: (.*)$", text, re.MULTILINE).group(1)


def handmade(path, rules: str, processor: str):
    head = f"{HEAD}\n# version: 0\n# processor: {processor}\n# cores: 2\n# ranks: 2\n# measured: 2026-01-01\n"
    path.write_text(f"{head}{rules}\n# end\n")
    return path


def test_the_file_records_where_it_was_measured_and_covers_every_size_once(table):
    text = table.read_text()
    assert text.startswith(HEAD)
    assert text.endswith("# end\n")
    assert "# ranks: 2\n" in text
    ends = re.findall(
        r"^(?:# )?all_reduce\[ranks=2-2,oversubscribed=(?:yes|no),registered=no\]:(\w+)-(\w+)[= ]", text, re.MULTILINE
    )
    assert ends[0][0] == "0"
    assert ends[-1][1] == "inf"
    assert [to for _, to in ends[:-1]] == [start for start, _ in ends[1:]]
    assert not table.with_name(table.name + ".partial").exists()


def test_a_communicator_uses_the_tuned_table(table):
    result = accord(
        "bench",
        "all_reduce",
        "--min",
        8,
        "--max",
        "4k",
        "--factor",
        8,
        "--seconds",
        "0.002",
        "--json",
        "-",
        env=clean_environment(ACCORD_SELECT=f"@{table}"),
    )
    assert result.returncode == 0, result.stderr
    assert all(row["wrong"] == 0 for row in json.loads(result.stdout)["results"])


def test_why_names_the_file_and_the_line(table, tmp_path):
    path = handmade(
        tmp_path / "mine.table", "# a remark\nall_reduce:0-1k=ring;  # fast?", this_processor(table.read_text())
    )
    for environment, option in (({"ACCORD_SELECT": f"@{path}"}, ()), ({}, ("--select", f"@{path}"))):
        result = accord("plan", "why", "all_reduce", "512", "--json", *option, env=clean_environment(**environment))
        assert result.returncode == 0, result.stderr
        decides = [rule for rule in json.loads(result.stdout)["rules"] if rule["decides"]]
        assert decides == [{"rule": "all_reduce:0-1k=ring", "table": f"{path}:8", "decides": True, "reason": "matches"}]


def test_rules_after_the_file_take_precedence(table, tmp_path):
    path = handmade(tmp_path / "mine.table", "all_reduce:0-1k=ring;", this_processor(table.read_text()))
    result = accord("plan", "why", "all_reduce", "512", "--json", "--select", f"@{path};all_reduce:0-1k=one_shot")
    answer = json.loads(result.stdout)
    assert answer["algorithm"] == "one_shot"
    assert answer["rules"][0]["table"] == "--select"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace("# end\n", ""), "it is cut off"),
        (lambda text: text.replace(HEAD, "all_reduce:0-inf=ring"), "it is not a tuning table"),
        (lambda text: text.replace(HEAD, "# accord tuning table 2"), "a tuning table of another version"),
        (lambda text: re.sub("# processor: .*", "# processor: Z80", text), 'was measured on "Z80"'),
        (lambda text: text.replace("# end", "all_reduce:0-1k=rong;\n# end"), 'did you mean "ring"'),
        (lambda text: text.replace("# ranks: 2\n", ""), 'line 5: expected "# ranks: NUMBER", found "# measured: '),
        (
            lambda text: text.replace("# version:", "# versoin:"),
            'line 2: expected "# version: VERSION", found "# versoin: ',
        ),
        (
            lambda text: re.sub("# measured: .*", "# measured:", text),
            'line 6: expected "# measured: DAY", found "# measured:"',
        ),
        (lambda text: text.replace("# cores: ", "# cores: -"), 'line 4: expected "# cores: NUMBER", found "# cores: -'),
        (lambda text: text + "all_reduce:0-inf=ring\n", '"all_reduce:0-inf=ring" follows the line "# end"'),
        (lambda text: text + "# a remark\n", '"# a remark" follows'),
        (lambda text: text + text, f'"{HEAD}" follows'),
        (lambda text: text.replace("# end", "# ranks: 4\n# end"), '"# ranks: 4" belongs to the head'),
        (lambda text: text.replace("# end", "# End"), "it is cut off"),
    ],
)
def test_a_damaged_or_foreign_file_is_rejected(table, tmp_path, spoil, message):
    path = tmp_path / "spoiled.table"
    path.write_text(spoil(table.read_text()))
    for command in (("bench", "barrier", "--seconds", "0.002"), ("plan", "why", "barrier")):
        refused = accord(*command, env=clean_environment(ACCORD_SELECT=f"@{path}"))
        assert refused.returncode != 0
        assert message in refused.stderr
        assert str(path) in refused.stderr


def test_an_unknown_algorithm_is_reported_with_its_line(table, tmp_path):
    path = handmade(tmp_path / "mine.table", "\nbarrier:0-inf=dirct;", this_processor(table.read_text()))
    refused = accord("plan", "why", "barrier", env=clean_environment(ACCORD_SELECT=f"@{path}"))
    assert "line 8, at character 15" in refused.stderr


def test_ranks_with_different_files_are_reported(table, tmp_path):
    rules = [f"all_reduce:0-{kib}k={name};" for name in ("ring", "one_shot") for kib in range(1, 20)]
    paths = [
        handmade(tmp_path / f"{i}.table", "\n".join(rules[i:]), this_processor(table.read_text())) for i in range(2)
    ]
    program = tmp_path / "program.py"
    program.write_text(
        "import os, accord\n"
        f"paths = {[str(path) for path in paths]}\n"
        "try:\n"
        "    accord.Communicator.from_environment(select='@' + paths[int(os.environ['RANK'])])\n"
        "except accord.Mismatch as error:\n"
        "    print('raised:', error)\n"
    )
    result = accord("run", "-n", 2, program, env=clean_environment(PYTHONPATH=str(BUILD / "python")))
    assert result.stdout.count("raised:") == 2, result.stdout + result.stderr
    assert "bytes with the hash" in result.stdout


def test_a_file_that_cannot_be_written_is_reported_before_anything_is_measured(tmp_path):
    for path, code in ((tmp_path / "absent/table", 1), (tmp_path, 1), ("-", 2)):
        refused = accord("tune", "--seconds", 3600, "-o", path, timeout=30)
        assert refused.returncode == code
        assert ("--output must be a file" if path == "-" else str(path)) in refused.stderr
    plot = tmp_path / "absent/tuned.svg"
    refused = accord("tune", "--seconds", 3600, "-o", tmp_path / "tuned.table", "--plot", plot, timeout=30)
    assert refused.returncode == 1 and str(plot) in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_resumes_where_it_stopped(tmp_path):
    path = tmp_path / "tuned.table"
    partial = tmp_path / "tuned.table.partial"
    arguments = ("tune", "all_reduce", "--min", 8, "--max", "1k", "--seconds", 0.4, "--quick", "-o", path)
    job = start_accord(*arguments, start_new_session=True)
    try:
        wait_until(partial.exists, "the first size")
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(timeout=60) == 130
        assert "continues from there" in job.stderr.read()
    finally:
        end(job)
    assert not path.exists()
    kept = json.loads(partial.read_text())
    # A resumed run uses earlier measurements as they are, so an impossible time decides the result.
    first = kept["points"][0]
    first["timings"][0]["rounds"] = [1.0] * 7
    first["timings"].append({"candidate": "ring", "algorithm": "ring", "rounds": [1e-9] * 7})
    partial.write_text(json.dumps(kept))
    result = accord(*arguments, timeout=120)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^all_reduce\[.*\]:0-\w+=ring;  # 1 ns at 8 B, by default 1 s", path.read_text(), re.MULTILINE)
    assert not partial.exists()


def test_json_and_the_plot_have_the_times_of_all_candidates(tmp_path):
    table, plot = tmp_path / "tuned.table", tmp_path / "tuned.svg"
    answer = json.loads(tuned(table, "broadcast", "--max", "2k", "--json", "--plot", plot, output=True))
    assert answer["table"] == str(table)
    assert answer["ranks"] == 2
    points = answer["collectives"]["broadcast"]
    assert [point["bytes"] for point in points] == [8, 128, 2048]
    for point in points:
        assert point["default"] in ("packet", "direct")
        assert point["seconds"]["default"] > 0
        assert point["chosen"] in point["seconds"]
    candidates = list(dict.fromkeys(name for point in points for name in point["seconds"]))
    picture = ElementTree.parse(plot).getroot()
    words = [text.text for text in picture.iter(f"{SVG}text")]
    assert words[0].startswith("accord tune: 2 ranks")
    for name in ("time, us", "bus bandwidth, GB/s", *candidates):
        assert name in words
    assert len(list(picture.iter(f"{SVG}polyline"))) == 2 * len(candidates)


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (("--plot", "-"), {}, "--plot must be a file"),
        (("all_reduc",), {}, 'did you mean "all_reduce"?'),
        (("--min", "8k", "--max", "4k"), {}, "not from 8k to 4k"),
        ((), {"ACCORD_SELECT": "all_reduce:0-inf=ring"}, "unset ACCORD_SELECT"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, environment, message):
    refused = accord("tune", *arguments, env=clean_environment(**environment))
    assert refused.returncode == 2
    assert message in refused.stderr
