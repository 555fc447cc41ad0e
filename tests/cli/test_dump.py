"""`dump`: every type of file, by itself or in its store; damage, filters, and bytes that a terminal would obey."""

import json
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import stratalog
from cli.calls import SETTINGS, Call
from golden.cases import golden_case
from stratalog.layout.message import HEAD, Record
from stratalog.layout.sysflag import Compression, SysFlag
from stratalog.tools.dump import dump

LOG = Path("commitlog") / ("0" * 20)


def lines_of(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_log_is_shown_record_by_record_with_positions(small_store: Path, call: Call) -> None:
    shown = lines_of(call("dump", small_store / LOG, "--json"))
    messages = [line for line in shown if line["type"] == "message"]
    assert [line["position"] for line in messages] == [line["commitLogOffset"] for line in messages]
    assert [line["body"] for line in messages[:3]] == ["body 0-0", "body 1-0", "body 0-1"]
    assert shown[-1]["type"] == "unwritten"
    assert sum(line["size"] for line in shown) == SETTINGS["mapped_file_size_commit_log"]


def test_a_file_copied_out_of_its_store_works_alone(small_store: Path, tmp_path: Path, call: Call) -> None:
    copies = {"x.bin": LOG, "y": Path("consumequeue/orders/0") / ("0" * 20), "z.json": Path("checkpoint")}
    for name, path in copies.items():
        (tmp_path / name).write_bytes((small_store / path).read_bytes())
    (tmp_path / "z.json").rename(tmp_path / "cp")
    kinds = [
        Counter(line["type"] for line in lines_of(call("dump", tmp_path / n, "--json"))) for n in ("x.bin", "y", "cp")
    ]
    assert kinds[0]["message"] == 20
    assert kinds[1]["unit"] == 10
    assert kinds[2] == {"checkpoint": 1, "seal": 1}


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("--topic", "orders"), 20),
        (("--topic", "nobody"), 0),
        (("--queue", 1), 10),
        (("--key", "k0-3"), 1),
        (("--key", "all", "--limit", 7), 7),
        (("--tags", "a"), 10),
        (("--from-offset", 3, "--to-offset", 4), 4),
        (("--from-time", "2000-01-01", "--to-time", "2001-01-01"), 0),
    ],
)
def test_what_is_asked_for_is_shown(arguments: tuple[object, ...], count: int, small_store: Path, call: Call) -> None:
    assert len(lines_of(call("dump", small_store, "--type", "commitlog", "--json", *arguments))) == count


def test_a_limit_leaves_out_what_does_not_have_the_property(small_store: Path, call: Call) -> None:
    kinds = Counter(line["type"] for line in lines_of(call("dump", small_store, "--queue", 1, "--json")))
    assert kinds == {"message": 10, "unit": 10, "unwritten": 1}


def test_damage_is_shown_and_stepped_over(small_store: Path, call: Call) -> None:
    positions = [line["position"] for line in lines_of(call("dump", small_store / LOG, "--json"))]
    data = bytearray((small_store / LOG).read_bytes())
    data[positions[5] + HEAD.size] ^= 1
    (small_store / LOG).write_bytes(data)
    shown = lines_of(call("dump", small_store / LOG, "--json"))
    assert [line["position"] for line in shown] == positions
    assert shown[5]["type"] == "damage"
    assert shown[5]["reason"] == "BAD_CRC"
    assert "cannot be read: a body that does not have the CRC" in call("dump", small_store / LOG).stdout


def test_every_byte_of_a_record_is_shown_beside_its_field(small_store: Path, call: Call) -> None:
    item = next(dump(small_store / LOG))
    shown = "".join(hexadecimal for _, hexadecimal, _, _ in item.rows())
    assert bytes.fromhex(shown) == item.data
    assert len(item.data) == item.size
    text = call("dump", small_store / LOG, "--hex", "--limit", 1).stdout
    assert "daa320a7" in text
    assert "topic = orders" in text


def test_what_a_terminal_would_obey_is_escaped(tmp_path: Path, call: Call) -> None:
    with stratalog.open(tmp_path / "store", **SETTINGS) as store:
        store.put("orders", b"a\x1b[2Jb\rc\xe2\x80\xaed", keys=["\x1b]0;x\x07"])
    for more in ([], ["--hex"]):
        text = call("dump", tmp_path / "store", *more).stdout
        assert "\\x1b[2J" in text
        assert not {"\x1b", "\r", "\x07", "\u202e"} & set(text)


def test_a_compressed_body_is_shown_plain_up_to_a_limit(tmp_path: Path, call: Call) -> None:
    flags = int(SysFlag.COMPRESSED) | int(Compression.ZLIB)
    for body in (b"plain", bytes(17 << 20)):
        record = Record(topic=b"t", body=zlib.compress(body), sys_flag=flags, commit_log_offset=0)
        (tmp_path / ("0" * 20)).write_bytes(record.encode())
        (line,) = lines_of(call("dump", tmp_path / ("0" * 20), "--json", "--type", "commitlog"))
        shown = line.get("body", line.get("bodyBase64"))
        assert len(str(shown)) < 1 << 17
        assert (shown == "plain") == (body == b"plain")


@pytest.mark.parametrize("name", ["plain-5.5.0", "inner-batch", "queue-ext", "lmq", "ipv6", "long-topic", "halt-5.3.3"])
def test_every_file_that_rocketmq_wrote_is_shown(name: str, tmp_path: Path) -> None:
    case = golden_case(f"local/{name}")
    kinds = Counter(item.kind for item in dump(case.unpack_store(tmp_path)))
    assert kinds["message"] == len(case.expected("record"))
    assert "damage" not in kinds
    expected = sum(file["indexCount"] - 1 for file in case.expected("index-file") if "indexCount" in file)
    assert kinds["index-item"] >= expected


def test_a_brokers_timer_and_configuration_are_shown(tmp_path: Path) -> None:
    kinds = Counter(item.kind for item in dump(golden_case("broker").unpack_store(tmp_path)))
    assert kinds["timer-unit"] > 200
    assert kinds["timer-slot"] > 20
    assert kinds["timer-check"] == 1
    assert kinds["config"] > 10
    assert "damage" not in kinds


def test_a_closed_pipe_ends_it_quietly(small_store: Path) -> None:
    program = f"exec {sys.executable} -m stratalog.cli.main dump {small_store} --json"
    done = subprocess.run(
        ["bash", "-c", f"{program} | head -1; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] in ("0", "141")


def test_a_file_that_is_nothing_we_know_is_refused_with_the_types(tmp_path: Path, call: Call) -> None:
    (tmp_path / "f").write_bytes(b"\xff" * 100)
    result = call("dump", tmp_path / "f")
    assert result.exit_code == 2
    assert "--type commitlog|consumequeue" in result.stderr


def test_a_link_beside_the_store_is_not_its_own(small_store: Path, call: Call) -> None:
    (small_store.parent / "config").symlink_to("/nowhere")
    shown = call("dump", small_store, "--json")
    assert "symbolic link" not in shown.stdout + shown.stderr
