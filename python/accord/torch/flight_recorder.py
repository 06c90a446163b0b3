"""Converts accord's flight records to torch's: files that torch's own analyzer reads.

    python -m accord.torch.flight_recorder dumps traces/rank_     # dumps: from ACCORD_DUMP_DIR or Communicator.dump()
    python -m torch.distributed.flight_recorder.fr_trace traces   # what torch makes of them

Calls have torch's names, prefixed with "gloo", because the analyzer rejects other backends. They have no stack
traces.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

VERSION = "2.10"
# The analyzer takes neighbors with the same number for calls made as one, so messages get numbers that no collective
# has.
_FIRST_MESSAGE = 1_000_000_000
_STATES = {"queued": "scheduled", "running": "started", "done": "completed", "failed": "started"}
#: Sizes of a call's input and output as multiples of its counted part, where n is the number of ranks.
_SIZES = {
    "all_gather": ("1", "n"),
    "reduce_scatter": ("n", "1"),
    "gather": ("1", "n"),
    "scatter": ("n", "1"),
    "all_to_all": ("n", "n"),
}
_DTYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
}

Process = tuple[str, int]  # a host name, and a process on it


def convert(dumps: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Returns torch's record of each rank that has a dump, keyed by its rank in the largest group.

    dumps: the objects of docs/diagnose.md#the-dump-format, of all ranks and groups of one job.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for dump in dumps:
        groups.setdefault(dump["communicator"], []).append(dump)
    if not groups:
        return {}
    members = {communicator: _members(of_group) for communicator, of_group in groups.items()}
    world = max(groups, key=lambda communicator: (len(members[communicator]), -groups[communicator][0]["created_ns"]))
    global_rank = {process: rank for rank, process in enumerate(members[world])}
    records: dict[int, dict[str, Any]] = {}
    names = _names(groups)
    for communicator, of_group in groups.items():
        ranks = [global_rank.get(process, -1) for process in members[communicator]]
        name, description = names[communicator], "default_pg" if communicator == world else "undefined"
        for dump in of_group:
            record = records.setdefault(
                ranks[dump["rank"]], {"version": VERSION, "pg_config": {}, "pg_status": {}, "entries": []}
            )
            record["pg_config"][name] = {"name": name, "desc": description, "ranks": str(ranks)}
            entries = [
                _entry(dump, order, operation, (name, description))
                for order in dump["orders"]
                for operation in order["operations"]
            ]
            record["pg_status"][name] = _status(entries)
            record["entries"] += entries
    records.pop(-1, None)
    for record in records.values():
        record["entries"].sort(key=lambda entry: entry["time_created_ns"])
        for number, entry in enumerate(record["entries"]):
            entry["record_id"] = number
            if entry["is_p2p"]:
                entry["p2p_seq_id"] = _FIRST_MESSAGE + number
    return records


def write(dumps: Path, prefix: str) -> list[Path]:
    """Converts the dumps in a folder to one file per rank, named `prefix` plus its rank, and returns the paths.

    Raises ValueError for a file that is not a dump, and FileNotFoundError if there is none.
    """
    found = sorted(dumps.glob("*.json"))
    if not found:
        raise FileNotFoundError(f"{dumps}: there is no dump of accord (*.json) in it")
    written = []
    for rank, record in sorted(convert(_read(path) for path in found).items()):
        path = Path(f"{prefix}{rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(record))
        written.append(path)
    return written


def _read(path: Path) -> dict[str, Any]:
    try:
        dump = json.loads(path.read_text())
        if dump["format"] == "accord flight log" and dump["version"] == 1:
            return dump
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{path}: this is not a dump of accord, or has another version")


def _members(dumps: list[Mapping[str, Any]]) -> list[Process]:
    """Returns the process of each rank of a group, including ranks without a dump."""
    hosts = {dump["ranks"][dump["rank"]]["host"]: dump["host"] for dump in dumps}
    return [(hosts.get(rank["host"], str(rank["host"])), rank["process"]) for rank in dumps[0]["ranks"]]


def _names(groups: Mapping[str, list[Mapping[str, Any]]]) -> dict[str, str]:
    """Returns the name of each group, followed by its id if a name was used more than once."""
    names = {communicator: dumps[0]["name"] for communicator, dumps in groups.items()}
    used = list(names.values())
    return {
        communicator: name if used.count(name) == 1 else f"{name}/{communicator}"
        for communicator, name in names.items()
    }


def _entry(
    dump: Mapping[str, Any], order: Mapping[str, Any], operation: Mapping[str, Any], group: tuple[str, str]
) -> dict[str, Any]:
    is_message = order["kind"] != "collectives"
    call = {"send": "send", "receive": "recv"}.get(order["kind"], operation["collective"])
    arrow = {"send": f"send {dump['rank']}->{order['peer']}", "recv": f"recv {dump['rank']}<-{order['peer']}"}.get(call)
    times = [operation[key] for key in ("queued_ns", "started_ns", "ended_ns") if operation[key] is not None]
    started, ended = operation["started_ns"], operation["ended_ns"]
    to_wall_clock = dump["taken_unix_ns"] - dump["taken_ns"]
    reads, writes = _SIZES.get(call, ("1", "1"))
    count = operation["count"]
    size = {"1": [[count]], "n": [[count * dump["size"]]]}
    dtype = _DTYPES.get(operation["dtype"], operation["dtype"])
    none: list[list[int]] = [[]]
    return {
        "record_id": 0,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": 0 if is_message else operation["number"],
        "p2p_seq_id": 0,
        "op_id": operation["number"],
        "profiling_name": f"gloo:{arrow or call}",
        "time_created_ns": min(times, default=dump["taken_ns"]) + to_wall_clock,
        "time_discovered_started_ns": None if started is None else started + to_wall_clock,
        "time_discovered_completed_ns": None if ended is None else ended + to_wall_clock,
        "duration_ms": None if started is None or ended is None else (ended - started) / 1e6,
        "input_sizes": none if call in ("recv", "barrier") else size[reads],
        "input_dtypes": [dtype],
        "output_sizes": none if call in ("send", "barrier") else size[writes],
        "output_dtypes": [dtype],
        "state": _STATES[operation["state"]],
        "retired": operation["state"] in ("done", "failed"),
        "timeout_ms": 0,
        "is_p2p": is_message,
        "frames": [],
    }


def _status(entries: list[dict[str, Any]]) -> dict[str, int]:
    collectives = [entry for entry in entries if not entry["is_p2p"]]

    def last(states: tuple[str, ...]) -> int:
        return max((entry["collective_seq_id"] for entry in collectives if entry["state"] in states), default=-1)

    return {
        "last_enqueued_collective": last(("scheduled", "started", "completed")),
        "last_started_collective": last(("started", "completed")),
        "last_completed_collective": last(("completed",)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m accord.torch.flight_recorder", description=__doc__.splitlines()[0])
    parser.add_argument("dumps", type=Path, help="folder with the dumps of all ranks")
    parser.add_argument("prefix", help="how the files that are written begin; the rank follows: traces/rank_")
    arguments = parser.parse_args()
    try:
        for path in write(arguments.dumps, arguments.prefix):
            print(path)
    except (OSError, ValueError) as error:
        sys.exit(f"accord.torch.flight_recorder: {error}")


if __name__ == "__main__":
    main()
