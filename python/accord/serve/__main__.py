"""`accord serve`: python -m accord.serve."""

from __future__ import annotations

import sys

from accord.serve.options import parse_options


def main() -> int:
    options = parse_options(sys.argv[1:])
    try:
        from accord.serve.server import run_server
        from accord.serve.supervisor import StartError
    except ModuleNotFoundError as missing:
        return _fail(f'needs the Python package {missing.name}; install accord with its extra "serve"')
    try:
        run_server(options)
    except (OSError, StartError, ValueError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:  # before the server has taken over the signals
        return 130
    return 0


def _fail(message: str) -> int:
    print(f"accord serve: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
