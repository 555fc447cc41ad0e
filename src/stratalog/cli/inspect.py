"""`stratalog inspect`: the map of a store or a tier."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.output import clean, pairs, show_json, size_text, table, time_text
from stratalog.cli.place import JsonFlag, PlaceArgument, SettingsOption, TierFlag, is_tier, settings_of, warm_up
from stratalog.errors import command, counted

if TYPE_CHECKING:
    from stratalog.tiered import TieredStore
    from stratalog.tools.map import StoreMap

EXAMPLES = """
stratalog inspect data/store
stratalog inspect data/store --all --files
stratalog inspect data/store --lag data/tier     # how far the tier trails, queue by queue
stratalog inspect data/tier --json"""


def inspect(
    place: PlaceArgument,
    lag: Annotated[
        str | None, typer.Option("--lag", metavar="TIER", help="Show how far this tier trails the local store.")
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="List every file with its offset and size.")] = False,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=0, help="List so many queues, those with most messages.")
    ] = 50,
    all_queues: Annotated[bool, typer.Option("--all", help="List every queue.")] = False,
    tier: TierFlag = False,
    given: SettingsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a store or a tier holds.

    Files, offsets, queues, sizes, times, and with --lag how far a tier trails. Nothing is changed or recovered: a store
    that cannot be opened is shown, too, and a broker may be running.
    """
    if tier or is_tier(place):
        if lag is not None:
            raise typer.BadParameter("--lag compares a local store with a tier: PLACE is a tier already")
        warm_up(load=True)
        from stratalog import tiered

        with tiered.open(place) as opened:
            shown = _tier_map(opened, place)
    else:
        warm_up()
        from stratalog.tools.map import map_store

        shown = _store_map(map_store(Path(place), settings=settings_of(given)))
        if lag is not None:
            _add_lag(shown, lag)
    if as_json:
        show_json(shown)
    else:
        _show(shown, files=files, top=None if all_queues else top)


def _store_map(found: "StoreMap") -> dict[str, Any]:
    """The map of a local store as JSON has it."""
    queues = [
        _queue_map(
            queue.topic, queue.queue_id, queue.min_offset, queue.max_offset,
            (queue.first_timestamp, queue.last_timestamp),
        )
        | {"type": queue.kind}
        for queue in found.queues
    ]  # fmt: skip
    return {
        "kind": "store",
        "path": str(found.root),
        "state": found.state,
        "log": {
            "minOffset": found.log_begin,
            "endOffset": found.log_end,
            "size": found.log_end - found.log_begin,
            "fileSize": found.file_size,
            "firstStoreTimestamp": found.first_timestamp,
            "lastStoreTimestamp": found.last_timestamp,
            "damagedAt": found.damage_begin,
        },
        "dispatchBehind": found.dispatch_lag,
        "unqueued": found.unqueued_count,
        "shortQueues": [
            {"topic": one.topic, "queueId": one.queue_id, "maxOffset": one.max_offset, "sealedEnd": one.sealed_end}
            for one in found.short_queues
        ],
        "closedProperly": found.is_closed,
        "index": {"items": found.index_item_count},
        "notes": found.notes,
        "queues": queues,
        "files": _files(found.root, found.root),
    }


def _queue_map(topic: str, queue_id: int, low: int, high: int, stored: Sequence[int | None]) -> dict[str, Any]:
    return {
        "topic": topic,
        "queueId": queue_id,
        "minOffset": low,
        "maxOffset": high,
        "messages": high - low,
        "firstStoreTimestamp": stored[0],
        "lastStoreTimestamp": stored[1],
    }


