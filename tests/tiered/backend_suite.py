"""What any segment backend must do: its test module derives from `BackendSuite` and gives the `backend` fixture."""

import threading

import pytest

from stratalog.errors import CorruptData, IllegalMessage
from stratalog.tiered import SegmentBackend

PATH = "c/b/topic/0/COMMIT_LOG/x"


class BackendSuite:
    def test_what_was_written_at_a_position_is_read_from_it(self, backend: SegmentBackend) -> None:
        backend.write(PATH, 0, b"hello ")
        backend.write(PATH, 6, memoryview(b"world"))
        backend.sync([PATH])
        assert backend.read(PATH, 0, 11) == b"hello world"
        assert backend.read(PATH, 6, 3) == b"wor"
        assert backend.size(PATH) == 11

    def test_writing_the_same_bytes_again_changes_nothing(self, backend: SegmentBackend) -> None:
        backend.write(PATH, 0, b"abcdef")
        backend.write(PATH, 2, b"cd")
        assert backend.read(PATH, 0, 6) == b"abcdef"
        assert backend.size(PATH) == 6

    def test_a_missing_file_has_no_size_and_cannot_be_read(self, backend: SegmentBackend) -> None:
        assert backend.size(PATH) is None
        with pytest.raises(CorruptData, match=PATH):
            backend.read(PATH, 0, 1)

    def test_a_short_read_is_an_error_never_zeros(self, backend: SegmentBackend) -> None:
        backend.write(PATH, 0, b"1234")
        with pytest.raises(CorruptData, match="ends after 2") as caught:
            backend.read(PATH, 2, 3)
        assert (caught.value.path, caught.value.position) == (PATH, 2)

    def test_put_if_absent_lets_one_of_many_win(self, backend: SegmentBackend) -> None:
        won: list[int] = []
        barrier = threading.Barrier(8)

        def put(number: int) -> None:
            barrier.wait()
            if backend.put_if_absent("c/b/one.json", str(number).encode() * 1000):
                won.append(number)

        threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert backend.read("c/b/one.json", 0, 1000) == str(won[0]).encode() * 1000
        assert backend.size("c/b/one.json") == 1000

    def test_replace_changes_the_whole_content(self, backend: SegmentBackend) -> None:
        backend.replace("c/b/state.json", b"a long first version")
        assert backend.read("c/b/state.json", 2, 4) == b"long"
        backend.replace("c/b/state.json", b"second")
        assert backend.read("c/b/state.json", 0, 6) == b"second"
        assert backend.size("c/b/state.json") == 6

    def test_listing_is_by_the_beginning_of_paths_and_sorted(self, backend: SegmentBackend) -> None:
        for name in ("c/b/log/011", "c/b/log/010", "c/b/log/020", "c/b/other/010", "c/bb/log/010"):
            backend.put_if_absent(name, b"x")
        assert backend.list("c/b/log/01") == ["c/b/log/010", "c/b/log/011"]
        assert backend.list("c/b/") == ["c/b/log/010", "c/b/log/011", "c/b/log/020", "c/b/other/010"]
        assert backend.list("c/nothing/") == []
        assert len(backend.list("")) == 5

    def test_directories_are_those_directly_below(self, backend: SegmentBackend) -> None:
        for name in ("c/b/log/010", "c/bb/log/010", "d/x", "file"):
            backend.put_if_absent(name, b"x")
        assert backend.directories("") == ["c", "d"]
        assert backend.directories("c") == ["b", "bb"]
        assert backend.directories("nothing") == []

    def test_a_deleted_file_is_gone_and_may_be_deleted_again(self, backend: SegmentBackend) -> None:
        backend.write(PATH, 0, b"old old old")
        backend.delete(PATH)
        backend.delete(PATH)
        assert backend.size(PATH) is None
        backend.write(PATH, 0, b"new")
        assert backend.read(PATH, 0, 3) == b"new"
        assert backend.size(PATH) == 3

    def test_reads_and_their_bytes_are_counted(self, backend: SegmentBackend) -> None:
        backend.write(PATH, 0, bytes(100))
        before = backend.reads, backend.bytes_read
        backend.read(PATH, 0, 60)
        backend.read(PATH, 60, 40)
        backend.size(PATH)
        backend.list("")
        assert (backend.reads - before[0], backend.bytes_read - before[1]) == (2, 100)

    @pytest.mark.parametrize(
        "path",
        ["", "/etc/x", "../x", "c/../../x", "c//x", "c/.hidden", "c/a b", "c/\0", "c/naïve", "c/" + "x" * 300, "c/x\n"],
    )
    def test_a_path_that_could_leave_the_tier_is_refused(self, backend: SegmentBackend, path: str) -> None:
        for attempt in (
            lambda: backend.write(path, 0, b"x"),
            lambda: backend.read(path, 0, 1),
            lambda: backend.size(path),
            lambda: backend.put_if_absent(path, b"x"),
            lambda: backend.replace(path, b"x"),
            lambda: backend.delete(path),
        ):
            with pytest.raises(IllegalMessage):
                attempt()
        assert backend.list("") == []

    def test_many_threads_read_their_own_bytes(self, backend: SegmentBackend) -> None:
        paths = [f"c/b/{number}" for number in range(300)]
        for number, path in enumerate(paths):
            backend.write(path, 0, number.to_bytes(2) * 500)
        wrong: list[str] = []

        def read(offset: int) -> None:
            for number, path in enumerate(paths[offset:] + paths[:offset]):
                expected = ((number + offset) % 300).to_bytes(2) * 250
                if backend.read(path, 500, 500) != expected:
                    wrong.append(path)

        threads = [threading.Thread(target=read, args=(offset,)) for offset in (0, 70, 140, 210)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
