"""Apache RocketMQ as a process: fetch its jars, compile a driver, ask it over JSON lines.

The one place that knows how. It needs no pytest, so that the benchmark uses it as well, with a driver of its own:
`RocketMQ("5.5.0", directory, sources=…, main="Race", options=WARMED_UP)`.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from stratalog.config.settings import Release

HERE = Path(__file__).parent
SOURCES = tuple(sorted((HERE / "java").glob("*.java")))
"""The driver of the tests: its class `Judge` says what there is to ask."""
QUICK_START = ("-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A JVM that is soon there and never fast: nobody measures it."""
WARMED_UP = ("-Xms2g", "-Xmx2g")
"""A JVM as a small broker gets it, with every compiler: what a measurement is made with."""
FETCH_TIMEOUT_S = 240
CONNECT_TIMEOUT_MS = 5000
FAIL_FAST = (
    f"-Dmaven.wagon.rto={2 * CONNECT_TIMEOUT_MS}",
    "-Dmaven.wagon.http.retryHandler.count=0",
    f"-Daether.connector.connectTimeout={CONNECT_TIMEOUT_MS}",
    f"-Daether.connector.requestTimeout={2 * CONNECT_TIMEOUT_MS}",
    f"-Dsun.net.client.defaultConnectTimeout={CONNECT_TIMEOUT_MS}",
)
"""Without a network Maven would try for minutes. The names differ between its versions; unknown ones do no harm."""

Answer = dict[str, Any]


class NoRocketMQ(Exception):
    """This machine cannot run Apache RocketMQ; the message says why."""


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stratalog" / "rocketmq"


def tool(name: str) -> str:
    """A command of the JDK or Maven. Raises `NoRocketMQ`."""
    home = os.environ.get("JAVA_HOME")
    inside = Path(home) / "bin" / name if home else None
    found = str(inside) if inside and inside.exists() else shutil.which(name)
    if found is None:
        raise NoRocketMQ(f"there is no {name} on this machine (a JDK and Maven are needed)")
    return found


def jars(release: str) -> Path:
    """The folder with a release's jars, fetched by Maven the first time. Raises `NoRocketMQ`."""
    folder = cache_directory() / release
    if folder.exists():
        return folder
    unfinished = folder.with_name(f"{release}.{os.getpid()}")
    command = [
        tool("mvn"), "-q", "-B", *FAIL_FAST, "-f", str(HERE / "pom.xml"), f"-Drocketmq={release}",
        "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={unfinished}",
    ]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
        if not folder.exists():  # another run may have been faster
            unfinished.rename(folder)
    except (subprocess.SubprocessError, OSError) as error:
        raise NoRocketMQ("Maven cannot fetch RocketMQ's jars: no network, or no repository that has them") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def classes(release: str, sources: Sequence[Path] = SOURCES) -> Path:
    """The folder with a compiled driver; compiled again when its source changes. Raises `NoRocketMQ`."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = cache_directory() / f"driver-{release}-{digest}"
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = [tool("javac"), "-nowarn", "-encoding", "UTF-8", "-cp", f"{jars(release)}/*", "-d", str(unfinished)]
        subprocess.run([*command, *map(str, sources)], check=True)
        if not folder.exists():
            unfinished.rename(folder)
    return folder


class RocketMQ:
    """One JVM with a release of RocketMQ in it, started when it is first asked and again after it halted.

    A request names what to do; `java/LocalStore.java` and `java/TieredStore.java` say what there is. Another driver is
    its `sources` with the class `main` among them: it reads a JSON object a line and answers with one, or with as many
    as `stream` is told; an answer with `error` in it raises. Logs: `<directory>/rocketmq-<release>.log` and `.err`.
    """

    def __init__(
        self,
        release: str,
        directory: Path,
        *,
        sources: Sequence[Path] = SOURCES,
        main: str = "Judge",
        options: Sequence[str] = QUICK_START,
    ) -> None:
        self.release = release
        self.compatibility: Release = "5.3" if release.startswith("5.3") else "5.5"
        self._log = directory / f"rocketmq-{release}.log"
        self._scratch = directory / f"rocketmq-{release}.tmp"  # where it unpacks a library of 13 MB at each start
        self._classpath = f"{classes(release, sources)}:{jars(release)}/*"
        self._command = [
            tool("java"), *options, "-Duser.timezone=UTC",
            f"-Drmq.logback.configurationFile={HERE / 'java' / 'logback.xml'}", f"-Djudge.log={self._log}",
            f"-Duser.home={directory}", f"-Djava.io.tmpdir={self._scratch}",
            *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "jdk.internal.ref")),
            *(f"--add-exports=java.base/{name}=ALL-UNNAMED" for name in ("sun.nio.ch", "jdk.internal.ref")),
            "-cp", self._classpath, main,
        ]  # fmt: skip
        self._errors = (directory / f"rocketmq-{release}.err").open("w")
        self._process: subprocess.Popen[str] | None = None
        self._log_read = 0

    @property
    def has_tag_index(self) -> bool:
        """5.4 began to index tags."""
        return self.release >= "5.4"

    def ask(self, do: str, **arguments: Any) -> Answer:
        """One request, one answer. Raises `AssertionError` with what RocketMQ threw."""
        *_, answer = self.stream(do, **arguments)
        return answer

    def stream(self, do: str, *, line_count: int = 1, **arguments: Any) -> Iterator[Answer]:
        """One request, `line_count` answers as they come. Ends early when the process stops."""
        requests, answers = self._pipes()
        requests.write(json.dumps({"do": do, **arguments}) + "\n")
        requests.flush()
        for _ in range(line_count):
            line = answers.readline()
            if not line:
                self.stop()
                self.start()
                return
            answer: Answer = json.loads(line)
            assert "error" not in answer, f"RocketMQ {self.release}, asked to {do}: {answer['error']}"
            yield answer

    def start(self) -> None:
        """Start the process, if it does not run: it is up by the time that it is asked something."""
        if self._process is None:
            self._scratch.mkdir(exist_ok=True)
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
            )

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        self.start()
        assert self._process
        assert self._process.stdin
        assert self._process.stdout
        return self._process.stdin, self._process.stdout

    def logged(self) -> str:
        """What RocketMQ wrote into its log since this was last asked."""
        if not self._log.exists():
            return ""
        with self._log.open() as log:
            log.seek(self._log_read)
            text = log.read()
            self._log_read = log.tell()
        return text

    def pause(self) -> None:
        """Halt the process in its step until `resume`: what changes on disk meanwhile is not its doing."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the process dead, whatever it does; what it has open is left as after a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe:
                    pipe.close()
            self._process = None
            shutil.rmtree(self._scratch)

    def close(self) -> None:
        self.stop()
        self._errors.close()


def camel_case(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings under RocketMQ's names."""

    def camel(name: str) -> str:
        first, *rest = name.split("_")
        return first + "".join(part.capitalize() for part in rest)

    return {camel(name): value for name, value in settings.items()}
