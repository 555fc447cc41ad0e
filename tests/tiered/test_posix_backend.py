"""The POSIX backend keeps the contract of all backends, and what only files can break."""

import errno
import os
from pathlib import Path

import pytest

from stratalog.errors import ConfigurationError, CorruptData, DiskFull
from stratalog.tiered import PosixBackend
from stratalog.tiered.segment import open_backend
from tiered.backend_suite import PATH, BackendSuite


class TestPosixBackend(BackendSuite):
    pass


@pytest.mark.parametrize("url", ["tier", "./tier", Path("tier")], ids=repr)
def test_a_tier_stays_where_it_was_opened(url: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    backend = open_backend(url)
    backend.write("c/b/x", 0, b"x")
    monkeypatch.chdir(tmp_path / "elsewhere")
    backend.write("c/b/y", 0, b"y")
    backend.sync(["c/b/x", "c/b/y"])
    assert backend.put_if_absent("c/b/z", b"z")
    backend.replace("c/b/z", b"zz")
    assert [backend.size(path) for path in backend.list("c/")] == [1, 1, 2]
    assert backend.directories("c") == ["b"]
    assert backend.read("c/b/z", 0, 2) == b"zz"
    backend.delete("c/b/z")
    backend.close()
    assert os.listdir(tmp_path / "elsewhere") == []
    assert sorted(os.listdir(tmp_path / "tier" / "c" / "b")) == ["x", "y"]


def test_a_link_out_of_the_tier_is_not_followed(backend: PosixBackend, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    backend.write("c/b/x", 0, b"x")
    (backend.root / "c" / "link").symlink_to(outside)
    (backend.root / "c" / "b" / "alias").symlink_to(outside / "secret")
    for path in ("c/link/secret", "c/b/alias"):
        with pytest.raises((ConfigurationError, OSError)):
            backend.read(path, 0, 6)
        with pytest.raises((ConfigurationError, OSError)):
            backend.write(path, 0, b"broken")
    with pytest.raises(ConfigurationError):
        backend.put_if_absent("c/link/new", b"x")
    assert (outside / "secret").read_bytes() == b"secret"
    assert os.listdir(outside) == ["secret"]
    assert backend.list("c/") == ["c/b/x"]


def test_sync_makes_the_names_of_new_files_durable(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync, fdatasync = os.fsync, os.fdatasync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fdatasync(fd)))
    backend.write(PATH, 0, b"x")
    backend.sync([PATH])
    expected = [backend.root / PATH, *(backend.root / PATH).parents][: PATH.count("/") + 2]
    assert [Path(path) for path in synced] == expected
    synced.clear()
    backend.write(PATH, 1, b"y")
    backend.sync([PATH])
    assert [Path(path) for path in synced] == expected[:1]


def test_a_name_that_is_taken_is_durable_though_its_owner_was_killed(
    backend: PosixBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    (backend.root / PATH).parent.mkdir(parents=True)
    (backend.root / PATH).write_bytes(b"theirs")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    assert not backend.put_if_absent(PATH, b"ours")
    assert [Path(path) for path in synced] == [*(backend.root / PATH).parents][: PATH.count("/") + 1]


def test_a_full_disk_says_so_and_leaves_nothing_behind(backend: PosixBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.write(PATH, 0, b"x")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFull, match="free space"):
        backend.write(PATH, 1, b"y")
    with pytest.raises(DiskFull, match="free space"):
        backend.put_if_absent("c/b/entry.json", b"{}")
    monkeypatch.undo()
    assert backend.list("") == [PATH]
    assert [path.name for path in backend.root.rglob(".tmp*")] == []


def test_writes_go_on_after_many_files_were_opened(backend: PosixBackend) -> None:
    for number in range(600):
        backend.write(f"c/{number}", 0, b"1")
    open_files = len(os.listdir("/proc/self/fd"))
    for number in range(600):
        backend.write(f"c/{number}", 1, b"2")
    assert all(backend.read(f"c/{number}", 0, 2) == b"12" for number in range(600))
    backend.close()
    assert len(os.listdir("/proc/self/fd")) < open_files - 200
    assert backend.read("c/5", 0, 2) == b"12"


def test_a_url_names_a_directory(tmp_path: Path) -> None:
    assert open_backend(f"file://{tmp_path}").root == tmp_path
    assert open_backend(tmp_path).root == tmp_path
    with pytest.raises(ConfigurationError, match="ftp"):
        open_backend("ftp://host/x")


def test_a_file_cut_behind_our_back_is_noticed(backend: PosixBackend) -> None:
    backend.write(PATH, 0, bytes(100))
    os.truncate(backend.root / PATH, 40)
    assert backend.size(PATH) == 40
    with pytest.raises(CorruptData, match="ends after 40"):
        backend.read(PATH, 0, 100)
