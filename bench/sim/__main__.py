"""accord sim's predictions against measurements: each algorithm that the default table selects for a collective, at 8 B
to 64 MB, on 2 and 4 ranks of this host, and on 2 to 4 hosts (network namespaces, TCP) with links of a given rate.

The machine's file comes from `accord sim calibrate`, which measures copies, signals, packets and messages, and none of
these collectives. `accord bench` measures the calls, and each prediction is of as many calls, one after the other, as
a sample of it has. Virtual cores share a cache at one time and not at another, so this host is calibrated before and
after each size. If the two calibrations differ in how long a signal takes, the size is measured again. The namespaces
need root.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bench import plot, report
from bench.contender import free_port
from bench.sim.accuracy import Point, median_error, pairs_in_order

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/python/support"))
from hosts import Hosts, why_not

COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"),
    "barrier",
)
DIVIDED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")  # sizes are those of one part
SIZES = (*(8 << shift for shift in range(0, 22, 3)), 64 << 20)
LARGEST = 64 << 20
MOST_CALLS = 64  # simulated one after the other; more change the mean no more
MEDIAN_ERROR = 10  # percent
WRONG_PAIRS = 5  # percent
SAME_STATE = 1.3  # times the shorter of two signals
MOST_ATTEMPTS = 4


@dataclass
class Setting:
    """Ranks that are measured and predicted: processes of this host, or one on each of several namespaces."""

    name: str
    accord: str
    ranks: int
    machine: Path
    hosts: Hosts | None = None
    calibration: list[str] = field(default_factory=list)  # the command; empty: the machine's file stays as it is
    points: list[Point] = field(default_factory=list)
    repeated: int = 0  # sizes that were measured again
    unsteady: int = 0  # sizes for which it did not help

    def run(self, *arguments: object) -> str:
        """Runs the command on all ranks and returns the output of rank 0."""
        command = [self.accord, *map(str, arguments)]
        if self.hosts is None:
            return output_of([*command, "-n", str(self.ranks)])
        return on_hosts(self.hosts, self.ranks, command)

    def calibrate(self) -> float:
        """Calibrates the machine and returns the seconds of a signal."""
        if not self.calibration:
            return 0.0
        return json.loads(output_of(self.calibration))["host"]["hop_seconds"]

    def predict(self, collective: str, size: int, *arguments: object) -> dict:
        command = [self.accord, "sim", "run", collective, size, "-n", self.ranks, "--machine", self.machine, "--json"]
        return json.loads(output_of([str(word) for word in (*command, *arguments)]))


def output_of(command: list[str], **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def on_hosts(hosts: Hosts, ranks: int, command: list[str]) -> str:
    """Runs the command with one rank on each host and returns the output of rank 0."""
    where = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "10.83.0.1", "MASTER_PORT": str(free_port())}
    environments = [{**os.environ, **where, "RANK": str(rank)} for rank in range(ranks)]
    others = [
        subprocess.Popen([*hosts.prefix(rank), *command], env=environments[rank], stdout=subprocess.DEVNULL)
        for rank in range(1, ranks)
    ]
    try:
        return output_of([*hosts.prefix(0), *command], env=environments[0])
    finally:
        for process in others:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def sizes_of(collective: str, ranks: int, sizes: list[int]) -> list[int]:
    if collective == "barrier":
        return [0]
    return [size for size in sizes if size * (ranks if collective in DIVIDED else 1) <= LARGEST]


def default_algorithms(setting: Setting, collective: str, sizes: list[int]) -> list[str]:
    """Returns the algorithms that the default table selects at any of the sizes, as a selection table writes them."""
    names = []
    for size in sizes:
        chosen = setting.predict(collective, size)
        names.append(chosen["algorithm"] + (f"@{chosen['slot_bytes']}" if chosen["slot_bytes"] else ""))
    return list(dict.fromkeys(names))


def measure(setting: Setting, collective: str, size: int, algorithms: list[str], options: argparse.Namespace) -> None:
    """Adds a point for each algorithm, which are measured in turns."""
    hop = setting.calibrate()
    for attempt in range(MOST_ATTEMPTS):
        points = points_of(setting, collective, size, algorithms, options)
        before, hop = hop, setting.calibrate()
        is_steady = max(before, hop) <= SAME_STATE * min(before, hop)
        if is_steady or attempt == MOST_ATTEMPTS - 1:
            break
    setting.points += points
    setting.repeated += attempt > 0
    setting.unsteady += not is_steady


def points_of(
    setting: Setting, collective: str, size: int, algorithms: list[str], options: argparse.Namespace
) -> list[Point]:
    """Measures the algorithms in turns and predicts them with the machine's file as it is."""
    command = ["bench", collective, "--json", "-", "--seconds", options.seconds]
    command += ["--min", max(size, 4), "--max", max(size, 4)]
    for name in algorithms:
        command += ["--algorithm", name]
    points = []
    for result in json.loads(setting.run(*command))["results"]:
        calls = min(MOST_CALLS, max(1, result["calls"] // result["samples"]))
        rule = f"{collective}:0-inf={result['contender']}"
        predicted = setting.predict(collective, size, "--select", rule, "--calls", calls)
        measured = result[f"{options.statistic}_seconds"]
        points.append(Point(setting.name, collective, result["contender"], size, measured, predicted["seconds"]))
    return points


def run(setting: Setting, options: argparse.Namespace) -> list[Point]:
    for collective in options.collectives:
        sizes = sizes_of(collective, setting.ranks, options.sizes)
        algorithms = default_algorithms(setting, collective, sizes)
        for size in sizes:
            report.progress(1, 2, f"{setting.name}: {collective} of {size} B")
            measure(setting, collective, size, algorithms, options)
    if setting.calibration:
        print(
            f"{setting.name}: sizes measured again, as signals became slower or faster: {setting.repeated},"
            f" of which unsteady to the end: {setting.unsteady}"
        )
    return setting.points


def how(options: argparse.Namespace) -> list[str]:
    return ["--seconds", str(options.seconds), "--statistic", options.statistic]


def on_this_host(options: argparse.Namespace, directory: Path) -> list[Point]:
    accord = str(options.build / "bin/accord")
    machine = directory / "host.toml"
    calibration = [accord, "sim", "calibrate", "-n", str(max(options.ranks)), "--statistic", options.statistic]
    calibration += ["--seconds", str(options.calibration_seconds), "-o", str(machine), "--json"]
    output_of(calibration)
    print(machine.read_text())
    points = []
    for ranks in options.ranks:
        points += run(Setting(f"{ranks} ranks", accord, ranks, machine, calibration=calibration), options)
    return points


def on_namespaces(options: argparse.Namespace, directory: Path) -> list[Point]:
    accord = str(options.build / "bin/accord")
    points = []
    for count in options.hosts:
        host, machine = directory / "host.toml", directory / f"{count}.toml"
        if not host.exists():
            output_of([accord, "sim", "calibrate", *how(options), "-o", str(host)])
        hosts = Hosts(count)
        try:
            hosts.slow_down(options.rate, "16kb")
            calibrate = [
                accord,
                "sim",
                "calibrate",
                "--network",
                str(host),
                "-n",
                "1",
                *how(options),
                "-o",
                str(machine),
            ]
            on_hosts(hosts, 2, calibrate)
            print(machine.read_text())
            points += run(Setting(f"{count} namespaces", accord, count, machine, hosts), options)
        finally:
            hosts.close()
    return points


def lines_of(points: list[Point]) -> list[dict]:
    return [
        report.result(
            "sim",
            f"{point.setting}: {point.collective} {point.size} B {point.algorithm}",
            "us",
            {"accord": 1e6 * point.measured, "predicted": 1e6 * point.predicted},
        )
        for point in points
    ]


def summary(points: list[Point]) -> list[dict]:
    settings = {name: [p for p in points if p.setting == name] for name in dict.fromkeys(p.setting for p in points)}
    lines = []
    for name, members in {**settings, "all": points}.items():
        limits = (MEDIAN_ERROR, WRONG_PAIRS) if name == "all" else (None, None)
        error = 100 * median_error(members)
        lines.append(report.result("sim", f"{name}: median error", "%", {"accord": error}, limits[0]))
        right, total = pairs_in_order(members)
        wrong = 100 * (total - right) / total if total else 0.0
        case = f"{name}: pairs in wrong order, of {total}"
        lines.append(report.result("sim", case, "%", {"accord": wrong}, limits[1]))
    return lines


def charts_of(points: list[Point]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Returns bytes and microseconds by setting and collective, and by algorithm, measured and predicted."""
    charts: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for point in points:
        if point.size == 0:
            continue
        series = charts.setdefault(f"{point.setting}: {point.collective}", {})
        for kind, seconds in (("", point.measured), ("predicted ", point.predicted)):
            series.setdefault(f"{kind}{point.algorithm}", []).append((point.size, 1e6 * seconds))
    return charts


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench sim", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/sim.json"))
    parser.add_argument("--collectives", nargs="+", default=COLLECTIVES, choices=COLLECTIVES)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--ranks", nargs="*", type=int, default=[2, 4], help="ranks on this host")
    parser.add_argument("--hosts", nargs="*", type=int, default=[2, 3, 4], help="namespaces, with a rank on each")
    parser.add_argument("--rate", default="1gbit", help="what each namespace may send, in tc's notation")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each algorithm at each size")
    parser.add_argument(
        "--calibration-seconds", type=float, default=0.02, help="for each primitive at each size, on this host"
    )
    parser.add_argument(
        "--statistic",
        choices=["median", "minimum"],
        default="median",
        help="of the samples of a call; the minimum is less disturbed by other programs",
    )
    options = parser.parse_args()
    points: list[Point] = []
    with tempfile.TemporaryDirectory() as directory:
        if options.ranks:
            points += on_this_host(options, Path(directory))
        if options.hosts and (reason := why_not()):
            print(f"left out: {reason}")
        elif options.hosts:
            points += on_namespaces(options, Path(directory))
    plot.draw("sim", "measured and predicted (dashed)", charts_of(points), options.output.with_suffix(".svg"))
    report.write("sim", lines_of(points) + summary(points), options.output)


if __name__ == "__main__":
    main()
