"""The report's charts as inline SVG. Colours are CSS variables of the page, so that light and dark both work."""

from collections.abc import Iterator, Sequence
from html import escape

from stratalog.cli.demo.delays import MONTHS, Delays, minutes
from stratalog.cli.demo.journal import Step

WIDTH = 860
_LEFT = 56
_TICK_MINUTES = 5
_HEAT_MAX_MINUTES = 30
"""Cells at or above this mean delay have the full colour."""
_MIDDLE, _FULL = 0.6, 0.85
"""Shares of the full colour from which text needs the other colour on a dark page, and on a light one, too."""


def _svg(height: float, title: str, description: str, parts: Iterator[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{name}>{escape(text)}</text>'


def _bar(x: float, y: float, width: float, height: float, told: str) -> str:
    return (
        f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}" '
        f'rx="2"><title>{escape(told)}</title></rect>'
    )


def month_bars(delays: Delays) -> str:
    """Mean departure delay by month: the terminal's chart."""
    means = [delays.of(month=month).mean or 0.0 for month in range(1, 13)]
    top = max(_TICK_MINUTES, -(-int(max(means) + 1) // _TICK_MINUTES) * _TICK_MINUTES)
    base, plot = 250.0, 210.0
    step = (WIDTH - _LEFT) / 12

    def parts() -> Iterator[str]:
        for tick in range(0, top + 1, _TICK_MINUTES):
            y = base - plot * tick / top
            yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH}" y2="{y:.1f}"/>'
            yield _text(_LEFT - 8, y + 4, str(tick), anchor="end", kind="axis")
        yield _text(0, 16, "minutes", kind="axis")
        for number, (name, mean) in enumerate(zip(MONTHS, means, strict=True)):
            x, height = _LEFT + step * number, plot * max(0.0, mean) / top
            told = f"{name}: {mean:.1f} min, {delays.of(month=number + 1).flights:,} flights"
            yield _bar(x + step * 0.18, base - height, step * 0.64, height, told)
            yield _text(x + step / 2, base - height - 6, f"{mean:.1f}", anchor="middle", kind="value")
            yield _text(x + step / 2, base + 20, name, anchor="middle", kind="axis")
        yield _text(_LEFT + (WIDTH - _LEFT) / 2, base + 42, "month of 2013", anchor="middle", kind="axis")

    told = ", ".join(f"{name} {mean:.1f}" for name, mean in zip(MONTHS, means, strict=True))
    return _svg(300, "Mean departure delay by month, in minutes", told, parts())


def carrier_heat(delays: Delays) -> str:
    """Mean departure delay by carrier and month: the terminal's table."""
    left, cell, row, head = 290.0, 42.0, 26.0, 34.0
    carriers = delays.carriers
    height = head + row * (len(carriers) + 1) + 44

    def cells(carrier: str | None, y: float) -> Iterator[str]:
        for number, month in enumerate((*range(1, 13), None)):
            found = delays.of(carrier=carrier, month=month)
            x = left + cell * number + (6 if month is None else 0)
            share = min(1.0, max(0.0, (found.mean or 0.0) / _HEAT_MAX_MINUTES))
            when = MONTHS[month - 1] if month else "year"
            told = f"{carrier or 'all'} {when}: {minutes(found.mean)} min, {found.flights:,} flights"
            yield (
                f'<rect class="cell" x="{x:.1f}" y="{y:.1f}" width="{cell - 2:.1f}" height="{row - 2:.1f}" rx="2" '
                f'style="fill-opacity:{share:.2f}"><title>{escape(told)}</title></rect>'
            )
            kind = "heat full" if share > _FULL else "heat middle" if share > _MIDDLE else "heat"
            yield _text(x + cell / 2 - 1, y + row / 2 + 3, minutes(found.mean), anchor="middle", kind=kind)

    def parts() -> Iterator[str]:
        yield _text(left - 10, head - 10, "flights", anchor="end", kind="axis")
        for number, name in enumerate((*MONTHS, "year")):
            shift = 6 if name == "year" else 0
            yield _text(left + cell * number + cell / 2 - 1 + shift, head - 10, name, anchor="middle", kind="axis")
        for number, carrier in enumerate((*carriers, None)):
            y = head + row * number + (6 if carrier is None else 0)
            yield _text(0, y + row / 2 + 3, carrier or "all", kind="strong")
            yield _text(34, y + row / 2 + 3, delays.names.get(carrier or "", ""), kind="axis")
            flights = delays.of(carrier=carrier).flights
            yield _text(left - 10, y + row / 2 + 3, f"{flights:,}", anchor="end", kind="axis")
            yield from cells(carrier, y)
        yield from _scale(left, height - 18)

    told = "; ".join(f"{carrier} {minutes(delays.of(carrier=carrier).mean)} in the year" for carrier in carriers)
    return _svg(height, "Mean departure delay by carrier and month, in minutes", told, parts())


def _scale(x: float, y: float) -> Iterator[str]:
    """The legend of the colours."""
    steps = 6
    yield _text(x, y + 11, "0 min or early", kind="axis")
    for number in range(steps + 1):
        yield (
            f'<rect class="cell" x="{x + 90 + 26 * number:.1f}" y="{y:.1f}" width="24" height="14" rx="2" '
            f'style="fill-opacity:{number / steps:.2f}"/>'
        )
    yield _text(x + 90 + 26 * (steps + 1) + 6, y + 11, f"{_HEAT_MAX_MINUTES} min and more", kind="axis")


def rate_bars(steps: Sequence[Step]) -> str:
    """Messages a second of the steps that went through all of them."""
    shown = [step for step in steps if step.is_bulk]
    top = max([step.rate for step in shown], default=1.0)
    left, row, right = 150.0, 30.0, 150.0

    def parts() -> Iterator[str]:
        for number, step in enumerate(shown):
            y = row * number
            width = (WIDTH - left - right) * step.rate / top
            yield _text(0, y + 19, step.name, kind="strong")
            yield _bar(left, y + 5, width, row - 10, f"{step.messages:,} messages in {step.seconds:.2f} s")
            yield _text(left + width + 8, y + 19, f"{step.rate:,.0f} messages/s", kind="value")

    told = ", ".join(f"{step.name} {step.rate:,.0f}" for step in shown)
    return _svg(row * len(shown) + 6, "Messages a second by step", told, parts())
