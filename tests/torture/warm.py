"""Imported by the server process from which writers are forked."""

from torture.writer import warm_up

warm_up()
