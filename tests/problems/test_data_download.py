"""Downloading from a server on this machine that cuts, forgets, changes and refuses."""

from __future__ import annotations

import errno
import hashlib
import random
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedtempo.errors import DataMissing, FedtempoError, InputError
from fedtempo.problems.data import DATASETS, DataSet, Fetching, File, download, get
from fedtempo.problems.data import download as lock
from fedtempo.problems.data import download as transfer
from fedtempo.problems.data.catalogue import folder_of

CONTENT = random.Random(0).randbytes(50_000)
OTHER = random.Random(1).randbytes(50_000)
NAME = "file.bin"


class Server(ThreadingHTTPServer):
    """Serves `content` at any path, and keeps the headers of every request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag: str | None = '"one"'
        self.ranges = True
        self.lengths = True
        self.cuts: list[int] = []
        """After how many bytes to hang up, for the next requests."""
        self.answers: list[tuple[int, dict[str, str]]] = []
        """What to answer the next requests with instead."""
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[dict[str, str]] = []

    def handle_error(self, *_: object) -> None:
        pass  # whoever asked has hung up

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{NAME}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.asked.append(dict(self.headers.items()))
        assert server.gate.wait(20)
        if server.answers:
            code, headers = server.answers.pop(0)
            self.send_response(code)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            return
        start = self.start()
        body = server.content[start:]
        if start >= len(server.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.content)}")
            body = b""
        elif start:
            self.send_response(206)
            total = len(server.content)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        if server.etag:
            self.send_header("ETag", server.etag)
        if server.lengths:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)

    def start(self) -> int:
        asked, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if not asked or not self.server.ranges or (condition is not None and condition != self.server.etag):
            return 0
        found = re.fullmatch(r"bytes=(\d+)-", asked)
        assert found, asked
        return int(found[1])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0.0)
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=[0.005])
        thread.start()
        yield made
        made.gate.set()
        made.shutdown()
        thread.join()


@pytest.fixture
def mirrored(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server has a data set of one file."""
    dataset = replace(DATASETS["shakespeare"], files=(replace(official(CONTENT), address=server.address),))
    monkeypatch.setitem(DATASETS, "shakespeare", dataset)  # type: ignore[arg-type]
    return server


def official(content: bytes, **changes: object) -> File:
    file = File(NAME, "https://data.invalid/file.bin", "sha256", hashlib.sha256(content).hexdigest(), 100_000)
    return replace(file, **changes)


def fetch(server: Server, folder: Path, file: File | None = None, **options) -> Path:
    return download.fetch(file or official(CONTENT), folder, address=server.address, **options)


