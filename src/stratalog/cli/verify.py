"""`stratalog verify`: check every record, queue unit and index item of a store."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.output import (
    before_log,
    clean,
    complain,
    damaged_text,
    missing_json,
    missing_rows,
    pairs,
    seconds_text,
    show_json,
    size_text,
)
from stratalog.cli.place import ConfOption, JsonFlag, SettingsOption, StoreArgument, settings_of, warm_up
from stratalog.cli.progress import Progress
from stratalog.errors import StratalogError, command, counted

if TYPE_CHECKING:
    from stratalog.tools.verify_report import VerifyReport

EXAMPLES = """
stratalog verify data/store
stratalog verify data/store --json | jq .problems"""

DAMAGED, UNREADABLE = 1, 2
"""Exit codes: a problem was found; the store could not be checked."""


def verify(
    store: StoreArgument,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many problems to print at most.")] = 20,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Files to look at at once; one per processor if not given.")
    ] = None,
    conf: ConfOption = None,
    given: SettingsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Check every record, queue unit and index item of a store.

    Body CRCs and the chains of the index are checked, too; queues and index are compared with the log, and every file
    with the others. Nothing is changed, nothing is recovered first, and a broker may be running.

    Exit code 0: whole. 1: a problem was found, or a file cannot be read. 2: the call is wrong, or nothing of the log
    can be read.
    """
    warm_up()
    from stratalog.tools.verify import verify as check

    begin = time.perf_counter()
    try:
        with Progress("verify") as progress:
            report = check(store, settings=settings_of(given, conf), threads=threads, progress=progress)
    except StratalogError as error:
        complain(str(error))
        raise typer.Exit(UNREADABLE) from None
    seconds = time.perf_counter() - begin
    if as_json:
        show_json(
            {"ok": report.ok, "seconds": round(seconds, 3)}
            | asdict(report)
            | {name: missing_json(getattr(report, name)) for name in ("missing", "lost_before", "damaged_properties")}
        )
    else:
        print(summary(report, seconds))
        show_problems(report, limit)
    if not report.ok:
        raise typer.Exit(UNREADABLE if report.is_log_unreadable else DAMAGED)


def summary(report: "VerifyReport", seconds: float) -> str:
    """What was checked, in a few lines."""
    size = report.log_end - report.log_begin
    files = counted(report.log_file_count, "file")
    rows = {
        "log": f"{counted(report.record_count, 'record')}, {size_text(size)} in {files}",
        "queues": f"{counted(report.unit_count, 'unit')} in {counted(report.queue_count, 'queue')}",
        "index": f"{counted(report.index_item_count, 'item')} in {counted(report.index_file_count, 'file')}",
        "time": f"{seconds_text(seconds)} ({size_text(size / max(seconds, 1e-9))}/s)",
    }
    if report.units_behind or report.index_items_behind:
        rows["behind"] = (
            f"{counted(report.units_behind, 'unit')} and {counted(report.index_items_behind, 'index item')} "
            "to be written: the store is open, or was not closed; opening it for writing adds them"
        )
    rows |= missing_rows(report.missing, report.lost_before)
    if "missing" in rows:
        rows["missing"] += f"; lost before, or {command('repair', report.root)} finds their records"
    if report.damaged_properties:
        rows["damaged"] = damaged_text(report.damaged_properties)
    if report.gone_count:
        rows["before it"] = before_log(report.gone_count)
    rows["result"] = "no problem" if report.ok else counted(report.problem_count, "problem")
    return pairs(rows)


def show_problems(report: "VerifyReport", limit: int) -> None:
    """Notes and problems, each with its place and what to do."""
    for note in report.notes:
        print(f"  note: {clean(note)}")
    for problem in report.problems[:limit]:
        print(
            f"\n{clean(problem.path)} at byte {problem.position:,}\n"
            f"  expected  {clean(problem.expected)}\n"
            f"  found     {clean(problem.found)}\n"
            f"  do        {problem.next_step}"
        )
    if report.problem_count > limit:
        print(f"\n… and {report.problem_count - limit:,} more (--limit shows more, --json the first 1,000)")
