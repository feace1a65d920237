"""Data sets from the web: downloaded, checked, and unpacked so that nothing lands outside their folder."""

import gzip
import shutil
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, NamedTuple, cast
from urllib.parse import urlsplit

from onepass.data import find, places
from onepass.errors import Refused, unknown
from onepass.files import locked

Tell = Callable[[str, int, int], None]
"""Hears what is being done, how much of it is done, and of how much: bytes; 0 where that is not known."""

PAUSES = (1.0, 3.0)  # seconds before a broken connection is tried again


@dataclass(frozen=True)
class Archive:
    """The official file of a data set."""

    file: str
    md5: str
    tree: str  # the folder that is in it
    mirrors: tuple[str, ...]  # folders of the web that have it


ARCHIVES = {
    "cifar10": Archive(
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
        ("https://www.cs.toronto.edu/~kriz", "http://www.cs.toronto.edu/~kriz"),
    ),
    "cifar100": Archive(
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
        ("https://www.cs.toronto.edu/~kriz", "http://www.cs.toronto.edu/~kriz"),
    ),
    "tiny-imagenet": Archive(
        "tiny-imagenet-200.zip",
        "90528d7ca1a48142e341f4ef8d21d0de",
        "tiny-imagenet-200",
        ("https://cs231n.stanford.edu", "http://cs231n.stanford.edu"),
    ),
}

IMAGENET = (
    "ImageNet is given to those alone who have an account and accept its terms, so it cannot be got from here. Make an account at "
    "https://image-net.org/download.php, download the training and validation images of ILSVRC 2012, and unpack them as "
    "`imagenet/train/<wnid>/*.JPEG` and `imagenet/val/<wnid>/*.JPEG` (the hundred classes are enough) in `{home}` or in the folder "
    "of `--data-dir`; `onepass data check imagenet100` says whether all is there."
)


def home(folder: Path | None = None) -> Path:
    """Where a download goes: the first place in which data is looked for."""
    return places(folder)[0]


def get(name: str, folder: Path | None = None, *, mirrors: Sequence[str] = (), tell: Tell | None = None) -> Path:
    """The official folder of a data set, downloaded if it is nowhere yet.  `mirrors`, asked first, are web addresses of its archive
    or of a folder with it, or paths on this machine.  What was begun and broken off leaves nothing that could be taken for whole.
    """
    if name in ("imagenet", "imagenet100"):
        raise Refused(IMAGENET.format(home=home(folder)))
    if name not in ARCHIVES:
        raise unknown("data set to download", name, [*ARCHIVES, "imagenet100"])
    archive, into = ARCHIVES[name], home(folder)
    there = _there(archive, folder, name)
    if there is not None:
        return there
    aside = into / f".{archive.tree}.aside"
    try:
        into.mkdir(parents=True, exist_ok=True)
        with locked(into / f".{archive.tree}.lock"):
            there = _there(archive, folder, name)  # another process may just have got it
            if there is not None:
                return there
            for left in aside.glob("*"):  # of a process that was killed; a whole archive is used again
                if left.name != archive.file:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            file = download(archive, aside, mirrors=mirrors, tell=tell)
            extract(file, aside / "unpacked", tell=tell)
            if not (aside / "unpacked" / archive.tree).is_dir():
                raise Refused(f"`{archive.file}` has no folder `{archive.tree}` in it; nothing was kept of it.")
            (aside / "unpacked" / archive.tree).replace(into / archive.tree)
            shutil.rmtree(aside)
    except OSError as error:
        raise Refused(
            f"`{archive.file}` could not be kept in `{into}` ({error.strerror or error}); make room there, or name another folder "
            "with `--data-dir` or $ONEPASS_DATA."
        ) from error
    return into / archive.tree


def _there(archive: Archive, folder: Path | None, name: str) -> Path | None:
    try:
        return find(archive.tree, folder if folder and folder.is_dir() else None, name)
    except Refused:
        return None


# -- download ------------------------------------------------------------------------------------------------------------


def download(archive: Archive, into: Path, *, mirrors: Sequence[str] = (), tell: Tell | None = None) -> Path:
    """The archive, whole and of the right checksum, from the first mirror that gives it."""
    import pooch

    pooch.get_logger().setLevel("ERROR")
    wrong: list[str] = []
    for mirror in (*mirrors, *archive.mirrors):
        url = mirror if mirror.endswith(archive.file) else f"{mirror.rstrip('/')}/{archive.file}"
        if not urlsplit(url).scheme:
            url = str(Path(url).expanduser())
        for pause in (*PAUSES, None):
            downloader = _downloader(url, archive.file, tell)
            try:
                return Path(pooch.retrieve(url, f"md5:{archive.md5}", fname=archive.file, path=into, downloader=downloader))
            except Exception as error:  # requests has a dozen kinds, and pooch its own
                if isinstance(error, OSError) and not _of_the_web(error) and urlsplit(url).scheme:
                    raise  # the disk's
                again, reason = _reason(error)
                if not again or pause is None:
                    wrong.append(f"{url} ({reason})")
                    break
            time.sleep(pause)
    raise Refused(
        f"`{archive.file}` could not be got from {'; nor from '.join(wrong)}. Download it elsewhere (its md5 is {archive.md5}) and "
        "say where it is with `--mirror`, an address or a path."
    )


