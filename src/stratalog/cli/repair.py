"""`stratalog repair` and `stratalog rebuild`: mend a store; build its derived files again."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.output import (
    before_log,
    clean,
    complain,
    damaged_text,
    missing_json,
    missing_rows,
    offsets_text,
    pairs,
    seconds_text,
    show_json,
    size_text,
    tell,
    tell_owner,
    within,
)
from stratalog.cli.place import ConfOption, JsonFlag, SettingsOption, StoreArgument, given_path, settings_of, warm_up
from stratalog.cli.progress import Progress
from stratalog.cli.streams import shows_what_is_done
from stratalog.cli.verify import show_problems
from stratalog.errors import command, counted

if TYPE_CHECKING:
    from stratalog.tools.rebuild import Rebuilt
    from stratalog.tools.repair_plan import RepairPlan
    from stratalog.tools.verify_report import VerifyReport

REPAIR_EXAMPLES = """
stratalog repair data/store                          # what is wrong and what would be done; changes nothing
stratalog repair data/store --to data/mended --yes   # mend a copy
stratalog repair data/store --in-place --yes"""
REBUILD_EXAMPLES = """
stratalog rebuild data/store --yes
stratalog rebuild data/store --index --yes           # the index only"""

_LISTED_MAX = 10
_STILL_DAMAGED = 1
YesFlag = Annotated[bool, typer.Option("--yes", help="Do it. Without this, only the plan is shown.")]


