"""Answers that conform to schemas: how many of 1,000 over 20 schemas are valid, and what the masks cost.

The answers come from `accord serve`, sampled with temperature 1, and jsonschema validates them. The cost is that of a
step on two ranks, in interleaved runs with and without a mask. Fails if an answer is not valid, or if a mask
costs more than 5 %.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import jsonschema

from bench import report
from bench.structured.schemas import SCHEMAS

COST = 1.05


def serve(package: Path, ranks: int) -> tuple[subprocess.Popen, str]:
    """Starts the server and returns its URL once its ranks are ready."""
    command = [sys.executable, "-m", "accord.serve", package, "--ranks", str(ranks), "--port", "0"]
    command += ["--cache-tokens", "16384"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    url = ""
    assert server.stderr is not None
    for line in server.stderr:
        entry = json.loads(line)
        if entry["event"] == "listening":
            url = entry["url"]
        if entry["event"] == "ready":
            threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would stop the server
            return server, url
    raise RuntimeError("the server has ended")


def answer(url: str, model: str, name: str, seed: int) -> tuple[str, str, str]:
    """Returns the schema's name, the finish reason and the text of an answer."""
    text_format = {"type": "json_schema", "json_schema": {"name": name, "schema": SCHEMAS[name], "strict": True}}
    messages = [{"role": "user", "content": f"Write an example of: {name}. Answer in JSON."}]
    body = {"model": model, "messages": messages, "response_format": text_format, "seed": seed, "max_tokens": 600}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as response:
        (choice,) = json.load(response)["choices"]
    return name, choice["finish_reason"], choice["message"]["content"]


def reason_against(name: str, finish: str, text: str) -> str:
    """Returns why an answer is not valid; "" if it is."""
    if finish != "stop":
        return f"ended with {finish}"
    try:
        jsonschema.validate(json.loads(text), SCHEMAS[name], format_checker=jsonschema.FormatChecker())
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).splitlines()[0]
    return ""


def valid_answers(arguments: argparse.Namespace) -> list[str]:
    """Returns the invalid answers, with the reasons."""
    server, url = serve(arguments.package, arguments.ranks)
    model = arguments.package.name.removesuffix(".accord")
    tasks = [(name, seed) for seed in range(arguments.answers // len(SCHEMAS)) for name in SCHEMAS]
    begin = time.monotonic()
    try:
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            made = list(pool.map(lambda task: answer(url, model, *task), tasks))
    finally:
        server.terminate()
        server.wait()
    invalid = [f"{one[0]}: {reason}: {one[2]}" for one in made if (reason := reason_against(*one))]
    distinct = len({(name, text) for name, _, text in made})
    seconds = time.monotonic() - begin
    print(
        f"{len(made)} answers over {len(SCHEMAS)} schemas in {seconds:.0f} s: {len(invalid)} invalid, {distinct} differ"
    )
    return invalid


def costs(arguments: argparse.Namespace) -> list[dict]:
    command = [arguments.build / "python/accord/bin/accord", "run", "-n", "2", "--bind", "core", "--no-python"]
    command += [sys.executable, "-m", "bench.structured.rank", arguments.package, arguments.tokens, arguments.rounds]
    output = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout
    results = json.loads(output[output.index("[{") :])
    lines = []
    for result in results:
        medians = {"accord": 1e3 * result["masked"], "without a mask": 1e3 * result["plain"]}
        case = f"step of {result['sequences']}"
        lines.append(report.result("structured", case, "ms", medians, COST * medians["without a mask"]))
        print(f"{case}: median ratio {result['ratio']:.3f}; a mask takes {1e6 * result['mask']:.0f} us of its thread")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench structured", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/structured.json"))
    parser.add_argument("--package", type=Path, default=Path("build/demo/smollm2.accord"), help="`make demo` makes it")
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=2, help="of the server")
    parser.add_argument("--tokens", type=int, default=100, help="of a sequence, for the cost")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    lines = costs(arguments)
    invalid = valid_answers(arguments)
    print(*invalid[:20], sep="\n")
    report.write("structured", lines, arguments.output)
    if invalid or any(line["accord"] > line["limit"] for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    main()
