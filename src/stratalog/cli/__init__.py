"""The command `stratalog`: the only floor that prints and reads the environment.

Command modules import at their top only what `--help` needs; kernels, Arrow, stores and Spark are imported by the
functions that use them.
"""
