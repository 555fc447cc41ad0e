"""The sizes of a store's files. RocketMQ records them nowhere: each broker must be told them by its settings.

    there is                                   taken
    ----------------------------------------   ---------------------------------------------------------
    a size among the settings                  that, or the call is refused (`check_given_sizes`)
    files of the kind                          what most of them have, unless their names tell the size of another;
                                               those that another tree's units begin do not count
    index files                                slots and items as noted, if that makes the size of a file, or if
                                               the only one has that many slots; else those that its items show, or
                                               RocketMQ's ratio of both, if that makes the size of a file
    no file, or files that contradict          what the last writer noted in `file-sizes.json`
    no file, nothing else noted                what the last writer noted there as guessed
    neither                                    the size for small stores if asked for, else RocketMQ's default

A size is guessed when the store holds messages and shows nothing, or when one file alone shows it, which may have been
cut. It is said in `store.recovery.notes`, since a broker with other sizes would take the files that are made then for
damaged; and it is noted as guessed: no size is refused because of it. A given size that the files have wins over the
note.
"""

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import pairwise
from math import gcd
from pathlib import Path

import msgspec

from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError, CorruptData, command, given_options
from stratalog.layout import names
from stratalog.layout.index import ITEM_CAPACITY, SLOT_COUNT, file_size
from stratalog.layout.queue import BATCH_COMPACTED_OFFSET, BATCH_UNIT, EXTENSION_UNIT, UNIT
from stratalog.store.disk import Disk
from stratalog.store.index_file import contradicts, index_sizes, usual_sizes

_LOG, _QUEUE = "mapped_file_size_commit_log", "mapped_file_size_consume_queue"
_BATCH, _EXTENSION = "mapper_file_size_batch_consume_queue", "mapped_file_size_consume_queue_ext"
_SLOTS, _ITEMS = "max_hash_slot_num", "max_index_num"
_TREES = {
    _LOG: (names.COMMIT_LOG, 0),
    _QUEUE: (names.CONSUME_QUEUE, UNIT.size),
    _BATCH: (names.BATCH_CONSUME_QUEUE, BATCH_UNIT.size),
    _EXTENSION: (names.CONSUME_QUEUE_EXT, 1),
}
"""Where the files of a setting are; and of what their sizes are multiples, if they are those of queues."""
SMALL_FILES = {
    _LOG: 5 << 20,  # the largest message fits
    _QUEUE: 10_000 * UNIT.size,
    _BATCH: 10_000 * BATCH_UNIT.size,
    _EXTENSION: 1 << 20,
    _SLOTS: 10_000,
    _ITEMS: 10_000 * ITEM_CAPACITY // SLOT_COUNT,
}
"""What `small=True` takes: a new store has 6 MB on disk instead of 1.5 GB."""
_DEFAULTS = {
    _LOG: StoreSettings().commit_log_file_size,
    _QUEUE: StoreSettings().consume_queue_file_size,
    _BATCH: StoreSettings().batch_consume_queue_file_size,
    _EXTENSION: StoreSettings().consume_queue_ext_file_size,
    _SLOTS: SLOT_COUNT,
    _ITEMS: ITEM_CAPACITY,
}
_GUESSED = "guessed "
"""Before the name of a noted size that was guessed: it counts where no file shows one, and refuses none."""
_FILES_ALIKE, _FILES_MAX = 4, 100
_SECTOR_SIZE = 512

_File = tuple[int, int]
"""The start that a file's name tells, and its size."""


def sized(settings: StoreSettings, root: Path, disk: Disk) -> StoreSettings:
    """These settings with every size filled in that the store shows. What it does not show stays None."""
    noted = noted_sizes(root, disk)
    shown = {name: _usual_size(name, _files_of(name, root, disk, noted), noted) for name in _TREES}
    index = _index_split(root, disk, noted)
    found = _filled(settings, shown | {_SLOTS: index[0] if index else None, _ITEMS: index[1] if index else None})
    return _filled(found, _noted(root, disk, guessed=True))


