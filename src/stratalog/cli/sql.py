"""`stratalog sql`: one Spark SQL statement over a store, a tier, or both as one history."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.output import clean, cut, seconds_text, show_json, table, tell
from stratalog.cli.place import JsonFlag, given_path, warm_up
from stratalog.errors import CorruptData, counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXAMPLES = """
stratalog sql "SELECT topic, tags, count(*) FROM messages_meta GROUP BY ALL" --tier data/tier
stratalog sql "SELECT * FROM queues" --store data/store --tier data/tier --json"""

_CELL_WIDTH = 60


def sql(
    statement: Annotated[str, typer.Argument(metavar="STATEMENT", help="What to ask, in Spark's SQL.")],
    store: Annotated[
        Path | None, typer.Option("--store", parser=given_path, metavar="DIR", help="Directory of a local store.")
    ] = None,
    tier: Annotated[
        Path | None, typer.Option("--tier", parser=given_path, metavar="DIR", help="Directory of a tier.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Rows to show at most.")] = 1000,
    as_json: JsonFlag = False,
) -> None:
    """Ask a store or a tier in SQL, with Spark.

    Views: messages (every column), messages_meta (without body and properties: two to three times faster), queues. With
    --store and --tier, both are one history. With --json: one object a line.
    """
    if store is None and tier is None:
        raise typer.BadParameter("name what to ask with --store, --tier, or both")
    from stratalog.pipeline.session import spark_session
    from stratalog.pipeline.sql import run_sql

    warm_up()
    tell("starting Spark")
    session = spark_session()
    begin = time.monotonic()
    frame = run_sql(statement, path=store, tier=None if tier is None else str(tier.absolute()), spark=session)
    rows = _collected(frame, limit + 1)
    seconds = time.monotonic() - begin
    if as_json:
        for row in rows[:limit]:
            show_json(dict(zip(frame.columns, map(_plain, row), strict=True)))
    else:
        cells = [[_cell(value) for value in row] for row in rows[:limit]]
        numbers = [number for number, (_, kind) in enumerate(frame.dtypes) if _is_number(kind)]
        print(table([clean(name) for name in frame.columns], cells, right=numbers))
        more = "; there are more, --limit shows them" if len(rows) > limit else ""
        tell(f"{counted(len(rows[:limit]), 'row')} in {seconds_text(seconds)}{more}")


def _collected(frame: "DataFrame", count: int) -> list[tuple[Any, ...]]:
    """The first rows, times with their zone. What a task found wrong comes as an error of ours, without a traceback."""
    from pyspark.errors import PySparkException

    try:
        columns = frame.limit(count).toArrow().columns
    except PySparkException as error:
        raise CorruptData(_reason(str(error))) from error
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def _reason(text: str) -> str:
    """The sentence of our own error in what Spark says, else the first line of that."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith("stratalog.errors.")]
    return ours[-1] if ours else lines[0] if lines else "Spark failed without a word"


def _is_number(kind: str) -> bool:
    return kind.startswith(("tinyint", "smallint", "int", "bigint", "float", "double", "decimal"))


def _plain(value: Any) -> Any:
    """A value as JSON has it; bytes as text where they are UTF-8, else in hexadecimal."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex()
    return value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return cut(clean(str(_plain(value))), _CELL_WIDTH)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
