"""Opening what a command names: a local store or a tier."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stratalog.cli.output import tell
from stratalog.cli.progress import Progress
from stratalog.errors import ConfigurationError, command, counted, given_options

if TYPE_CHECKING:
    from stratalog.config.settings import StoreSettings
    from stratalog.store.message_store import MessageStore
    from stratalog.tiered import TieredStore


def given_path(text: str) -> Path:
    """A path of the command line. An unset variable of the shell is none; `Path` takes it for the current directory."""
    if not text:
        raise typer.BadParameter("give a path that is not empty")
    return Path(text)


def _given_place(text: str) -> str:
    given_path(text)
    return text


def given_topic(text: str) -> str:
    """A topic of the command line. An unset variable of the shell is none."""
    if not text:
        raise typer.BadParameter("the topic is empty: give its name")
    return text


StoreArgument = Annotated[
    Path, typer.Argument(parser=given_path, metavar="STORE", help="Directory of the message store.")
]
PlaceArgument = Annotated[
    str, typer.Argument(parser=_given_place, metavar="PLACE", help="Directory of a message store, or of a tier.")
]
TierFlag = Annotated[
    bool, typer.Option("--tier", help="PLACE is a tier (detected from the directory's content where that is clear).")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the store, may be repeated (max_index_num=400)."),
]
ConfOption = Annotated[
    Path | None, typer.Option("--conf", parser=given_path, metavar="FILE", help="Settings from a broker.conf.")
]


def open_local(
    path: Path, *, mode: Literal["r", "w"] = "r", given: Sequence[str] | None = None, conf: Path | None = None,
    small: bool = False,
) -> "MessageStore":  # fmt: skip
    """Open a local store with the settings of the command line, those of a broker.conf, or what its files show.

    To put needs nothing compiled: only who reads waits for that.
    """
    if mode == "r":
        warm_up()
    import stratalog

    with Progress("open") as progress:
        store = stratalog.open(
            path, mode=mode, settings=settings_of(given, conf), small=small, progress=progress.of_opening
        )
    damages = store.recovery.quarantined
    if damages and mode == "r":
        tell(
            f"note: {counted(len(damages), 'damaged range')} of the log, the first at log offset {damages[0].begin:,}, "
            f"cannot be read: {command('verify', path)}"
        )
    return store


def settings_of(given: Sequence[str] | None = None, conf: Path | None = None) -> "StoreSettings":
    """The settings of the command line, or those of a broker.conf."""
    from stratalog.config.settings import StoreSettings

    settings = _settings(given)
    given_options[:] = [f"--set={text}" for text in given or ()] + ([f"--conf={conf}"] if conf else [])
    if conf is None:
        return StoreSettings.make(settings)
    if settings:
        raise ConfigurationError("give --conf or --set, not both: put the setting into the file")
    return StoreSettings.from_broker_conf(conf)


def open_place(path: str, *, tier: bool, given: Sequence[str] | None = None) -> "MessageStore | TieredStore":
    """Open a store read-only, or a tier: by the flag, else by what lies in the directory."""
    if tier or is_tier(path):
        warm_up(load=True)
        from stratalog import tiered

        return tiered.open(path)
    return open_local(Path(path), given=given)


def is_tier(path: str) -> bool:
    """Whether a directory looks like a tier: it holds a cluster's directory and none of a local store's."""
    from stratalog.layout.names import COMMIT_LOG, CONSUME_QUEUE
    from stratalog.layout.tier import cluster_directory

    root = Path(path)
    if not root.is_dir() or (root / COMMIT_LOG).is_dir() or (root / CONSUME_QUEUE).is_dir():
        return False
    names = (entry.name for entry in os.scandir(root) if entry.is_dir())
    return any(cluster_directory(name.partition("_")[2]) == name for name in names if "_" in name)


def warm_up(*, load: bool = False) -> None:
    """Compile the kernels if this machine has not yet, and say so: it happens once and takes some seconds.

    `load` loads all of them now (a quarter of a second), so that no latency measured later contains it.
    """
    from stratalog.kernels import aside, jit

    is_cold = bool(jit.CACHE_DIRECTORY) and not aside.is_complete()
    if is_cold:
        tell("compiling kernels (once)")
    if is_cold or load:
        from stratalog.kernels.warm import compile_all

        compile_all()


def _settings(given: Sequence[str] | None) -> dict[str, Any]:
    from stratalog.config.settings import setting_value

    settings: dict[str, Any] = {}
    for text in given or ():
        name, separator, value = text.partition("=")
        if not separator:
            raise typer.BadParameter(f"--set {text}: write name=value, for example max_index_num=400")
        settings[name.strip()] = setting_value(value.strip(), f"--set {name.strip()}")
    return settings
