"""Collectives of two ranks on two hosts (network namespaces, TCP): accord, Open MPI, and ucx_perftest's rate of the
link.

all_reduce is compared with "link": the time in which ucx_perftest sends as many bytes in one direction, which is the
minimum that each rank must send. --rate slows the link down, so that the link is the limit, and not the cores that
both hosts share. Open MPI runs over btl tcp and over UCX's tcp, each with its own choice of algorithms, ring and
recursive doubling.

Then, on hosts of several ranks, accord is measured with its default table, with plans in which each rank communicates
with all others, and with hierarchical plans. Needs root.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from bench import report
from bench.contender import Contender, free_port

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/python/support"))
from hosts import Hosts, why_not

CASES = [("all_reduce", size) for size in (8, 1 << 10, 8 << 10, 128 << 10, 2 << 20, 64 << 20)]
CASES += [("broadcast", 64 << 20), ("all_gather", 2 << 20), ("barrier", 0)]
ADDRESSES = ("10.83.0.1", "10.83.0.2")
MPI = {
    "openmpi tcp": ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0"),
    "openmpi ucx": (
        *("--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"),
        *("-x", "UCX_TLS=tcp,self", "-x", "UCX_NET_DEVICES=eth0"),
    ),
}
ALGORITHMS = {"": (), ", recursive doubling": ("3",), ", ring": ("4",)}
SHAPES = {"2 x 2": [0, 0, 1, 1], "3 x 2": [0, 0, 1, 1, 2, 2], "2 x 4": [0] * 4 + [1] * 4}
SHARED_SIZES = (64, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20)
SHARED = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "all_reduce")
FLAT = (
    "barrier:0-inf=direct;broadcast:0-2k=packet,2k-inf=direct@256k;reduce:0-2k=packet,2k-32k=direct,32k-inf=two_shot;"
    "all_gather:0-2k=packet,2k-8m=direct@256k,8m-inf=direct;reduce_scatter:0-2k=packet,2k-inf=direct;"
    "all_to_all:0-2k=packet,2k-inf=direct;all_reduce:0-2k=packet,2k-inf=two_shot"
)
TABLES = {"accord": "", "flat": FLAT, "hierarchical": ";".join(f"{c}:0-inf=hierarchical" for c in (*SHARED, "barrier"))}
TIMES_AS_FAST = 0.85  # of the faster of Open MPI and the link, for 64 MiB


def iterations_for(size: int) -> int:
    return max(2, min(3000, (64 << 20) // max(size, 1024)))


def mpi_commands(hosts: Hosts, program: Path, arguments: tuple[str, ...], directory: Path) -> list:
    agent = directory / "agent"  # replaces ssh: maps an address to the namespace
    lines = [f'{address}) exec {" ".join(hosts.prefix(h))} sh -c "$*";;' for h, address in enumerate(ADDRESSES)]
    agent.write_text("#!/bin/sh\nhost=$1; shift\ncase $host in\n" + "\n".join(lines) + "\nesac\n")
    agent.chmod(0o755)
    launch = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "2", "--map-by", "node"]
    launch += ["-H", ",".join(f"{address}:1" for address in ADDRESSES), "--mca", "plm_rsh_agent", str(agent)]
    launch += ["--mca", "oob_tcp_if_include", "eth0", *arguments]
    return [([*hosts.prefix(0), *launch, str(program)], {})]


def link_seconds(hosts: Hosts, size: int) -> float:
    """Returns ucx_perftest's time for `size` bytes in one direction: the better of tag matching and active messages."""
    best = float("inf")
    for test in ("tag_bw", "ucp_am_bw"):
        arguments = ["ucx_perftest", "-t", test, "-s", "1048576", "-n", "500", "-w", "20"]
        environment = ["env", "UCX_TLS=tcp,self"]
        server = subprocess.Popen(
            [*hosts.prefix(1), *environment, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(50):  # until it listens
            done = subprocess.run(
                [*hosts.prefix(0), *environment, *arguments[:1], ADDRESSES[1], *arguments[1:]],
                capture_output=True,
                text=True,
                check=False,
            )
            if found := re.search(r"Final:\s+\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+([\d.]+)", done.stdout):
                best = min(best, size / (float(found[1]) * (1 << 20)))
                break
            time.sleep(0.1)
        server.kill()
        server.wait()
    return best


def two_ranks(options: argparse.Namespace, results: list[dict]) -> None:
    hosts = Hosts(2)
    if options.rate:
        hosts.slow_down(options.rate)
    jobs = {}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        try:
            port = str(free_port())
            ranks = [
                {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": port} for r in range(2)
            ]
            accord = str(options.build / "bin/bench_collectives_accord")
            commands = [([*hosts.prefix(r), accord], ranks[r]) for r in range(2)]
            jobs["accord"] = Contender(commands, 2, directory / "accord")
            mpi = options.build / "bin/bench_collectives_openmpi"
            for transport, parameters in MPI.items():
                for algorithm, number in ALGORITHMS.items():
                    tuned = ("--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm")
                    arguments = (*parameters, *((*tuned, *number) if number else ()))
                    name = transport + algorithm
                    try:
                        commands = mpi_commands(hosts, mpi, arguments, directory)
                        jobs[name] = Contender(commands, 2, directory / name)
                    except (RuntimeError, OSError) as error:
                        print(f"left out: {error}")
            for case in CASES:
                collective, size = case
                tuned_too = collective == "all_reduce"
                measures = {
                    name: partial(job.measure, collective, size, iterations_for(size))
                    for name, job in jobs.items()
                    if tuned_too or "," not in name
                }
                if tuned_too and size >= 2 << 20:
                    measures["link"] = lambda size=size: 1e6 * link_seconds(hosts, size)
                medians = report.in_turn(measures, options.rounds)
                peers = [value for name, value in medians.items() if name != "accord"]
                limit = min(peers) / TIMES_AS_FAST if case == ("all_reduce", 64 << 20) and peers else None
                results.append(report.result("hosts", f"{collective} {size} B", "us", medians, limit))
                report.progress(len(results), len(CASES), f"two ranks {collective} {size}")
        finally:
            for job in jobs.values():
                job.close()
            hosts.close()


def several_ranks_a_host(options: argparse.Namespace, shape: str, results: list[dict]) -> None:
    host_of = SHAPES[shape]
    hosts, jobs = Hosts(max(host_of) + 1), {}
    cases = [("barrier", 0)] + [(collective, size) for collective in SHARED for size in SHARED_SIZES]
    with tempfile.TemporaryDirectory() as temporary:
        try:
            for name, table in TABLES.items():
                size, port = str(len(host_of)), str(free_port())
                where = {"WORLD_SIZE": size, "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": port, "ACCORD_SELECT": table}
                accord = str(options.build / "bin/bench_collectives_accord")
                commands = [([*hosts.prefix(h), accord], {**where, "RANK": str(r)}) for r, h in enumerate(host_of)]
                jobs[name] = Contender(commands, len(host_of), Path(temporary) / name)
            for collective, size in cases:
                count = max(2, iterations_for(size) // 8)
                measures = {name: partial(job.measure, collective, size, count) for name, job in jobs.items()}
                medians = report.in_turn(measures, options.rounds)
                results.append(report.result("hosts", f"{shape} {collective} {size} B", "us", medians))
                report.progress(len(results), len(CASES) + len(cases) * len(SHAPES), f"{shape} {collective} {size}")
        finally:
            for job in jobs.values():
                job.close()
            hosts.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench hosts", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/hosts.json"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", help="limit of what each of the two hosts sends, in tc's notation: 2gbit")
    parser.add_argument("--only", choices=("two ranks", *SHAPES), help="one of the parts")
    options = parser.parse_args()
    if reason := why_not():
        print(f"left out: {reason}")
        return 0
    results: list[dict] = []
    if options.only in (None, "two ranks"):
        two_ranks(options, results)
    for shape in SHAPES:
        if options.only in (None, shape):
            several_ranks_a_host(options, shape, results)
    report.write("hosts", results, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
