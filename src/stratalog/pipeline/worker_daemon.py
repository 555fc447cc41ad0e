"""Spark's worker daemon (`python -m stratalog.pipeline.worker_daemon`), quiet when the JVM has gone away.

A worker that is idle when the session ends, or that Spark reaps, flushes into a closed socket; pyspark prints that
`BrokenPipeError` with its traceback on the user's terminal. Nobody is left to be told, so the worker just ends. Imports
nothing but pyspark's daemon: it forks the workers, and threads must not exist before.
"""

import socket

from pyspark import daemon


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve one worker's socket; 1, the code for "do not reuse", if the other end is gone."""
    try:
        return _pyspark_worker(sock, authenticated)
    except BrokenPipeError:
        return 1


_pyspark_worker = daemon.worker

if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
