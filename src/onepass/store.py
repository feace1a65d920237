"""A folder of records that many machines reach by an address: a run's own is fetched before it, and put there as it goes."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onepass.errors import Refused

FIRST = ("log.jsonl", "timing.jsonl", "probes.npz", "stream.json", "env.json", "config.json", "model.safetensors")
"""What a checkpoint and an end refer to is there before them: taken up, a longer log is cut to what the checkpoint knows."""


class Store:
    """Anything fsspec opens: `s3://bucket/runs`, `gs://`, `sftp://host/runs`, `file:///shared/runs`."""

    def __init__(self, address: str):
        from fsspec.core import url_to_fs

        self.address = address
        try:
            opened: Any = url_to_fs(address)
        except (ImportError, ValueError, OSError) as error:
            raise Refused(
                f"`--store {address}` cannot be opened ({error}); install what it names, or correct the address."
            ) from error
        self.files, self.root = opened

    def _at(self, *parts: str | Path) -> str:
        return "/".join([self.root.rstrip("/"), *(Path(p).as_posix() for p in parts)])

    @contextmanager
    def _said(self, done: str) -> Generator[None, None, None]:
        try:
            yield
        except Refused:
            raise
        except Exception as error:  # every file system has its own
            raise Refused(f"`--store {self.address}` cannot be {done} ({error}); give another, or the rights to it.") from error

    def write(self, name: str, text: str) -> None:
        """A small file; what fails is the user's to mend."""
        with self._said("written"):
            self.files.makedirs(self.root, exist_ok=True)
            with self.files.open(self._at(name), "w") as file:
                file.write(text)

    def has(self, name: str) -> bool:
        with self._said("read"):
            self.files.invalidate_cache()
            return bool(self.files.exists(self._at(name)))

    def remove(self, name: str) -> None:
        if self.has(name):
            with self._said("written"):
                self.files.rm(self._at(name))

    def fetch(self, folder: Path, root: Path) -> None:
        """The run's folder as it is there, below `root`; nothing, if it is not."""
        with self._said("read"):
            self.files.invalidate_cache()
            if not self.files.isdir(self._at(folder)):
                return
            (root / folder).mkdir(parents=True, exist_ok=True)
            names = [str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in self.files.ls(self._at(folder), detail=True)]
            for name in names:
                if name in (*FIRST, "checkpoint.safetensors", "done.json"):
                    self.files.get_file(self._at(folder, name), str(root / folder / name))

    def put(self, folder: Path, root: Path) -> None:
        """The run's folder as it is here: whole files only, each under its name when it is all there."""
        here = root / folder
        ended = (here / "done.json").is_file()
        with self._said("written"):
            self.files.makedirs(self._at(folder), exist_ok=True)
            for name in (*FIRST, "done.json" if ended else "checkpoint.safetensors"):
                if (here / name).is_file():
                    self.files.put_file(str(here / name), self._at(folder, f"{name}.aside"))
                    self.files.mv(self._at(folder, f"{name}.aside"), self._at(folder, name))
            if ended:
                self.remove(f"{folder.as_posix()}/checkpoint.safetensors")
