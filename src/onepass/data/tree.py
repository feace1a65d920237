"""A folder for each class: the image files in it, found without opening one."""

import os
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from unicodedata import normalize

from onepass.errors import Refused
from onepass.images import suffixes


@dataclass(frozen=True)
class Found:
    """Image files in the order of their names, and a digest of their paths, sizes and times."""

    paths: tuple[str, ...]
    stamp: str


def folders(root: Path) -> list[str]:
    """The names of the folders in a folder, sorted, but for hidden ones."""
    try:
        with os.scandir(root) as entries:
            return sorted(e.name for e in entries if not e.name.startswith(".") and _kind(e) == "folder")
    except OSError as error:
        raise Refused(f"`{root}` cannot be read ({error.strerror}); give a folder of images.") from error


def images_in(root: Path) -> Found:
    """Every image below a folder, by its suffix.  Links are followed, but not in circles or upwards; hidden files are none."""
    digest = blake2b(digest_size=16)
    paths: list[str] = []
    known = suffixes()
    met = {_identity(parent) for parent in root.resolve().parents}

    def walk(folder: str) -> None:
        here = _identity(folder)
        if here in met:
            return
        met.add(here)
        with os.scandir(folder) as opened:
            entries = sorted(opened, key=lambda e: e.name)
        for entry in entries:
            if entry.name.startswith("."):
                continue
            kind = _kind(entry)
            if kind == "folder":
                walk(entry.path)
            elif kind in ("file", "link") and os.path.splitext(entry.name)[1].lower() in known:
                stat = entry.stat(follow_symlinks=kind == "file")  # a link to nothing is an image that cannot be read
                paths.append(entry.path)
                digest.update(os.fsencode(f"{entry.path}\0{stat.st_size}\0{stat.st_mtime_ns}\n"))

    try:
        walk(str(root))
    except OSError as error:
        raise Refused(f"`{error.filename or root}` cannot be read ({error.strerror}).") from error
    return Found(tuple(paths), digest.hexdigest())


def _identity(folder: str | Path) -> tuple[int, int]:
    stat = os.stat(folder)
    return stat.st_dev, stat.st_ino


def called(folder: str) -> str:
    """The name of a class from that of its folder, however the file system spells it."""
    return normalize("NFC", printable(folder))


def printable(path: str) -> str:
    """A path whose bytes are no UTF-8 can be opened, but not printed."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _kind(entry: "os.DirEntry[str]") -> str:
    try:
        return "folder" if entry.is_dir() else "file" if entry.is_file() else "link" if entry.is_symlink() else "other"
    except OSError:  # a link to itself
        return "link"
