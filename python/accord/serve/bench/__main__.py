"""`accord bench serve`: python -m accord.serve.bench."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from accord.serve.bench.options import LoadOptions, parse_load_options

_FAILURE = 1
_INTERRUPTED = 130
_PROGRESS_SECONDS = 0.5


def main() -> int:
    options = parse_load_options(sys.argv[1:])
    missing = [name for name in ("h11", *(("matplotlib",) if options.plot else ())) if not _has(name)]
    if missing:
        return _fail(f"needs the Python package {missing[0]}")
    from accord.serve.bench.client import ServerError
    from accord.serve.bench.workload import read_conversations

    try:
        conversations = None if options.dataset is None else read_conversations(options.dataset)
        for path in (options.plot, Path(options.json) if options.json not in (None, "-") else None):
            if path is not None:
                path.touch()  # now, so that no measurement is lost at the end
        return _run(options, conversations)
    except ServerError as error:
        return _fail(f"{options.url.geturl()}: {error}")
    except (OSError, ValueError) as error:
        return _fail(str(error))


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _fail(message: str) -> int:
    print(f"accord bench serve: {message}", file=sys.stderr)
    return _FAILURE


def _run(options: LoadOptions, conversations: list[tuple[str, str]] | None) -> int:
    from accord.serve.bench.client import Client
    from accord.serve.bench.load import Measurement, Target, measure
    from accord.serve.bench.workload import Workload

    workload = Workload(options.prompt_tokens, options.answer_tokens, conversations)
    measurements: list[Measurement] = []
    client = Client(options.url, options.timeout)
    target = Target(options, client)

    async def run_all() -> None:
        characters = await target.prepare(workload, random.Random(options.seed))
        for clients, rate in [(number, None) for number in options.clients] + [(None, rate) for rate in options.rates]:
            measurement = Measurement(clients, rate, options.requests_of(clients))
            measurements.append(measurement)
            # An equal seed for each, but no equal prompts, which the server might have in its cache.
            draw = random.Random(f"{options.seed} {clients} {rate}")
            with _progress(measurement):
                await measure(target, measurement, workload.prompts(draw, characters), draw, options.seconds)
        client.close()

    interrupted = False
    try:
        asyncio.run(run_all())
    except KeyboardInterrupt:
        interrupted = True
    except BaseExceptionGroup as group:  # of the tasks of a measurement, none of which is expected to fail
        raise group.exceptions[0] from None
    return _report(options, target.model, [one for one in measurements if one.outcomes], interrupted)


def _report(options: LoadOptions, model: str, measurements: list, interrupted: bool) -> int:
    from accord.serve.bench.plot import draw
    from accord.serve.bench.report import summary, table

    summaries = [summary(one) for one in measurements]
    url = options.url.geturl()
    if options.json != "-":
        print(f"{url}, model {model}")
        print(table(summaries))
    if options.json is not None:
        whole = {"url": url, "model": model, "chat": options.chat, "seed": options.seed, "interrupted": interrupted}
        text = json.dumps(whole | {"measurements": summaries}, indent=1) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            Path(options.json).write_text(text, encoding="utf-8")
    if options.plot is not None and summaries:
        draw(measurements, f"{url}, model {model}", options.plot)
    if interrupted:
        requests = sum(one["requests"] for one in summaries)
        print(f"accord bench serve: interrupted after {requests} requests", file=sys.stderr)
        return _INTERRUPTED
    return 0 if any(one["answered"] for one in summaries) else _fail("no request was answered")


@contextlib.contextmanager
def _progress(measurement) -> Iterator[None]:
    """Shows the requests that have ended on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    task = asyncio.create_task(_show(measurement))
    try:
        yield
    finally:
        task.cancel()
        print("\r\033[K", end="", file=sys.stderr, flush=True)


async def _show(measurement) -> None:
    load = f"{measurement.clients} clients" if measurement.rate is None else f"{measurement.rate:g} requests/s"
    while True:
        ended = f"{len(measurement.outcomes)} of {measurement.requests} requests"
        print(f"\r\033[K{load}: {ended}", end="", file=sys.stderr, flush=True)
        await asyncio.sleep(_PROGRESS_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
