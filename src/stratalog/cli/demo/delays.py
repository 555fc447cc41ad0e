"""Step 6 of the demo: delays by carrier and month, by SQL over the messages in the tier."""

import time
from dataclasses import dataclass
from pathlib import Path

from stratalog.cli.demo.flights import TOPIC
from stratalog.cli.demo.journal import Journal, Step
from stratalog.cli.output import clean, seconds_text, table

QUERY = f"""
SELECT tags AS carrier, flight.month AS month, count(*) AS flights,
       count(flight.dep_delay) AS departed, sum(flight.dep_delay) AS minutes
FROM (SELECT tags, from_json(CAST(body AS STRING),
                             'month INT, dep_delay INT') AS flight
      FROM messages WHERE topic = '{TOPIC}')
GROUP BY carrier, month
""".strip()

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass
class Sum:
    """Flights, those that departed, and the minutes they were late in all (early ones count as negative)."""

    flights: int = 0
    departed: int = 0
    minutes: int = 0

    def add(self, other: "Sum") -> None:
        self.flights += other.flights
        self.departed += other.departed
        self.minutes += other.minutes

    @property
    def mean(self) -> float | None:
        """Mean departure delay in minutes; None when nothing departed."""
        return self.minutes / self.departed if self.departed else None


@dataclass
class Delays:
    """The answer, by (carrier, month) and summed up. Carriers are in order of their flights, the largest first."""

    cells: dict[tuple[str, int], Sum]
    names: dict[str, str]
    step: Step

    @property
    def carriers(self) -> list[str]:
        found = {carrier for carrier, _ in self.cells}
        return sorted(found, key=lambda carrier: (-self.of(carrier=carrier).flights, carrier))

    def of(self, *, carrier: str | None = None, month: int | None = None) -> Sum:
        """The sum over a carrier, a month, both, or everything."""
        total = Sum()
        for (other, number), cell in self.cells.items():
            if carrier in (None, other) and month in (None, number):
                total.add(cell)
        return total


def show_delays(tier: Path, journal: Journal) -> Delays:
    """Ask Spark, print the table and the chart."""
    from stratalog.pipeline.session import spark_session
    from stratalog.pipeline.source import MessageSource

    begin = time.monotonic()
    session = spark_session(streaming=True)
    session.dataSource.register(MessageSource)
    if time.monotonic() - begin > 1:
        print(f"      Spark started in {seconds_text(time.monotonic() - begin)}\n")
    print("\n".join(f"        {line}" for line in QUERY.splitlines()), flush=True)
    begin = time.monotonic()
    messages = session.read.format("stratalog").option("tier", str(tier.absolute())).load()
    messages.createOrReplaceTempView("messages")
    rows = session.sql(QUERY).collect()
    seconds = time.monotonic() - begin
    cells = {
        (row.carrier, row.month): Sum(row.flights, row.departed, row.minutes or 0)
        for row in rows
        if row.carrier is not None and row.month is not None
    }
    total = sum(cell.flights for cell in cells.values())
    delays = Delays(cells, journal.airlines, Step("SQL", total, _tier_size(tier), seconds))
    print(f"\n      mean departure delay in minutes, by carrier and month ({seconds_text(seconds)})\n")
    print(delay_table(delays))
    print("\n      mean departure delay in minutes, by month\n")
    print(month_chart(delays))
    return delays


def _tier_size(tier: Path) -> int:
    """Bytes of messages in the tier: what the query looks through."""
    from stratalog import tiered

    with tiered.open(tier) as opened:
        queues = [opened.queue(*name) for name in opened.queues()]
        return sum(queue.log.end_offset - queue.log.min_offset for queue in queues)


def delay_table(delays: Delays) -> str:
    """Carriers down, months across; a dot where nothing departed."""
    rows = [_row(delays, carrier) for carrier in (*delays.carriers, None)]
    return table(("", "flights", *MONTHS, "year"), rows, right=range(1, 15), indent="  ", gap=1)


def _row(delays: Delays, carrier: str | None) -> list[str]:
    means = [minutes(delays.of(carrier=carrier, month=month).mean) for month in (*range(1, 13), None)]
    return [clean(carrier or "all"), f"{delays.of(carrier=carrier).flights:,}", *means]


def minutes(mean: float | None) -> str:
    """A mean delay as both terminal and report show it."""
    return "·" if mean is None else f"{mean:.1f}"


def month_chart(delays: Delays) -> str:
    """One bar a month, in eighths of a character."""
    means = [delays.of(month=month).mean or 0.0 for month in range(1, 13)]
    longest = max([*means, 1e-9])
    lines = []
    for name, mean in zip(MONTHS, means, strict=True):
        eighths = max(0, round(mean / longest * _BAR_WIDTH * 8))
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        lines.append(f"        {name}  {bar} {mean:.1f}")
    return "\n".join(lines)
