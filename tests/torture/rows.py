"""The rows of the table, in order."""

from torture.kills import kills
from torture.report import RowFunction

ROWS: dict[str, tuple[str, RowFunction]] = {
    "kills": ("kill -9 while putting and opening", kills),
}
