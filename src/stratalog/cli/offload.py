"""`stratalog offload`: copy what a store holds to a tier, with Spark."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.output import clean, pairs, seconds_text, show_json, size_text, tell
from stratalog.cli.place import JsonFlag, StoreArgument, given_path, warm_up
from stratalog.cli.progress import Progress
from stratalog.cli.streams import shows_what_is_done
from stratalog.errors import counted

if TYPE_CHECKING:
    from stratalog.pipeline.offload import OffloadReport

EXAMPLES = """
stratalog offload data/store data/tier
stratalog offload data/store data/tier --broker broker-a --batch-mb 256"""
_NAMED_MAX = 8


def offload(
    store: StoreArgument,
    tier: Annotated[
        Path,
        typer.Argument(parser=given_path, metavar="TIER", help="Directory of the tier; created if it is not there."),
    ],
    cluster: Annotated[str | None, typer.Option("--cluster", help="Cluster name in the tier.")] = None,
    broker: Annotated[
        str | None, typer.Option("--broker", help="Broker name in the tier; the store's directory name if not given.")
    ] = None,
    batch_mb: Annotated[int, typer.Option("--batch-mb", min=1, help="Megabytes of log in a batch.")] = 256,
    compact: Annotated[
        bool | None,
        typer.Option("--compact/--no-compact", help="Compact the index at the end, or not; else when there is enough."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy to the tier whatever it does not hold yet.

    The store is only read and may be in use. Each batch is committed as a whole, exactly once: a run that was stopped
    goes on where it was, and calling it again copies what has come since.
    """
    from stratalog.pipeline.offload import DEFAULT_CLUSTER
    from stratalog.pipeline.offload import offload as copy

    warm_up()
    tell("starting Spark")
    with Progress("offload") as progress:
        report = copy(
            store,
            str(tier),
            cluster=cluster or DEFAULT_CLUSTER,
            broker=broker,
            max_bytes_per_trigger=batch_mb * 1_000_000,
            compact_index=compact,
            progress=lambda state: progress(state.log_size, state.log_size_total, state.record_count),
        )
    done = f"{counted(report.record_count, 'message')} copied to {tier}"
    with shows_what_is_done(done):
        if as_json:
            show_json(asdict(report))
        else:
            _show(report, tier)


def _show(report: "OffloadReport", tier: Path) -> None:
    stays = {}
    if report.passed_over:
        stays["passed over"] = (
            f"{counted(sum(report.passed_over.values()), 'message')} of queues that a tier cannot have: "
            + ", ".join(f"{clean(name)} ({count})" for name, count in sorted(report.passed_over.items())[:_NAMED_MAX])
        )
    if report.left_out:
        named = ", ".join(f"{clean(topic)} ({count:,})" for topic, count in list(report.left_out.items())[:_NAMED_MAX])
        stays["left out"] = f"batch topics, light queues and the broker's own topics stay local: {named}"
    if not report.record_count:
        print(pairs({"copied": "nothing new"} | stays) if stays else "the tier holds everything already")
        return
    rows = {
        "copied": f"{counted(report.record_count, 'message')}, {size_text(report.tier_size)} in "
        f"{counted(report.batch_count, 'commit')}",
        "to": f"{tier} (cluster {report.cluster}, broker {report.broker})",
        "time": f"{seconds_text(report.seconds)} ({size_text(report.log_size / max(report.seconds, 1e-9))}/s)",
    }
    if report.lost_count:
        rows["gaps"] = f"{counted(report.lost_count, 'message')} were damaged or gone before they could be copied"
    print(pairs(rows | stays))
