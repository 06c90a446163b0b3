"""The command python -m accord.gguf."""

from __future__ import annotations

import argparse

from accord.gguf.export import export_gguf
from accord.graph.errors import ExportError


def main() -> None:
    parser = argparse.ArgumentParser("python -m accord.gguf", description="Makes an engine package of a GGUF file.")
    parser.add_argument("file", help="the GGUF file")
    parser.add_argument("path", help="the package, NAME.accord")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="[float32]")
    arguments = parser.parse_args()
    try:
        export_gguf(arguments.file, path=arguments.path, dtype=arguments.dtype)
    except (ExportError, OSError) as error:
        raise SystemExit(f"accord.gguf: {error}") from error


if __name__ == "__main__":
    main()
