"""The benchmarks: `python -m bench.NAME` in the root of the repository runs one; README.md describes them."""