def check_given_sizes(settings: StoreSettings, root: Path, disk: Disk) -> None:
    """Raise `ConfigurationError` for a size among the settings where most files of the kind have another one, and the
    last writer's note or else their names agree with them. Where there are neither, they have RocketMQ's default or a
    larger size than the one given: files are cut rather than extended."""
    if disk.is_draft:  # sizes are those of the store that is built again
        return
    noted = noted_sizes(root, disk)
    for name, given in (
        (_LOG, settings.commit_log_file_size),
        (_QUEUE, settings.consume_queue_file_size),
        (_BATCH, settings.batch_consume_queue_file_size),
        (_EXTENSION, settings.consume_queue_ext_file_size),
    ):
        if getattr(settings, name) is None:
            continue
        files = _files_of(name, root, disk, noted)
        sizes = [size for _, size in files]
        usual = _most(sizes)
        if usual == given:
            continue
        steps = {later - start for start, later in pairwise(sorted({start for start, _ in files}))}
        is_told = usual in (*steps, _DEFAULTS[name]) or (usual > given and given not in steps)
        if name in noted:
            is_told = usual == noted[name] or (name == _LOG and usual in steps)
            if files and given not in (noted[name], *steps, *(() if usual else sizes)):  # a single file may be too long
                usual, is_told = noted[name], True
        if name == _LOG and len(files) == 1 and name not in noted and given < usual < 2 * given:
            is_told = not usual % _SECTOR_SIZE or bool(given % _SECTOR_SIZE)  # else it is too long: `repair` trims it
        if is_told and _is_allowed(name, usual):
            have, otherwise = "have", ""
            if usual not in sizes:
                have = "were written with"
                otherwise = f". {root / names.SIZES} says so: if that is wrong, remove it"
            elif name != _LOG and usual == _DEFAULTS[name] and name not in noted:
                otherwise = (
                    f". If an opening guessed that size for lost files, move {root / _TREES[name][0]} away: "
                    f"{command('rebuild', root)} builds them again from the log"
                )
            raise ConfigurationError(
                f"the files of {root / _TREES[name][0]} {have} {usual:,} bytes, not {given:,}: give that as {name}, or "
                f"leave it out{otherwise}"
            )
    if settings.message_index_enable and (settings.max_hash_slot_num or settings.max_index_num):
        _check_index_sizes(settings, root, disk, noted)


def _check_index_sizes(settings: StoreSettings, root: Path, disk: Disk, noted: Mapping[str, int]) -> None:
    """The same of slots and items. Files that were cut still show their slots."""
    split, noted_split = _index_split(root, disk, noted), _noted_index(noted)
    usual = _most(_index_lengths(root, disk))
    if not split or not usual:
        return
    given = settings.max_hash_slot_num or split[0], settings.max_index_num or split[1]
    wanted, is_of_split = file_size(*given), usual == file_size(*split)
    if not is_of_split and (usual == wanted or given[0] == split[0]):
        return
    if given[0] == split[0] and noted_split not in (None, split):
        return
    is_told = noted_split or split == (SLOT_COUNT, ITEM_CAPACITY) or given[0] != split[0] or usual > wanted
    if given == split or not is_told:
        return
    raise ConfigurationError(
        f"the files of {root / names.INDEX} have {usual:,} bytes, not {wanted:,} for {given[0]:,} slots and "
        f"{given[1]:,} items: give {_SLOTS}={split[0]} and {_ITEMS}={split[1]}, or leave them out. For another size "
        f"{remove_index_step(root / names.INDEX)}"
    )


def _most(sizes: Sequence[int]) -> int:
    """The size that more than half of them have, else 0."""
    (size, count), *_ = Counter(sizes).most_common(1) or [(0, 0)]
    return size if 2 * count > len(sizes) else 0


def _index_split(root: Path, disk: Disk, noted: Mapping[str, int]) -> tuple[int, int] | None:
    """Slots and items of the index files."""
    noted_split, lengths = _noted_index(noted), _index_lengths(root, disk)
    if noted_split and file_size(*noted_split) in lengths:
        return noted_split
    split = index_sizes(disk, root / names.INDEX) or noted_split
    if split and noted_split and split[0] == noted_split[0] and len(lengths) == 1:
        return noted_split  # the file was cut, or is too long
    return split


def index_slot_count(root: Path, disk: Disk) -> int:
    """Slots of the index files as they show or were noted, or RocketMQ's default."""
    split = _index_split(root, disk, noted_sizes(root, disk))
    return split[0] if split else SLOT_COUNT


def _index_lengths(root: Path, disk: Disk) -> list[int]:
    return [size for name, size in disk.files(root / names.INDEX).items() if names.is_index_name(name)]


