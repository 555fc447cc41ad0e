"""`stratalog inspect`: the map of a store or a tier."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.output import clean, counted, pairs, show_json, size_text, table, time_text
from stratalog.cli.place import JsonFlag, PlaceArgument, SettingsOption, TierFlag, open_place

if TYPE_CHECKING:
    from stratalog.store.message_store import MessageStore
    from stratalog.tiered import TieredStore

EXAMPLES = """
stratalog inspect data/store
stratalog inspect data/store --lag data/tier     # how far the tier trails, queue by queue
stratalog inspect data/tier --json"""


def inspect(
    place: PlaceArgument,
    lag: Annotated[
        str | None, typer.Option("--lag", metavar="TIER", help="Show how far this tier trails the local store.")
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="List every file with its offset and size.")] = False,
    tier: TierFlag = False,
    given: SettingsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a store or a tier holds.

    Files, offsets, queues, sizes, times, and with --lag how far a tier trails. Nothing is changed.
    """
    from stratalog.tiered import TieredStore

    with open_place(place, tier=tier, given=given) as opened:
        if isinstance(opened, TieredStore):
            if lag is not None:
                raise typer.BadParameter("--lag compares a local store with a tier: PLACE is a tier already")
            shown = _tier_map(opened, place)
        else:
            shown = _store_map(opened)
            if lag is not None:
                _add_lag(shown, lag)
    if as_json:
        show_json(shown)
    else:
        _show(shown, files=files)


def _store_map(store: "MessageStore") -> dict[str, Any]:
    log, index = store.log, store.index
    queues = []
    for topic, queue_id in store.queues():
        queue = store.queue(topic, queue_id)
        low, high = queue.min_offset, queue.max_offset
        edges = [next(queue.read(at, count=1), None) for at in ((low, high - 1) if low < high else ())]
        stored = [message.store_timestamp if message else None for message in edges] or [None, None]
        queues.append(_queue_map(topic, queue_id, low, high, stored))
    return {
        "kind": "store",
        "path": str(store.root),
        "state": "closed properly" if store.recovery.clean else "open in another process, or not closed properly",
        "log": {
            "minOffset": log.first_offset,
            "endOffset": log.end_offset,
            "size": log.end_offset - log.first_offset,
            "fileSize": log.file_size,
        },
        "index": {"items": sum(max(0, file.next_item - 1) for file in index.files) if index else 0},
        "damaged": [{"begin": damage.begin, "end": damage.end} for damage in store.recovery.quarantined],
        "notes": store.recovery.notes,
        "queues": queues,
        "files": _local_files(store.root),
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


def _local_files(root: Path) -> list[dict[str, Any]]:
    from stratalog.layout.names import COMMIT_LOG, CONSUME_QUEUE, INDEX

    return [file for part in (COMMIT_LOG, CONSUME_QUEUE, INDEX) for file in _files(root, root / part)]


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


def _show(shown: dict[str, Any], *, files: bool) -> None:
    print(pairs(_heading(shown)))
    if shown["queues"]:
        print()
        print(_queue_table(shown))
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
            "index": f"{index['items']:,} items in {counted(index['files'], 'file')}{runs}",
            "commits": f"{shown['commits']:,}",
            "on disk": f"{size_text(on_disk)} in {counted(len(shown['files']), 'file')}",
        }
    log = shown["log"]
    heading = {
        "store": f"{shown['path']} ({shown['state']})",
        "messages": held,
        "log": f"offsets {log['minOffset']:,} to {log['endOffset']:,} ({size_text(log['size'])}) in files of "
        f"{size_text(log['fileSize'])}",
        "index": f"{shown['index']['items']:,} items",
        "on disk": f"{size_text(on_disk)} in {counted(len(shown['files']), 'file')}",
    }
    if shown["damaged"]:
        heading["damaged"] = f"{len(shown['damaged'])} ranges of the log; stratalog verify tells more"
    if shown.get("notes"):
        heading["note"] = "; ".join(map(clean, shown["notes"]))
    if "lag" in shown:
        heading["lag"] = f"{shown['lag']:,} messages are not in {shown['tier']} yet"
    return heading


_MORE_COLUMNS = (
    ("size", "bytes"), ("segments", "segments"), ("tierEnd", "in the tier up to"), ("lag", "lag"), ("lost", "lost"),
)  # fmt: skip


def _queue_table(shown: dict[str, Any]) -> str:
    extra = [(name, title) for name, title in _MORE_COLUMNS if any(name in queue for queue in shown["queues"])]
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
            *(f"{queue[name]:,}" for name, _ in extra),
        ]
        for queue in shown["queues"]
    ]
    titles += [title for _, title in extra]
    return table(titles, rows, right=(1, 2, 3, 4, *range(7, len(titles))))