def _downloader(url: str, file: str, tell: Tell | None) -> Any:
    import pooch

    if not urlsplit(url).scheme:
        return _copied
    if urlsplit(url).scheme not in ("http", "https"):
        raise Refused(f"`{url}` is neither http nor https, nor a path; give one of these to `--mirror`.")
    plain = {"Accept-Encoding": "identity"}  # else a server may say that the .gz is in the transfer, and it is unpacked on the way
    return pooch.HTTPDownloader(
        progressbar=cast(Any, _Bar(f"downloading {file}", tell)), chunk_size=2**18, timeout=30, headers=plain
    )


def _copied(url: str, output: Any, _: Any) -> None:
    """A file of this machine, as pooch would download it."""
    with open(url, "rb") as source, open(output, "wb") as opened:
        shutil.copyfileobj(source, opened)


class _Bar:
    """What pooch calls a progress bar."""

    def __init__(self, what: str, tell: Tell | None):
        self.what, self.tell, self.total, self.done = what, tell, 0, 0

    def update(self, n: int) -> None:
        self.done += n
        if self.tell is not None:
            self.tell(self.what, min(self.done, self.total) if self.total else self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None: ...


def _of_the_web(error: Exception) -> bool:
    import requests

    return isinstance(error, requests.RequestException)


def _reason(error: Exception) -> tuple[bool, str]:
    """Whether trying again may help, and what went wrong in a few words."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        code = error.response.status_code
        return code >= 500 or code == 429, f"it answered {code}"
    if isinstance(error, requests.Timeout):
        return True, "it did not answer in time"
    if isinstance(error, (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        return True, "the connection failed or was cut"
    if isinstance(error, requests.RequestException):
        return False, str(error)
    if isinstance(error, ValueError) and "hash" in str(error):
        return False, "what it gave has another checksum"
    return False, getattr(error, "strerror", None) or str(error)


# -- unpack --------------------------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """A file or a folder in an archive."""

    name: str
    kind: str  # "file", "folder", or what else it is
    size: int
    open: Callable[[], IO[bytes]]


def extract(archive: Path, into: Path, *, tell: Tell | None = None) -> None:
    """Unpack a tar or a zip.  One with a member that would land outside, or that is a link or a device, is refused as a whole."""
    try:
        with tarfile.open(archive) if tarfile.is_tarfile(archive) else zipfile.ZipFile(archive) as opened:
            members = list(_of_tar(opened) if isinstance(opened, tarfile.TarFile) else _of_zip(opened))
            for member in members:
                _check(member, archive)
            into.mkdir(parents=True)
            total, done = sum(m.size for m in members), 0
            for member in members:
                path = into / member.name
                (path if member.kind == "folder" else path.parent).mkdir(parents=True, exist_ok=True)
                if member.kind == "file":
                    with member.open() as source, open(path, "xb") as target:
                        shutil.copyfileobj(source, target, 2**20)
                done += member.size
                if tell is not None:
                    tell(f"unpacking {archive.name}", done, total)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, FileExistsError) as error:
        raise Refused(f"`{archive.name}` is damaged, or no archive of tar or zip ({error}); download it again.") from error


def _check(member: Member, archive: Path) -> None:
    name = member.name
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.is_absolute() or windows.anchor or ".." in (*posix.parts, *windows.parts) or "\0" in name:
        raise Refused(f"`{archive.name}` has a member `{name}` that would land outside its folder; nothing of it was unpacked.")
    if member.kind not in ("file", "folder"):
        raise Refused(f"`{archive.name}` has a member `{name}` that is a {member.kind}; nothing of it was unpacked.")


def _of_tar(opened: tarfile.TarFile) -> Iterator[Member]:
    for info in opened.getmembers():
        link, folder = info.issym() or info.islnk(), info.isdir()
        kind = "link" if link else "folder" if folder else "file" if info.isfile() else "device"
        yield Member(info.name, kind, info.size, lambda info=info: cast(IO[bytes], opened.extractfile(info)))


def _of_zip(opened: zipfile.ZipFile) -> Iterator[Member]:
    for info in opened.infolist():
        mode = stat.S_IFMT(info.external_attr >> 16)
        plain = "folder" if info.is_dir() else "file"
        kind = "link" if mode == stat.S_IFLNK else plain if mode in (0, stat.S_IFREG, stat.S_IFDIR) else "device"
        yield Member(info.filename, kind, info.file_size, lambda info=info: opened.open(info))
