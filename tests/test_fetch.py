"""Downloads from a local server: checked, tried again, from the next mirror, and unpacked where they belong."""

from __future__ import annotations

import io
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from onepass.data import fetch
from onepass.data.fetch import ARCHIVES, Archive, extract, get
from onepass.errors import Refused

FILES = {"toy-tree/meta": b"names", "toy-tree/deep/er/data_batch": bytes(range(256)) * 999}


def tar(files: dict[str, bytes], mode: str = "gz", extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{mode}") as opened:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            opened.addfile(info, io.BytesIO(content))
        for info in extra:
            opened.addfile(info)
    return out.getvalue()


def zipped(files: dict[str, bytes], mode: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as opened:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            opened.writestr(info, content)
    return out.getvalue()


class Server:
    """Serves what `answers` say for a path, one after the other and the last for ever; keeps what was asked for."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, bytes, int | None]]] = {}  # status, body, bytes that are sent of it
        self.asked: list[str] = []
        self.headers: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                server.headers.append(self.headers["Accept-Encoding"])
                left = server.answers.get(self.path, [(404, b"", None)])
                status, body, sent = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[:sent])

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for data, and no pauses between attempts."""
    monkeypatch.delenv("ONEPASS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "PAUSES", (0.0, 0.0))
    return tmp_path / "data"


@pytest.fixture
def toy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A data set `toy` in an archive, which the mirrors /one and /two are said to have."""

    def make(content: bytes, *, file: str = "toy.tar.gz") -> None:
        mirrors = (f"{server.url}/one", f"{server.url}/two/")
        monkeypatch.setitem(ARCHIVES, "toy", Archive(file, md5(content).hexdigest(), "toy-tree", mirrors))
        server.answers[f"/one/{file}"] = [(200, content, None)]

    return make


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---- what is got


@pytest.mark.parametrize("content", [tar(FILES), tar(FILES, "xz"), tar({"./" + k: v for k, v in FILES.items()}), zipped(FILES)])
def test_an_archive_is_downloaded_and_unpacked(content: bytes, server: Server, home: Path, toy: Callable[..., None]) -> None:
    toy(content)
    told: list[tuple[str, int, int]] = []
    assert get("toy", home, tell=lambda *now: told.append(now)) == home / "toy-tree"
    assert {k: v for k, v in everything(home).items() if not k.startswith(".")} == FILES
    assert [k for k in everything(home) if k.startswith(".")] in ([], [".toy-tree.lock"])  # the archive is not kept
    assert server.asked == ["/one/toy.tar.gz"] and server.headers == ["identity"]
    for what in "downloading toy.tar.gz", "unpacking toy.tar.gz":
        done = [d for w, d, _ in told if w == what]
        assert done == sorted(done) and done[-1] == {t for w, _, t in told if w == what}.pop() > 0


def test_what_is_there_is_not_downloaded(
    server: Server, home: Path, toy: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy(tar(FILES))
    (home / "elsewhere" / "toy-tree").mkdir(parents=True)
    monkeypatch.setenv("ONEPASS_DATA", str(home / "elsewhere"))
    assert get("toy", home / "first") == home / "elsewhere" / "toy-tree"
    assert not server.asked and not (home / "first").exists()


def test_where_nothing_else_is_said_it_goes_to_the_users_cache(home: Path, toy: Callable[..., None]) -> None:
    toy(tar(FILES))
    assert get("toy") == home.parent / "cache" / "onepass" / "toy-tree"


def test_of_two_at_a_time_one_downloads(server: Server, home: Path, toy: Callable[..., None]) -> None:
    toy(tar(FILES))
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(get("toy", home))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [home / "toy-tree"] * 3 and len(server.asked) == 1


# ---- mirrors


def test_a_wrong_checksum_falls_to_the_next_mirror(server: Server, home: Path, toy: Callable[..., None]) -> None:
    content = tar(FILES)
    toy(content)
    server.answers["/one/toy.tar.gz"] = [(200, content[:-1] + b"x", None)]
    server.answers["/two/toy.tar.gz"] = [(200, content, None)]
    get("toy", home)
    assert server.asked == ["/one/toy.tar.gz", "/two/toy.tar.gz"]


def test_a_404_falls_to_the_next_mirror_at_once(server: Server, home: Path, toy: Callable[..., None]) -> None:
    content = tar(FILES)
    toy(content)
    server.answers = {"/two/toy.tar.gz": [(200, content, None)]}
    get("toy", home)
    assert server.asked == ["/one/toy.tar.gz", "/two/toy.tar.gz"]


@pytest.mark.parametrize("broken", [(200, 1000), (200, 0), (503, None), (429, None)])
def test_a_cut_connection_or_a_busy_server_is_tried_again(
    broken: tuple[int, int | None], server: Server, home: Path, toy: Callable[..., None]
) -> None:
    content = tar(FILES)
    toy(content)
    status, sent = broken
    server.answers["/one/toy.tar.gz"] = [(status, content, sent)] * 2 + [(200, content, None)]
    assert get("toy", home).is_dir() and server.asked == ["/one/toy.tar.gz"] * 3


def test_a_mirror_of_ones_own_is_asked_first(server: Server, home: Path, toy: Callable[..., None], tmp_path: Path) -> None:
    content = tar(FILES)
    toy(content)
    server.answers["/mine/toy.tar.gz"] = [(200, content, None)]
    get("toy", home / "a", mirrors=[f"{server.url}/mine"])
    get("toy", home / "b", mirrors=[f"{server.url}/mine/toy.tar.gz"])
    assert server.asked == ["/mine/toy.tar.gz"] * 2
    (tmp_path / "toy.tar.gz").write_bytes(content)
    get("toy", home / "c", mirrors=[str(tmp_path)])
    get("toy", home / "d", mirrors=[str(tmp_path / "toy.tar.gz")])
    assert len(server.asked) == 2 and (tmp_path / "toy.tar.gz").read_bytes() == content


def test_when_no_mirror_gives_it_each_is_named_with_its_reason(server: Server, home: Path, toy: Callable[..., None]) -> None:
    content = tar(FILES)
    toy(content)
    server.answers = {"/one/toy.tar.gz": [(200, b"something else", None)], "/cut/toy.tar.gz": [(200, content, 10)]}
    with pytest.raises(Refused) as error:
        get("toy", home, mirrors=["/nowhere/at/all", "http://127.0.0.1:9", f"{server.url}/cut"])
    said = str(error.value)
    assert "/nowhere/at/all/toy.tar.gz (No such file" in said and "127.0.0.1:9/toy.tar.gz (the connection failed" in said
    assert "/cut/toy.tar.gz (the connection failed or was cut)" in said
    assert "/one/toy.tar.gz (what it gave has another checksum)" in said and "/two/toy.tar.gz (it answered 404)" in said
    assert ARCHIVES["toy"].md5 in said and "--mirror" in said and "\n" not in said
    assert not (home / "toy-tree").exists()


def test_what_a_killed_process_left_is_cleared_and_a_whole_archive_used(
    server: Server, home: Path, toy: Callable[..., None]
) -> None:
    content = tar(FILES)
    toy(content)
    aside = home / ".toy-tree.aside"
    (aside / "unpacked" / "toy-tree").mkdir(parents=True)
    (aside / "unpacked" / "toy-tree" / "half").write_bytes(b"h")
    (aside / "tmpdownload").write_bytes(b"t")
    (aside / "toy.tar.gz").write_bytes(content)
    assert everything(get("toy", home)) == {k.removeprefix("toy-tree/"): v for k, v in FILES.items()}
    assert not server.asked and not aside.exists()


# ---- archives that would do harm


def linked(name: str, kind: bytes, to: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


HARMFUL = {
    "tar ../": (tar(FILES | {"../outside": b"o"}), "`../outside` that would land outside"),
    "tar deep ../": (tar(FILES | {"toy-tree/../../outside": b"o"}), "would land outside"),
    "tar absolute": (tar(FILES | {"/tmp/outside-of-onepass": b"o"}), "would land outside"),
    "tar windows": (tar(FILES | {"..\\outside": b"o"}), "would land outside"),
    "tar drive": (tar(FILES | {"C:\\outside": b"o"}), "would land outside"),
    "tar symlink out": (tar(FILES, extra=(linked("toy-tree/l", tarfile.SYMTYPE, "/etc"),)), "`toy-tree/l` that is a link"),
    "tar symlink in": (tar(FILES, extra=(linked("toy-tree/l", tarfile.SYMTYPE, "meta"),)), "is a link"),
    "tar hard link": (tar(FILES, extra=(linked("toy-tree/l", tarfile.LNKTYPE, "../../x"),)), "is a link"),
    "tar device": (tar(FILES, extra=(linked("toy-tree/d", tarfile.CHRTYPE),)), "`toy-tree/d` that is a device"),
    "tar fifo": (tar(FILES, extra=(linked("toy-tree/d", tarfile.FIFOTYPE),)), "is a device"),
    "zip ../": (zipped(FILES | {"../outside": b"o"}), "`../outside` that would land outside"),
    "zip absolute": (zipped(FILES | {"/tmp/outside-of-onepass": b"o"}), "would land outside"),
    "zip windows": (zipped(FILES | {"..\\outside": b"o"}), "would land outside"),
    "zip symlink": (zipped({"toy-tree/l": b"/etc"}, stat.S_IFLNK | 0o777), "`toy-tree/l` that is a link"),
    "zip device": (zipped({"toy-tree/d": b""}, stat.S_IFCHR | 0o666), "is a device"),
    "twice": (tar(FILES, extra=(tarfile.TarInfo("toy-tree/meta"),)), "is damaged"),
    "cut": (tar(FILES)[:-400], "is damaged"),
    "no archive": (b"<html>sign in to the hotel's network</html>", "is damaged, or no archive"),
    "empty": (b"", "is damaged, or no archive"),
}


@pytest.mark.parametrize(("content", "said"), HARMFUL.values(), ids=HARMFUL)
def test_a_harmful_archive_is_refused_and_leaves_nothing(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "toy.tar.gz").write_bytes(content)
    with pytest.raises(Refused, match=said):
        extract(tmp_path / "toy.tar.gz", tmp_path / "in" / "to")
    outside = {k for k in everything(tmp_path) if not k.startswith("in/to/")}
    assert outside == {"toy.tar.gz"} and not Path("/tmp/outside-of-onepass").exists()
    if "nothing" in said or "land" in said or "is a" in said and "damaged" not in said:
        assert not (tmp_path / "in" / "to").exists()


@pytest.mark.parametrize("name", ["tar ../", "zip ../", "tar symlink out"])
def test_a_harmful_archive_of_the_right_checksum_is_refused_too(
    name: str, server: Server, home: Path, toy: Callable[..., None]
) -> None:
    toy(HARMFUL[name][0])
    with pytest.raises(Refused, match="nothing of it was unpacked"):
        get("toy", home)
    assert not (home / "toy-tree").exists() and not (home / "outside").exists() and not (home.parent / "outside").exists()


def test_an_archive_without_its_folder_is_refused(home: Path, toy: Callable[..., None]) -> None:
    toy(tar({"other/meta": b"m"}))
    with pytest.raises(Refused, match="no folder `toy-tree` in it"):
        get("toy", home)
    assert not (home / "other").exists()


# ---- what cannot be got


def test_imagenet_says_how_to_get_it(home: Path) -> None:
    for name in "imagenet", "imagenet100":
        with pytest.raises(Refused, match=rf"account.*train/<wnid>.*`{home}`.*data check imagenet100"):
            get(name, home)


def test_other_names_are_refused_with_the_nearest(home: Path) -> None:
    with pytest.raises(Refused, match="no data set to download `cifar-100`; did you mean `cifar100`"):
        get("cifar-100", home)


def test_an_address_of_another_kind_is_refused(home: Path, toy: Callable[..., None]) -> None:
    toy(tar(FILES))
    with pytest.raises(Refused, match="neither http nor https"):
        get("toy", home, mirrors=["ftp://example.org/toy.tar.gz"])


def test_a_folder_that_cannot_be_written_is_named(home: Path, toy: Callable[..., None]) -> None:
    toy(tar(FILES))
    home.write_text("a file")
    with pytest.raises(Refused, match=rf"`toy.tar.gz` could not be kept in `{home}` \(.*--data-dir"):
        get("toy", home)


def test_the_official_archives_are_those_of_the_issue() -> None:
    assert {name: (a.file, a.md5, a.tree) for name, a in ARCHIVES.items()} == {
        "cifar10": ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
        "cifar100": ("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
        "tiny-imagenet": ("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", "tiny-imagenet-200"),
    }
    for archive in ARCHIVES.values():
        assert archive.mirrors[0].startswith("https://")