def completed(given: StoreSettings, root: Path, disk: Disk, *, small: bool) -> tuple[StoreSettings, dict[str, int]]:
    """`sized` settings with what else opening needs, and the sizes among them that are guessed.

    Slots and items of index files that show neither are guessed from their length.
    """
    settings = sized(given, root, disk)
    guessed = unconfirmed(given, settings, root, disk)
    unknown = [name for name in (_QUEUE, _SLOTS, _ITEMS) if getattr(settings, name) is None]
    if not settings.message_index_enable:
        unknown = [name for name in unknown if name == _QUEUE]
    elif settings.max_hash_slot_num is None and settings.max_index_num is None:
        split = usual_sizes(disk, root / names.INDEX)
        settings = _filled(settings, dict(zip((_SLOTS, _ITEMS), split, strict=True)) if split else {})
    if small:
        return _filled(settings, SMALL_FILES), guessed
    has_messages = any(size for _, size in _files(root / names.COMMIT_LOG, disk))
    if not has_messages or (_QUEUE not in unknown and not _differ(settings)):
        return settings, guessed
    taken = {_QUEUE: settings.consume_queue_file_size, _SLOTS: settings.index_slot_count}
    taken[_ITEMS] = settings.index_item_capacity
    return settings, guessed | {name: taken[name] for name in unknown}


def unconfirmed(given: StoreSettings, settings: StoreSettings, root: Path, disk: Disk) -> dict[str, int]:
    """The sizes of these `sized` settings that one file alone shows, which may have been cut: they were neither given
    nor noted, and are not RocketMQ's (of index files: not its ratio of slots to items)."""
    noted, found = noted_sizes(root, disk), dict[str, int]()
    split = settings.index_slot_count, settings.index_item_capacity
    is_told = given.max_hash_slot_num or given.max_index_num or split == _noted_index(noted)
    is_shown = (
        split[1] * SLOT_COUNT == split[0] * ITEM_CAPACITY or _index_lengths(root, disk).count(file_size(*split)) > 1
    )
    for name, size in _differ(settings).items():
        if getattr(given, name) is not None or noted.get(name) == size:
            continue
        if name in _TREES:
            files = _files_of(name, root, disk, noted)
            is_step = any(later - start == size for start, later in pairwise(sorted({start for start, _ in files})))
            is_doubtful = not is_step and [length for _, length in files].count(size) < 2
        else:
            is_doubtful = not is_told and not is_shown
        if is_doubtful:
            found[name] = size
    return found


def guess_text(guessed: Mapping[str, int]) -> str:
    """A note for people."""
    taken = ", ".join(f"{name}={size}" for name, size in guessed.items())
    return (
        f"sizes taken without proof: {taken} (no file has them, or only one, which may have been cut). If a broker "
        "uses this store with other sizes, open it with those"
    )


def note_sizes(settings: StoreSettings, root: Path, disk: Disk, *, guessed: Collection[str]) -> None:
    """Note the sizes that differ from RocketMQ's defaults, if that was not done; a guessed one only for a time when no
    file shows it. Raises `OSError`, `DiskFull`."""
    sizes = _differ(settings)
    told = {name: size for name, size in sizes.items() if name not in guessed}
    rest = {name: size for name, size in sizes.items() if name in guessed}
    if sizes and (told, rest) != (noted_sizes(root, disk), _noted(root, disk, guessed=True)):
        known = told | {_GUESSED + name: size for name, size in rest.items()}
        disk.replace(root / names.SIZES, msgspec.json.encode(known))