def left(folder: Path) -> list[str]:
    """What lies in the folder, beside the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_a_plain_download(server: Server, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    path = fetch(server, tmp_path / "new" / "folder", tell=lambda *far: told.append(far))
    assert path == tmp_path / "new" / "folder" / NAME
    assert path.read_bytes() == CONTENT
    assert left(path.parent) == [NAME]
    assert told[-1] == (50_000, 50_000)
    assert "Range" not in server.asked[0]


def test_a_set_by_its_name(mirrored: Server, tmp_path: Path) -> None:
    told: list[Fetching] = []
    [path] = get("shakespeare", tmp_path, on_progress=told.append)
    assert path == folder_of("shakespeare", tmp_path) / NAME
    assert path.read_bytes() == CONTENT
    assert told[-1] == Fetching(NAME, 50_000, 50_000)


def test_from_a_mirror(mirrored: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    elsewhere = replace(DATASETS["shakespeare"], files=(official(CONTENT),))
    monkeypatch.setitem(DATASETS, "shakespeare", elsewhere)  # type: ignore[arg-type]
    [path] = get("shakespeare", tmp_path, addresses={NAME: mirrored.address})
    assert path.read_bytes() == CONTENT
    with pytest.raises(InputError, match=r"no file other; its files are file\.bin"):
        get("shakespeare", tmp_path, addresses={"other": mirrored.address})


def test_an_md5(server: Server, tmp_path: Path) -> None:
    md5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
    assert fetch(server, tmp_path, official(CONTENT, algorithm="md5", digest=md5)).read_bytes() == CONTENT


def test_what_is_there_stays(server: Server, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)
    assert fetch(server, tmp_path) == tmp_path / NAME
    assert server.asked == []
    assert [path.name for path in tmp_path.iterdir()] == [NAME]  # a folder that cannot be written to will do


def test_another_file_of_that_name_is_replaced(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(OTHER)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert "is not the official file" in caplog.text


def test_cut_off_and_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = [20_000, 5_000]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert [(asked.get("Range"), asked.get("If-Range")) for asked in server.asked] == [
        (None, None),
        ("bytes=20000-", '"one"'),
        ("bytes=25000-", '"one"'),
    ]
    assert left(tmp_path) == [NAME]


def test_cut_off_too_often_then_resumed_by_the_next_call(server: Server, tmp_path: Path) -> None:
    server.cuts = [10_000, 10_000, 10_000]
    with pytest.raises(DataMissing, match=r"failed 3 times \(after 30,000 of 50,000 bytes\).*--data-dir"):
        fetch(server, tmp_path)
    assert left(tmp_path) == [f"{NAME}.part", f"{NAME}.part.version"]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1]["Range"] == "bytes=30000-"
    assert server.asked[-1]["If-Range"] == '"one"'
    assert left(tmp_path) == [NAME]


def test_a_server_without_ranges(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cuts = False, [20_000]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_a_server_without_lengths(server: Server, tmp_path: Path) -> None:
    server.lengths = False
    told: list[tuple[int, int | None]] = []
    assert fetch(server, tmp_path, tell=lambda *far: told.append(far)).read_bytes() == CONTENT
    assert told[-1] == (50_000, None)


def test_a_file_that_has_changed_begins_again(server: Server, tmp_path: Path) -> None:
    server.content, server.etag, server.cuts = OTHER, '"two"', [20_000, 0, 0]
    with pytest.raises(DataMissing):
        fetch(server, tmp_path)
    server.content, server.etag = CONTENT, '"one"'
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1]["If-Range"] == '"two"'
    assert len(server.asked) == 4  # the answer to that request is the whole file


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_a_change_that_the_server_does_not_tell(server: Server, tmp_path: Path, etag: str | None) -> None:
    server.etag = etag
    server.content, server.cuts = OTHER, [20_000, 0, 0]
    with pytest.raises(DataMissing):
        fetch(server, tmp_path)
    server.content = CONTENT
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert [asked.get("Range") for asked in server.asked[-2:]] == ["bytes=20000-", None]
    assert "If-Range" not in server.asked[-2]


def test_a_note_that_is_no_version(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:10_000])
    (tmp_path / f"{NAME}.part.version").write_text('"one"\r\nX-More: yes')
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert "If-Range" not in server.asked[0]


def test_a_part_that_is_whole_needs_no_server(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == []
    assert left(tmp_path) == [NAME]


@pytest.mark.parametrize("length", [50_000, 60_000, 100_000])
def test_a_part_that_is_too_long(server: Server, tmp_path: Path, length: int) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(bytes(length))
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert left(tmp_path) == [NAME]


@pytest.mark.parametrize("said", ["bytes 0-49999/50000", "bytes 10000-20000/50000", "nonsense", ""])
def test_a_range_that_was_not_asked_for(server: Server, tmp_path: Path, said: str) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:10_000])
    server.answers = [(206, {"Content-Range": said})]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert "Range" not in server.asked[-1]


def test_a_wrong_digest(server: Server, tmp_path: Path) -> None:
    server.content = OTHER
    with pytest.raises(DataMissing) as caught:
        fetch(server, tmp_path)
    for words in (hashlib.sha256(CONTENT).hexdigest(), hashlib.sha256(OTHER).hexdigest(), NAME, "--data-dir"):
        assert words in str(caught.value)
    assert left(tmp_path) == []
    assert len(server.asked) == 1


def test_a_wrong_digest_leaves_what_was_there(server: Server, tmp_path: Path) -> None:
    server.content = OTHER
    (tmp_path / NAME).write_bytes(b"mine")
    with pytest.raises(DataMissing):
        fetch(server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"mine"
    assert left(tmp_path) == [NAME]


@pytest.mark.parametrize(("code", "words"), [(404, "no longer has it"), (403, "refuses it"), (204, "HTTP 204")])
def test_a_server_that_refuses(server: Server, tmp_path: Path, code: int, words: str) -> None:
    server.answers = [(code, {})]
    with pytest.raises(DataMissing, match=rf"{words}.*--data-dir"):
        fetch(server, tmp_path)
    assert left(tmp_path) == []


def test_a_server_that_is_busy(server: Server, tmp_path: Path) -> None:
    server.answers = [(503, {}), (429, {})]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    server.answers = [(503, {})] * 3
    with pytest.raises(DataMissing, match=r"failed 3 times \(HTTP 503\)"):
        fetch(server, tmp_path, official(CONTENT, name="other.bin"))


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening: refuses
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/{NAME}"
        with pytest.raises(DataMissing, match=r"cannot reach 127\.0\.0\.1 .*--data-dir FOLDER") as caught:
            download.fetch(official(CONTENT), tmp_path, address=address)
    assert caught.value.exit_code == 3


def test_a_server_that_says_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "TIMEOUT_SECONDS", 0.01)
    server.gate.clear()
    with pytest.raises(DataMissing, match=r"failed 3 times \(timed out\)"):
        fetch(server, tmp_path)


@pytest.mark.parametrize("lengths", [True, False])
def test_a_file_that_is_too_long(server: Server, tmp_path: Path, lengths: bool) -> None:
    server.lengths = lengths
    with pytest.raises(DataMissing, match=r"file\.bin has fewer than 40,000"):
        fetch(server, tmp_path, official(CONTENT, limit=40_000))
    assert left(tmp_path) == []


def test_an_interrupt_keeps_the_part(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "CHUNK", 15_000)

    def stop(done: int, total: int | None) -> None:
        if done > 20_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(server, tmp_path, tell=stop)
    assert (tmp_path / f"{NAME}.part").read_bytes() == CONTENT[:30_000]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1]["Range"] == "bytes=30000-"


def test_two_at_once(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.gate.clear()
    monkeypatch.setattr(lock.log, "warning", lambda *_: server.gate.set())  # the second one waits: let the first go on
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(server, tmp_path).read_bytes())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT, CONTENT]
    assert len(server.asked) == 1
    assert left(tmp_path) == [NAME]


def test_a_full_disk(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_open = Path.open

    def opened(path: Path, mode: str = "r", *rest, **more):
        file = true_open(path, mode, *rest, **more)
        if mode != "ab":
            return file
        file.close()
        return Full()

    class Full:
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(InputError, match=r"file\.bin\.part: No space left on device.*--data-dir"):
        fetch(server, tmp_path)


def test_a_file_where_the_folder_belongs(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mnist").write_text("in the way")
    with pytest.raises(InputError, match=r"mnist.deeper: .*another folder with --data-dir"):
        fetch(server, tmp_path / "mnist" / "deeper")


@pytest.mark.parametrize(
    "address",
    [
        "http://example.org/x",
        "ftp://example.org/x",
        "file:///etc/passwd",
        "x",
        "http://127.0.0.1@evil.org/",
        "https:///x",
    ],
)
def test_an_address_that_is_not_https(tmp_path: Path, address: str) -> None:
    with pytest.raises(InputError, match="https"):
        download.fetch(official(CONTENT), tmp_path, address=address)


@pytest.mark.parametrize("to", ["http://example.org/x", "ftp://example.org/x", "file:///etc/passwd"])
def test_a_redirect_that_is_not_https(server: Server, tmp_path: Path, to: str) -> None:
    server.answers = [(302, {"Location": to})]
    with pytest.raises(FedtempoError, match=r"--data-dir"):
        fetch(server, tmp_path)
    assert left(tmp_path) == []


def test_a_redirect_keeps_the_range(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:10_000])
    server.answers = [(302, {"Location": server.address})]
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[1]["Range"] == "bytes=10000-"


def test_an_unknown_name_and_the_catalogue() -> None:
    with pytest.raises(InputError, match=r"'MNITS'; did you mean mnist\? Known: mnist, cifar10, shakespeare"):
        get("MNITS")
    for name, dataset in DATASETS.items():
        assert isinstance(dataset, DataSet)
        assert dataset.name == name
        for file in dataset.files:
            assert file.address.startswith("https://")
            assert file.address.endswith(file.name)
            assert len(file.digest) == 2 * hashlib.new(file.algorithm).digest_size
            assert any((file.name,) == names[:1] for form in dataset.forms for names in form)
