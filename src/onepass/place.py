"""Where the records of a sweep are, as other machines are told it, and whether they see the same place and can write it."""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from onepass.errors import Refused
from onepass.store import Store


@dataclass(frozen=True)
class Place:
    """Where the records of a sweep are, as every worker is told it."""

    root: Path  # of this process
    shared: Path  # the same, for another
    store: str | None
    data_dir: Path | None
    home: Path  # what relative paths in a config are from
    token: str  # the name of a file that says that a folder of this name is this very folder

    @staticmethod
    def found(root: Path, store: str | None, data_dir: Path | None) -> "Place":
        if data_dir is None and "ONEPASS_DATA" in os.environ:
            data_dir = Path(os.environ["ONEPASS_DATA"])
        place = Place(
            root, root.resolve(), store, None if data_dir is None else data_dir.resolve(), Path.cwd(), f".seen-{uuid4().hex}"
        )
        if store is not None:
            Store(store).write(place.token, "")
            return place
        try:
            root.mkdir(parents=True, exist_ok=True)
            (root / place.token).touch()
        except OSError as error:
            raise Refused(f"`{root}` cannot be written ({error.strerror}); give another folder with `--runs`.") from error
        return place

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        if self.store is not None:
            with suppress(Exception):
                Store(self.store).remove(self.token)
        (self.root / self.token).unlink(missing_ok=True)

    def check(self) -> None:
        """Refused where this is a worker that does not see the folder, or cannot write it."""
        me = socket.gethostname()
        if self.store is not None:
            store = Store(self.store)
            if not store.has(self.token):
                raise Refused(f"`--store {self.store}` is another place on `{me}` than here; give one that every machine reaches.")
            store.write(mine := f"{self.token}-{uuid4().hex}", "")
            store.remove(mine)
            return
        if not (self.shared / self.token).is_file():
            raise Refused(
                f"The folder `{self.shared}` is not there on `{me}`, where a worker runs, or it is another one; give `--runs` a "
                "folder that all machines share, or `--store` an address that they reach."
            )
        try:
            (test := self.shared / f"{self.token}-{uuid4().hex}").touch()
            test.unlink()
        except OSError as error:
            raise Refused(
                f"The folder `{self.shared}` cannot be written on `{me}`, where a worker runs ({error.strerror}); give the rights "
                "to it, or another with `--runs`."
            ) from error


def checked(place: Place) -> Refused | None:
    """What is wrong with it here; this module waits for no torch, as workers are asked before they have any."""
    try:
        place.check()
    except Refused as error:
        return error
    return None