def check_index_files(given: StoreSettings, settings: StoreSettings, root: Path, disk: Disk) -> None:
    """Raise `ConfigurationError` where no index file has the size that the settings make, and opening for writing would
    replace them: unless the size was given and a file may have been cut. A reader builds the index in memory."""
    directory, split = root / names.INDEX, (settings.index_slot_count, settings.index_item_capacity)
    files = {name: size for name, size in disk.files(directory).items() if names.is_index_name(name)}
    wanted = file_size(*split)
    if disk.read_only or not settings.message_index_enable or not files or wanted in files.values():
        return
    shown, is_given = index_sizes(disk, directory), given.max_hash_slot_num or given.max_index_num
    may_be_cut = (size < wanted and not contradicts(disk, directory / name, *split) for name, size in files.items())
    if is_given and (shown is None or shown[0] == split[0]) and any(may_be_cut):
        return
    note = ""
    if _noted_index(noted_sizes(root, disk)) == split:
        note = f" {root / names.SIZES} notes these sizes."
        if shown or usual_sizes(disk, directory):
            note += " If that is wrong, remove it."
    name, size = next(iter(files.items()))
    raise ConfigurationError(
        f"{directory / name}: the index files have {size:,} bytes, {wanted:,} are expected for {split[0]:,} slots and "
        f"{split[1]:,} items.{note} Give {_SLOTS} and {_ITEMS} as the store was written with. If the files are "
        f"damaged, {remove_index_step(directory)}"
    )


def remove_index_step(directory: Path, settings: StoreSettings | None = None) -> str:
    """`settings` are given where nothing shows the sizes: the step says which ones they take then."""
    step = f"remove the directory {directory}: the next opening builds it again from the log"
    if settings is None:
        return step
    slot_count, item_capacity = settings.index_slot_count, settings.index_item_capacity
    return (
        f"{step}, in files of {file_size(slot_count, item_capacity):,} bytes ({slot_count:,} slots, "
        f"{item_capacity:,} items) unless other sizes are given"
    )


def other_size_step(name: str, size: int, root: Path, disk: Disk) -> str:
    """What to do about a file that does not have the size of its kind."""
    root = root.parent if root.name == names.STAGING else root
    repair, given = command("repair", root), f"--set={name}={size}"
    if not any(option == given or option.startswith("--conf") for option in given_options):
        repair = f"{repair[:-1]} {given}`"
    step = f"If the store uses another size, give {name}; if not, {repair} shows what can be mended"
    if noted_sizes(root, disk).get(name) == size:
        step += f". {root / names.SIZES} notes {size:,}: if that is wrong, remove it"
    return step


def contradicted_notes(given: StoreSettings, root: Path, disk: Disk) -> Iterator[tuple[str, int]]:
    """Noted sizes that are taken, though files are there and none has them."""
    settings, noted = sized(given, root, disk), noted_sizes(root, disk)
    for name in _TREES.keys() & noted.keys():
        files = [size for _, size in _files_of(name, root, disk, noted)]
        is_taken = getattr(given, name) is None and getattr(settings, name) == noted[name]
        if is_taken and files and noted[name] not in files:
            yield name, noted[name]
    lengths, split = _index_lengths(root, disk), (settings.max_hash_slot_num, settings.max_index_num)
    if lengths and split == _noted_index(noted) and file_size(*split) not in lengths:
        yield from ((name, noted[name]) for name in (_SLOTS, _ITEMS) if name in noted and not getattr(given, name))


def _differ(settings: StoreSettings) -> dict[str, int]:
    """Sizes of which RocketMQ must be told."""
    sizes = {name: getattr(settings, name) for name in SMALL_FILES}
    return {name: size for name, size in sizes.items() if size not in (None, _DEFAULTS[name])}


def noted_sizes(root: Path, disk: Disk) -> dict[str, int]:
    """The sizes that the last writer noted and did not guess, by their settings' names."""
    return _noted(root, disk, guessed=False)


def noted_fault(root: Path, disk: Disk) -> str | None:
    """Why the file with the noted sizes cannot be read; None when it can, or is not there."""
    try:
        _stored_notes(root, disk)
    except CorruptData as error:
        return str(error)
    return None


def _stored_notes(root: Path, disk: Disk) -> Mapping[str, int]:
    """Raises `CorruptData`."""
    content = disk.read(root / names.SIZES)
    if not content:
        if content is None:
            return {}
        raise CorruptData("an empty file")
    return _decoded_notes(content)


@lru_cache
def _decoded_notes(content: bytes) -> Mapping[str, int]:
    try:
        noted = msgspec.json.decode(content, type=dict[str, int])
        StoreSettings.make({name.removeprefix(_GUESSED): size for name, size in noted.items()})
    except (msgspec.MsgspecError, UnicodeDecodeError, ConfigurationError) as error:
        raise CorruptData(f"no sizes of files ({error})") from error
    return noted


