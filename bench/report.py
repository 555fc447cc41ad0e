"""The table at the end, and the same as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import Result, Target, Unit

_HEAD = ("path", "figure", "min – max", "bytes", "limit or rival in the same round", "", "ratio", "target", "")


def number(value: float, unit: Unit) -> str:
    """A figure with the prefix that leaves three digits: 1.12 M/s, 236 µs, 4.1 GB/s."""
    if unit == "s":
        scale, suffix = (1, "s") if value >= 1 else (1e-3, "ms") if value >= 1e-3 else (1e-6, "µs")
    elif unit == "count":
        scale, suffix = 1, ""
    else:
        scale, prefix = next(
            (scale, prefix)
            for scale, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
            if value >= scale or scale == 1
        )
        suffix = prefix + ("B/s" if unit == "B/s" else "/s")
    return f"{_three_digits(value / scale)} {suffix}".rstrip()


def _three_digits(value: float) -> str:
    if value >= 99.95 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _target(target: Target | None, unit: Unit) -> str:
    if target is None:
        return ""
    sign = "≤" if target.at_most else "≥"
    if target.of == "ratio":
        return f"{sign} {target.bound:g} ×" if target.bound >= 1 else f"{sign} {target.bound:g}"
    return f"{sign} {number(target.bound, unit)}"


def _cells(result: Result) -> tuple[str, ...]:
    line = result.line
    rate = number(result.median * line.message_size, "B/s") if line.message_size else ""
    return (
        "  " + line.path,
        number(result.median, line.unit),
        f"{number(min(result.figures), line.unit)} – {number(max(result.figures), line.unit)}",
        rate,
        line.limit,
        number(result.limit, line.unit) if result.limit is not None else "",
        _ratio(result),
        _target(line.target, line.unit),
        {None: "", True: "met", False: "SHORT"}[result.met],
    )


def _ratio(result: Result) -> str:
    """The median ratio, and in brackets the least and the most of the rounds."""
    ratios = result.ratios
    if not ratios:
        return ""
    spread = f" ({min(ratios):.2g} – {max(ratios):.2g})" if len(ratios) > 1 else ""
    return f"{result.ratio:.3g}{spread}"


def table(results: Sequence[Result]) -> str:
    """All results as aligned text, floor by floor."""
    rows = [_cells(result) for result in results]
    widths = [max(len(row[column]) for row in [_HEAD, *rows]) for column in range(len(_HEAD))]
    lines = [_aligned(_HEAD, widths)]
    floor = ""
    for result, row in zip(results, rows, strict=True):
        if result.floor != floor:
            floor = result.floor
            lines.append(floor)
        lines.append(_aligned(row, widths))
    judged = [result.met for result in results if result.met is not None]
    lines.append(f"{judged.count(True)} of {len(judged)} targets met")
    return "\n".join(lines)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    left = (0, 4, 7, 8)
    cells = [
        cell.ljust(width) if column in left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def save_json(path: Path, machine: dict[str, str], results: Sequence[Result], notes: Sequence[str]) -> None:
    """Everything that was measured. Seconds, bytes a second and messages a second, unrounded."""
    lines: list[dict[str, Any]] = [
        {
            "floor": result.floor,
            "path": result.line.path,
            "unit": result.line.unit,
            "median": result.median,
            "rounds": result.figures,
            "message_size": result.line.message_size or None,
            "limit": result.line.limit or None,
            "limit_median": result.limit,
            "limit_rounds": [sample.limit for sample in result.samples],
            "ratio": result.ratio,
            "ratio_rounds": result.ratios,
            "target": _target(result.line.target, result.line.unit) or None,
            "met": result.met,
        }
        for result in results
    ]
    path.write_text(
        json.dumps({"machine": machine, "lines": lines, "notes": list(notes)}, indent=2, ensure_ascii=False) + "\n"
    )
