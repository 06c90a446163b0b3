"""Products with packed weights [8192, 2048]: one and few rows compared with a plain read of the same bytes, 512 rows
with oneDNN.

All cores share each product. "xf32" and "xint8" give the type in which the rows are multiplied, if it is not
bfloat16; "min" stands for minima, "g128" for groups of 128 instead of 32, "super" for scales of scales: GGUF's Q4_K,
Q5_K and Q6_K.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from bench import report
from bench.contender import Contender

# Fractions that must be reached: of the speed of a plain read for one row, and of oneDNN's in bfloat16 (float32 for
# f32) for 512 rows.
OF_READ = {"f32": 0.85, "bf16": 0.85, "int8": 0.85, "int4": 0.8, "int4min": 0.8}
OF_MATMUL = {"f32": 0.9, "bf16": 0.75, "int8": 0.75, "int4": 0.75}
FORMATS = [
    "f32",
    "bf16",
    "f16",
    "bf16xf32",
    "int8",
    "int8xf32",
    "int8xint8",
    "int4",
    "int4min",
    "int4xf32",
    "int4xint8",
    "nf4",
    "nf4xf32",
    "mxfp4",
    "mxfp4xf32",
    "mxfp4xint8",
    *(f"int{bits}super{rows}" for bits in (4, 5, 6) for rows in ("", "xf32", "xint8")),
]
PREFILL = [
    "f32",
    "bf16",
    "f16",
    "int8",
    "int8g128",
    "int8xint8",
    "int4",
    "int4g128",
    "int4min",
    "int4xint8",
    "int4super",
    "int6super",
]
ITERATIONS = 30


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench kernels", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--output", type=Path, default=Path("build/bench/kernels.json"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=report.cores())
    parser.add_argument("--formats", nargs="+", help="measure only these formats")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as directory:
        program = [str(arguments.build / "bin/bench_kernels_accord")]
        command = (program, {"THREADS": str(arguments.threads)})
        kernels = Contender([command], 1, Path(directory) / "kernels")

        def compare(case: str, product: tuple, peer: str, peer_command: tuple, share: float | None) -> None:
            measures = {"accord": partial(kernels.measure, *product), peer: partial(kernels.measure, *peer_command)}
            medians = report.in_turn(measures, arguments.rounds)
            limit = medians[peer] / share if share is not None else None
            results.append(report.result("kernels", case, "us", medians, limit))

        for name in arguments.formats or FORMATS:
            for rows in (1, 2, 4, 8):
                report.progress(len(results), 4 * len(FORMATS) + len(PREFILL), f"{name}, {rows} rows")
                product, read = (f"product-{name}", rows, ITERATIONS), (f"read-{name}", rows, ITERATIONS)
                compare(f"{name}, rows {rows}", product, "plain read", read, OF_READ.get(name) if rows == 1 else None)
        for name in arguments.formats or PREFILL:
            report.progress(len(results), 4 * len(FORMATS) + len(PREFILL), f"{name}, 512 rows")
            matmul = "matmul-f32" if name in ("f32", "f16") else "matmul-bf16"
            compare(f"{name}, rows 512", (f"product-{name}", 512, 3), "oneDNN", (matmul, 512, 3), OF_MATMUL.get(name))
        kernels.close()
    report.write("kernels", results, arguments.output)


if __name__ == "__main__":
    main()