def _noted(root: Path, disk: Disk, *, guessed: bool) -> dict[str, int]:
    with contextlib.suppress(CorruptData):
        noted = _stored_notes(root, disk)
        prefix = _GUESSED if guessed else ""
        return {name: noted[prefix + name] for name in SMALL_FILES if prefix + name in noted}
    return {}


def _noted_index(noted: Mapping[str, int]) -> tuple[int, int] | None:
    """Slots and items, if one of them was noted: the other is RocketMQ's default then."""
    is_noted = {_SLOTS, _ITEMS} & noted.keys()
    return (noted.get(_SLOTS, SLOT_COUNT), noted.get(_ITEMS, ITEM_CAPACITY)) if is_noted else None


def _filled(settings: StoreSettings, sizes: Mapping[str, int | None]) -> StoreSettings:
    """Settings with these sizes where none was asked for."""
    missing = {name: size for name, size in sizes.items() if getattr(settings, name) is None}
    filled = copy(settings)
    for name, size in missing.items():  # files may have a size that no setting allows: who reads them reports it
        object.__setattr__(filled, name, size)
    return filled


def _files_of(name: str, root: Path, disk: Disk, noted: Mapping[str, int]) -> list[_File]:
    """Files whose size a setting tells."""
    tree, unit_size = _TREES[name]
    expected = noted.get(name, _DEFAULTS[name])
    return _queue_files(root / tree, disk, unit_size, expected) if unit_size else _files(root / tree, disk)


def _files(directory: Path, disk: Disk) -> list[_File]:
    found = ((names.offset_of(name), size) for name, size in disk.files(directory).items())
    return [(start, size) for start, size in found if start is not None and size]


def _queue_files(tree: Path, disk: Disk, unit_size: int, expected: int) -> list[_File]:
    """Files of the queues below a directory: four that are alike, or a hundred. They hold whole units, and none of
    another tree: directories may have been exchanged. Files of the `expected` size are not looked into."""
    found: list[_File] = []
    for topic in disk.directories(tree):
        for queue_id in disk.directories(tree / topic):
            files = [file for file in _files(tree / topic / queue_id, disk) if not file[1] % unit_size]
            if any(size != expected for _, size in files):
                first = tree / topic / queue_id / names.offset_name(files[0][0])
                files = files if tree_of(first, disk) in (None, tree.name) else []
            found += files
            if len(found) >= (_FILES_ALIKE if len({size for _, size in found}) == 1 else _FILES_MAX):
                return found
    return found


def tree_of(path: Path, disk: Disk) -> str | None:
    """Below which directory of a store a queue's file belongs, by its first units; None where they do not tell."""
    with contextlib.suppress(OSError, CorruptData):
        head = disk.read(path, size_max=BATCH_UNIT.size, cut=True) or b""
        extension, batch = EXTENSION_UNIT.unpack(head), BATCH_UNIT.unpack(head)
        first, second = UNIT.unpack(head), UNIT.unpack(head, UNIT.size)
        if EXTENSION_UNIT.size <= extension.size == EXTENSION_UNIT.size + extension.bitmap_size:
            return names.CONSUME_QUEUE_EXT
        if (batch.compacted_offset, batch.reserved) == (BATCH_COMPACTED_OFFSET, 0):
            return names.BATCH_CONSUME_QUEUE
        if first.size > 0 and (second.size > 0 or not any(second)):
            return names.CONSUME_QUEUE
    return None


def _usual_size(name: str, files: Sequence[_File], noted: Mapping[str, int]) -> int | None:
    """What most files have, of the sizes that the setting can have; of two that are as frequent the noted one, else the
    larger one, as files are cut rather than extended. The note counts as one more file. Names that do not begin at
    multiples of that tell another size if a file has it, or if nothing was noted and all files may have been cut."""
    sizes = Counter(size for _, size in files if _is_allowed(name, size))
    if name in noted:
        sizes[noted[name]] += 1
    usual = max(sizes, key=lambda size: (sizes[size], size == noted.get(name), size), default=None)
    steps = gcd(*(start for start, _ in files))
    if usual is None or steps % usual:
        may_be_cut = name not in noted and steps > max(sizes, default=0) and _is_allowed(name, steps)
        return steps if steps in sizes or may_be_cut else usual
    return usual


@lru_cache
def _is_allowed(name: str, size: int) -> bool:
    with contextlib.suppress(ConfigurationError):
        StoreSettings.make({name: size})
        return True
    return False