def repair(
    store: StoreArgument,
    to: Annotated[
        Path | None, typer.Option("--to", parser=given_path, metavar="DIR", help="Mend a copy, in this new directory.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Mend the store itself.")] = False,
    yes: YesFlag = False,
    conf: ConfOption = None,
    given: SettingsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Mend a damaged store so that stratalog and RocketMQ read every whole message.

    Shows the plan first: what is wrong, what would be done, which messages are lost and which are saved. With --yes it
    is carried out, in a copy (--to) or in place (--in-place), and the result is verified. Bytes that are overwritten
    are kept in stratalog-quarantine/ of the mended store. A repair that was interrupted can be run again.

    Exit code 0: whole, or mended. 1: there is something to repair (plan), or not all could be mended.
    """
    if to is not None and in_place:
        raise typer.BadParameter("give --to or --in-place, not both")
    if yes and to is None and not in_place:
        raise typer.BadParameter("say where with --to DIR or --in-place")
    warm_up()
    from stratalog.tools.repair import check_target
    from stratalog.tools.repair import repair as mend
    from stratalog.tools.repair_plan import plan_repair

    if to is not None:
        check_target(store, to)
    with Progress("look") as progress:
        plan = plan_repair(store, settings=settings_of(given, conf), progress=progress)
    if not yes:
        show_json(_plan_json(plan)) if as_json else _show_plan(plan)
        if plan.actions or plan.unmended:
            raise typer.Exit(_STILL_DAMAGED)
        return
    if not as_json:
        with shows_what_is_done("nothing was changed"):
            _show_plan(plan, acting=True)
    begin = time.perf_counter()
    report = mend(plan, to=to, step=lambda text: None if as_json else tell(f"… {text}"))
    seconds = time.perf_counter() - begin
    tell_owner(to or store, copied_from=store)
    state = "whole" if report.ok else f"{counted(report.problem_count, 'problem')} left"
    with shows_what_is_done(f"the repair is done. {to or store}: {state}"):
        _show_report(plan, report, f"{to or store}: {state}", seconds, as_json=as_json)
    if not report.ok or plan.unmended:
        raise typer.Exit(_STILL_DAMAGED)


def _show_report(plan: "RepairPlan", report: "VerifyReport", result: str, seconds: float, *, as_json: bool) -> None:
    placeholder_count = report.record_count - plan.whole_count
    if as_json:
        done = {"ok": report.ok, "seconds": round(seconds, 3), "records": report.record_count}
        left = [asdict(problem) for problem in report.problems]
        notes = [*plan.report.notes, *report.notes]
        show_json(_plan_json(plan) | done | {"placeholders": placeholder_count, "left": left, "notes": notes})
    else:
        held = counted(plan.whole_count, "record") + (
            f" and {counted(placeholder_count, 'placeholder')}" if placeholder_count else ""
        )
        print(f"\n{result}; {held} ({seconds_text(seconds)})")
        show_problems(report, len(report.problems))


def rebuild(
    store: StoreArgument,
    queues: Annotated[bool, typer.Option("--queues", help="Build the queues.")] = False,
    index: Annotated[bool, typer.Option("--index", help="Build the index.")] = False,
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="Build the checkpoint.")] = False,
    yes: YesFlag = False,
    conf: ConfOption = None,
    given: SettingsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Build queues, index and checkpoint again from the log.

    They are built beside the old ones, which stay until all is done. The log is not changed. Names one or more of
    --queues, --index and --checkpoint to build these only. The store must be closed.

    Exit code 0: built. 1: built, but damage in the log was stepped over; or nothing was changed, because the new queues
    would lead to fewer messages than the old ones (run repair).
    """
    warm_up()
    from stratalog.tools.rebuild import PARTS, Part, check_store, may_move
    from stratalog.tools.rebuild import rebuild as build

    asked: dict[Part, bool] = {"queues": queues, "index": index, "checkpoint": checkpoint}
    parts = [part for part in PARTS if asked[part]] or list(PARTS)
    settings = settings_of(given, conf)
    check_store(store, settings)
    if not yes:
        moving = may_move(store) if "queues" in parts else []
        if as_json:
            show_json({"parts": parts, "done": False, "mayMove": moving})
        else:
            print(f"would rebuild from the log: {', '.join(parts)}")
            if moving:
                print(pairs({"may move": "; ".join(map(clean, moving))}))
            print(
                "the log has not been read yet: the run reports damage and what moved, and refuses if the new queues "
                "would have fewer messages than the old ones\nadd --yes to do it; the log is not changed"
            )
        return
    begin = time.perf_counter()
    with Progress("rebuild") as progress:
        rebuilt = build(store, settings=settings, parts=parts, progress=progress.of_opening)
    tell_owner(store)
    seconds = time.perf_counter() - begin
    with shows_what_is_done(f"{', '.join(rebuilt.parts)} of {store}: rebuilt"):
        if as_json:
            show_json(_rebuilt_json(rebuilt) | {"seconds": round(seconds, 3)})
        else:
            _show_rebuilt(rebuilt, seconds)
    if rebuilt.damages:
        what = counted(len(rebuilt.damages), "damaged range")
        complain(f"{what} of the log stepped over: {command('repair', store)}")
        raise typer.Exit(_STILL_DAMAGED)


def _show_rebuilt(rebuilt: "Rebuilt", seconds: float) -> None:
    shown = {"built": ", ".join(rebuilt.parts), "log": counted(rebuilt.record_count, "record")}
    if "queues" in rebuilt.parts:
        if rebuilt.gone_count:
            shown["before it"] = before_log(rebuilt.gone_count)
        shown["queues"] = f"{counted(rebuilt.unit_count, 'unit')} in {counted(rebuilt.queue_count, 'queue')}"
        if rebuilt.new_queue_count:
            what = counted(rebuilt.new_queue_count, "queue")
            shown["new"] = f"{what} without a directory before: lost, not written yet, or of deleted topics"
        if rebuilt.lost:
            shown["lost"] = rebuilt.lost
        if rebuilt.longer:
            shown["longer"] = rebuilt.longer
        if rebuilt.moved:
            shown["moved"] = "; ".join(map(clean, rebuilt.moved))
    if "index" in rebuilt.parts:
        shown["index"] = counted(rebuilt.index_item_count, "item")
    if rebuilt.bitmap_count:
        shown["bitmaps"] = f"{rebuilt.bitmap_count:,} are lost: a broker makes them for new messages only"
    print(pairs(shown | {"time": seconds_text(seconds)}))
    for note in rebuilt.notes:
        print(f"  note: {clean(note)}")


def _rebuilt_json(rebuilt: "Rebuilt") -> dict[str, Any]:
    return {
        "parts": rebuilt.parts, "done": True, "records": rebuilt.record_count, "logEnd": rebuilt.log_end,
        "beforeTheLog": rebuilt.gone_count,
        "queues": rebuilt.queue_count, "newQueues": rebuilt.new_queue_count,
        "aheadQueues": rebuilt.ahead_count, "lost": rebuilt.lost, "longer": rebuilt.longer,
        "moved": rebuilt.moved, "units": rebuilt.unit_count,
        "indexItems": rebuilt.index_item_count,
        "bitmapsLost": rebuilt.bitmap_count,
        "notes": rebuilt.notes,
        "damages": [{"begin": damage.begin, "end": damage.end} for damage in rebuilt.damages],
    }  # fmt: skip


def _plan_json(plan: "RepairPlan") -> dict[str, Any]:
    from stratalog.tools.repair_actions import described, lost_json

    return {
        "store": str(plan.root),
        "closedProperly": plan.report.clean,
        "problems": plan.report.problem_count,
        "found": [asdict(problem) for problem in plan.report.problems],
        "notes": plan.report.notes,
        "actions": [
            {
                "kind": action.kind, "path": action.path, "position": action.position, "size": action.size,
                "reason": action.reason, "placeholders": action.placeholder_count, "does": described(action),
            }
            for action in plan.actions
        ],
        "kept": plan.whole_count,
        "keptMessages": plan.message_count,
        "restored": plan.mended_count,
        "savedFromRocketMQ": plan.behind_count,
        "lostMessages": plan.lost_count,
        "lost": [lost_json(message) for message in plan.lost],
        "lostPlaces": [
            {"topic": topic, "queueId": queue_id, "queueOffset": number}
            for topic, queue_id, number, _ in plan.lost_light_ranges
        ],
        "damagedProperties": missing_json(plan.damaged_properties),
        "missing": missing_json(plan.missing),
        "lostBefore": missing_json(within(plan.report.lost_before, plan.missing)),
        "unplaced": [
            {"logOffset": one[0], "topic": one.topic, "queueId": one.queue_id, "queueOffset": one.queue_offset}
            for one in plan.unplaced
        ],
        "beforeTheLog": plan.gone_count,
        "logReached": plan.known_end or plan.report.log_end,
        "cannotBeMended": plan.unmended,
    }  # fmt: skip


def _show_plan(plan: "RepairPlan", *, acting: bool = False) -> None:
    from stratalog.tools.repair_actions import described

    report = plan.report
    size = sum(action.size for action in plan.actions if action.kind in ("cover", "cut", "drop"))
    shown = {
        "store": f"{clean(str(plan.root))}, {'closed properly' if report.clean else 'not closed properly'}",
        "wrong": counted(report.problem_count, "problem") if report.problem_count else "nothing",
        "kept": f"{counted(plan.whole_count, 'record')}, {counted(plan.message_count, 'message')} in queues",
    }
    if plan.mended_count:
        shown["restored"] = f"{counted(plan.mended_count, 'record')} of them, by units, neighbours or other fields"
    if plan.behind_count:
        shown["saved"] = f"{counted(plan.behind_count, 'record')} after damage, which RocketMQ would drop"
    if size:
        shown["set aside"] = f"{size_text(size)} that no message can be read from"
    if plan.lost:
        places = sorted(place for message in plan.lost for place in message.all_places)
        shown["lost"] = f"{counted(plan.lost_count, 'message')}: {offsets_text(places)}"
    if plan.lost_places:
        whose = "a message that is" if len(plan.lost_places) == 1 else "messages that are"
        what = f"{counted(len(plan.lost_places), 'place')} in light queues, of {whose} not lost"
        shown["lost places"] = f"{what}: {offsets_text(plan.lost_light_ranges)}"
    if plan.damaged_properties:
        shown["damaged"] = damaged_text(plan.damaged_properties)
    shown |= missing_rows(plan.missing, report.lost_before)
    if plan.known_end:
        shown["cut short"] = (
            f"the log reached offset {plan.known_end:,} and ends at {report.log_end:,}: of the messages between them "
            "only those named as lost are known, and keep their queue offsets"
        )
    if plan.unplaced:
        what = counted(len(plan.unplaced), "whole record")
        named = offsets_text((one.topic, one.queue_id, one.queue_offset, one.queue_offset + 1) for one in plan.unplaced)
        shown["unplaced"] = f"{what}, set aside: the place that it names is another record's, or cannot be: {named}"
    if plan.gone_count:
        shown["before it"] = before_log(plan.gone_count)
    print(pairs(shown))
    for note in report.notes:
        print(f"\nnote: {clean(note)}")
    for fault in plan.unmended:
        print(f"\ncannot be mended: {clean(fault)}")
    if not plan.actions:
        print("\nnothing to repair" + (" by this command" if report.problem_count else ""))
        return
    print("\nplan" if not acting else "\ndoing", flush=True)
    for number, action in enumerate(plan.actions[:_LISTED_MAX], 1):
        print(f"  {number}. {clean(described(action))}")
    if len(plan.actions) > _LISTED_MAX:
        print(f"  … and {len(plan.actions) - _LISTED_MAX:,} more (--json lists all)")
    if not acting:
        print("\nnothing was changed: add --to DIR --yes to mend a copy, or --in-place --yes")
