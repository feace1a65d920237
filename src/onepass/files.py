"""Files that are written aside, brought to the disk, and only then take their names."""

import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class aside:
    """A file that is written aside, brought to the disk, and only then takes its name."""

    def __init__(self, path: Path):
        self.path, self.temporary = path, path.with_name(path.name + ".aside")

    def __enter__(self) -> Any:
        self.file = open(self.temporary, "wb")
        return self.file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.file.close()
            if kind is None:
                sync(self.temporary)
                os.replace(self.temporary, self.path)
                if os.name == "posix":
                    sync(self.path.parent)
        finally:
            self.temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    with aside(path) as file:
        file.write(json.dumps(value, indent=1, allow_nan=False).encode() + b"\n")


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Generator[None, None, None]:
    """Be the only process in a block of this `path`; who comes second says that it is `waiting`, and waits."""
    with open(path, "w") as file:
        try:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is not None:
                    waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
        except ImportError:
            pass  # not a POSIX system: two processes at one time are the user's affair
        yield