def _files(root: Path, folder: Path) -> list[dict[str, Any]]:
    return [_file_map(path.relative_to(root), path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]


def _file_map(path: Path, state: Any) -> dict[str, Any]:
    return {"path": str(path), "size": state.st_size, "onDisk": state.st_blocks * 512}


def _tier_map(tier: "TieredStore", place: str) -> dict[str, Any]:
    state = tier.state
    queues = []
    for topic, queue_id in tier.queues():
        queue = tier.queue(topic, queue_id)
        segments = queue.state.commit_log
        stored = [segments[0].begin_timestamp, segments[-1].end_timestamp] if segments else [None, None]
        found = _queue_map(topic, queue_id, queue.min_offset, queue.max_offset, stored)
        queues.append(found | {"size": sum(segment.size for segment in segments), "segments": len(segments)})
    return {
        "kind": "tier",
        "path": place,
        "cluster": state.cluster,
        "broker": state.broker,
        "commits": state.next_sequence,
        "sourceEnd": state.source_end,
        "index": {
            "files": len(state.index_segments),
            "items": sum(max(0, segment.item_count) for segment in state.index_segments),
            "openRuns": len(state.index_runs),
        },
        "queues": queues,
        "files": _files(Path(place), Path(place)),
    }


def _add_lag(shown: dict[str, Any], url: str) -> None:
    """For each queue: messages that the tier does not hold yet, and those that are gone here before it had them."""
    from stratalog import tiered

    with tiered.open(url) as tier:
        there = {name: tier.queue(*name).max_offset for name in tier.queues()}
    for queue in shown["queues"]:
        queue["tierEnd"] = there.get((queue["topic"], queue["queueId"]), 0)
        queue["lag"] = max(0, queue["maxOffset"] - max(queue["tierEnd"], queue["minOffset"]))
        queue["lost"] = max(0, queue["minOffset"] - queue["tierEnd"])
    shown["tier"] = url
    shown["lag"] = sum(queue["lag"] for queue in shown["queues"])


def _show(shown: dict[str, Any], *, files: bool, top: int | None) -> None:
    print(pairs(_heading(shown)))
    queues = shown["queues"]
    if top is not None and len(queues) > top:
        kept = sorted(queues, key=lambda queue: -queue["messages"])[:top]
        queues = [queue for queue in queues if queue in kept] if top else []
    if queues:
        print()
        print(_queue_table(queues))
    if len(queues) < len(shown["queues"]):
        print(f"\n{counted(len(shown['queues']) - len(queues), 'more queue')}: --all lists them, --json as well")
    if files:
        print()
        rows = [[clean(file["path"]), f"{file['size']:,}", f"{file['onDisk']:,}"] for file in shown["files"]]
        print(table(("file", "bytes", "on disk"), rows, right=(1, 2)))


def _heading(shown: dict[str, Any]) -> dict[str, str]:
    messages = sum(queue["messages"] for queue in shown["queues"])
    on_disk = sum(file["onDisk"] for file in shown["files"])
    held = f"{messages:,} in {counted(len(shown['queues']), 'queue')}"
    if shown["kind"] == "tier":
        index = shown["index"]
        runs = f", {index['openRuns']} runs not compacted yet" if index["openRuns"] else ""
        return {
            "tier": f"{shown['path']} (cluster {clean(shown['cluster'])}, broker {clean(shown['broker'])})",
            "messages": held,
            "index": f"{counted(index['items'], 'item')} in {counted(index['files'], 'file')}{runs}",
            "commits": f"{shown['commits']:,}",
            "on disk": f"{size_text(on_disk)} in {counted(len(shown['files']), 'file')}",
        }
    log = shown["log"]
    heading = {
        "store": f"{shown['path']} ({shown['state']})",
        "messages": held,
        "log": f"offsets {log['minOffset']:,} to {log['endOffset']:,} ({size_text(log['size'])}) in files of "
        f"{size_text(log['fileSize'])}",
        "index": f"{counted(shown['index']['items'], 'item')}",
        "on disk": f"{size_text(on_disk)} in {counted(len(shown['files']), 'file')}",
    }
    if log["firstStoreTimestamp"] is not None and log["lastStoreTimestamp"] is not None:
        heading["stored"] = f"{time_text(log['firstStoreTimestamp'])} to {time_text(log['lastStoreTimestamp'])} (UTC)"
    if shown["dispatchBehind"] and not shown["closedProperly"]:
        heading["behind"] = f"at least {size_text(shown['dispatchBehind'])} of the log are in no queue yet"
    if missing := list(_missing(shown)):
        heading["missing"] = f"{'; '.join(missing)}: see {command('verify', shown['path'])}"
    if log["damagedAt"] is not None:
        heading["damaged"] = f"at log offset {log['damagedAt']:,}: see {command('verify', shown['path'])}"
    if shown.get("notes"):
        heading["note"] = "; ".join(map(clean, shown["notes"]))
    if "lag" in shown:
        heading["lag"] = f"{counted(shown['lag'], 'message')} are not in {shown['tier']} yet"
    return heading


def _missing(shown: dict[str, Any]) -> Iterator[str]:
    """What the queues of a store that was closed properly lack."""
    if shown["unqueued"]:
        yield f"at least {counted(shown['unqueued'], 'message')} of the log in no queue"
    if short := shown["shortQueues"]:
        name = f"{clean(short[0]['topic'])}/{short[0]['queueId']}"
        yield (
            f"queues that end before they did at the last clean stop: {len(short):,}, the first {name} at offset "
            f"{short[0]['maxOffset']:,} instead of {short[0]['sealedEnd']:,}"
        )


_MORE_COLUMNS = (
    ("type", "type"), ("size", "bytes"), ("segments", "segments"), ("tierEnd", "in the tier up to"), ("lag", "lag"),
    ("lost", "lost"),
)  # fmt: skip


def _queue_table(queues: list[dict[str, Any]]) -> str:
    extra = [(name, title) for name, title in _MORE_COLUMNS if any(name in queue for queue in queues)]
    if all(queue.get("type") == "Simple" for queue in queues):
        extra = [(name, title) for name, title in extra if name != "type"]
    titles = ["topic", "queue", "oldest", "next", "messages", "first stored (UTC)", "last stored (UTC)"]
    rows = [
        [
            clean(queue["topic"]),
            str(queue["queueId"]),
            *(f"{queue[name]:,}" for name in ("minOffset", "maxOffset", "messages")),
            *(
                "" if queue[name] is None else time_text(queue[name])
                for name in ("firstStoreTimestamp", "lastStoreTimestamp")
            ),
            *(queue[name] if name == "type" else f"{queue[name]:,}" for name, _ in extra),
        ]
        for queue in queues
    ]
    titles += [title for _, title in extra]
    return table(titles, rows, right=(1, 2, 3, 4, *range(7, len(titles))))
