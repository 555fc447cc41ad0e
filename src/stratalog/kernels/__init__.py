"""Compiled loops over record bytes: scan, verify, encode, dispatch, gather, decode. No I/O, no clock.

Everything here is compiled by numba when it is first called (`warm.compile_all` does it at once) and imported only by
the functions that need it, so that starting the program stays instant.
"""
