"""The benchmark: every path of the library beside the machine's own limit, taken in the same round.

`python -m bench` runs everything and ends with one table; `--help` shows the options, docs/benchmarks.md the method.
"""
