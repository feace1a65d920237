"""Images decoded once: uint8 rows in the user's cache, made by several processes and keyed by what was read."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from onepass import images
from onepass.data import Dataset, cache_folder
from onepass.data.stored import Stored
from onepass.data.tree import printable
from onepass.errors import Refused
from onepass.files import locked, sync, write_json
from onepass.stream import Batch

FORMAT = 1  # raised whenever the same files would be kept otherwise
LARGE = 2**29  # bytes of images from which on they stay on the disk
CHUNK = 64  # images that are decoded at a time; the digest of the contents depends on it

Item = str | bytes  # a path, or what would be in the file
Tell = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Part:
    """Images that are not read yet, with their labels: of training, or of testing."""

    labels: np.ndarray  # whole numbers
    items: Callable[[], Iterator[list[Item]]]  # in lists of CHUNK, the last perhaps shorter
    called: Callable[[int], str]  # what errors call an image


@dataclass(frozen=True, eq=False)
class Reading:
    """All that is to be decoded."""

    names: tuple[str, ...]
    train: Part
    test: Part
    left_out: tuple[str, ...] = ()  # what is not even tried, each with its reason


def files(rows: Sequence[tuple[str, int]]) -> Part:
    """A part whose images are files, each with its label."""

    def items() -> Iterator[list[Item]]:
        return ([path for path, _ in rows[i : i + CHUNK]] for i in range(0, len(rows), CHUNK))

    return Part(np.array([label for _, label in rows], dtype=np.int64), items, lambda i: rows[i][0])


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Where decoded images are kept, and when they are those that are wanted."""

    title: str  # as the command line calls them
    place: Any  # JSON: where they are read from and how; one cache for each
    stamp: str  # of what was read: paths, sizes, times; another one, and the cache is stale
    channels: int
    size: int | None  # height and width; None: all have one size already
    refuse: bool  # whether one image that cannot be read is one too many

    def load(self, read: Callable[[], Reading], tell: Tell | None = None) -> Dataset:
        """The images, from the cache if it has them; else they are read, and kept there."""
        home = cache_folder() / "decoded"
        kind = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.title.partition(":")[0])
        place = json.dumps([FORMAT, self.place, self.channels, self.size], sort_keys=True)
        folder = home / f"{kind}-{blake2b(place.encode(), digest_size=8).hexdigest()}"
        wait = f"waiting for another process, which has the decoded images of {self.title}"
        kept = self._kept(folder)
        try:
            if kept is None:
                home.mkdir(parents=True, exist_ok=True)
                with locked(home / f"{folder.name}.lock", lambda: print(wait, file=sys.stderr)):
                    kept = self._kept(folder)  # by now another process may have made it
                    if kept is None:
                        self._build(folder, read(), tell or progress(self.title))
                        kept = self._kept(folder)
                        assert kept is not None
        except OSError as error:
            raise Refused(
                f"The decoded images of {self.title} could not be kept in `{home}` ({error.strerror or error}); make room there, "
                "or name another folder with $XDG_CACHE_HOME."
            ) from error
        data, bad = kept
        for part, use in (data.train, "learn from"), (data.test, "test on"):
            if not len(part):
                why = f" ({'; '.join(bad[:3])})" if bad else ""
                raise Refused(f"{self.title} has no image to {use} that can be read{why}; put some there.")
        if bad and self.refuse:
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            raise Refused(
                f"{len(bad)} image{'s' * (len(bad) > 1)} of {self.title} cannot be read: {'; '.join(bad[:3])}{more}. "
                f"Repair or remove them (`onepass data check` names all), or take the others with `--data.corrupt skip`."
            )
        return data

    def _kept(self, folder: Path) -> tuple[Dataset, list[str]] | None:
        """What is in the cache, if all of it is there and nothing was changed since."""
        try:
            meta = json.loads((folder / "meta.json").read_text())
            if meta["stamp"] != self.stamp:
                return None
            parts: list[Batch] = []
            for name in "train", "test":
                y = np.load(folder / f"{name}.npy", allow_pickle=False)
                shape = (len(y), *meta["image"])
                file = folder / f"{name}.u8"
                if file.stat().st_size != np.prod(shape, dtype=np.int64):
                    return None
                parts.append(Batch(_rows(file, shape), torch.from_numpy(y)))
            if json.loads((folder / "meta.json").read_text()) != meta:  # another process has just replaced it
                return None
            bad = [*meta["bad"]]
            skipped = (*bad, *meta["left_out"])
            return Dataset(parts[0], parts[1], tuple(meta["names"]), meta["fingerprint"], skipped), bad
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _build(self, folder: Path, reading: Reading, tell: Tell) -> None:
        """Decode everything into a folder aside, which takes its name when all of it is on the disk."""
        temporary = folder.with_name(f"{folder.name}.aside")
        for useless in temporary, folder:  # of a process that was killed; of what was there before
            shutil.rmtree(useless, ignore_errors=True)
        size = (self.size, self.size) if self.size is not None else self._size_of_all(reading)
        image, total = (self.channels, *size), len(reading.train.labels) + len(reading.test.labels)
        needed, free = total * int(np.prod(image)), shutil.disk_usage(folder.parent).free
        if needed > free:
            raise Refused(
                f"The decoded images of {self.title} take {needed / 1e9:.1f} GB, and `{folder.parent}` has {free / 1e9:.1f} GB "
                "left; name a folder with more room with $XDG_CACHE_HOME."
            )
        temporary.mkdir()
        try:
            digest = blake2b(json.dumps([image, reading.names]).encode(), digest_size=16)
            bad: list[str] = []
            with Decoders(image, self.size is not None, workers=min(available_cores(), total // (4 * CHUNK))) as decoders:
                done = 0
                for name, part in ("train", reading.train), ("test", reading.test):
                    file = temporary / f"{name}.u8"
                    with open(file, "wb") as opened:
                        opened.truncate(len(part.labels) * int(np.prod(image)))
                    digests: dict[int, str] = {}
                    wrong: dict[int, str] = {}
                    for first, count, reasons, chunk in decoders.run(part.items(), file):
                        wrong |= {first + i: reason for i, reason in reasons.items()}
                        digests[first], done = chunk, done + count
                        self._same_size(wrong, part, size)
                        tell(done, total)
                    good = np.setdiff1d(np.arange(len(part.labels)), list(wrong))
                    labels = part.labels[good]
                    _close_up(file, good, int(np.prod(image)))
                    bad += [f"`{printable(part.called(i))}` ({wrong[i]})" for i in sorted(wrong)]
                    np.save(temporary / f"{name}.npy", labels)
                    digest.update("".join(digests[i] for i in sorted(digests)).encode() + labels.tobytes())
                    sync(file)
                    sync(temporary / f"{name}.npy")
            meta = {"title": self.title, "place": self.place, "stamp": self.stamp, "image": image, "names": reading.names}
            meta |= {"bad": bad, "left_out": reading.left_out, "fingerprint": digest.hexdigest()}
            write_json(temporary / "meta.json", meta)
            os.replace(temporary, folder)
            if os.name == "posix":
                sync(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _size_of_all(self, reading: Reading) -> tuple[int, int]:
        """(h, w) of the first image that can be read."""
        for part in reading.train, reading.test:
            for chunk in part.items():
                for item in chunk:
                    try:
                        return cast(tuple[int, int], images.pixels(item).shape[1:])
                    except (images.Unreadable, OSError):
                        pass
        raise Refused(f"None of the images of {self.title} can be read; `onepass data check` names each with its reason.")

    def _same_size(self, wrong: dict[int, str], part: Part, size: tuple[int, int]) -> None:
        other = next((i for i, reason in wrong.items() if reason.startswith(images.OTHER)), None)
        if self.size is None and other is not None:
            sizes = f"`{printable(part.called(other))}` has {wrong[other].removeprefix(images.OTHER)}, another {size[1]}x{size[0]}"
            raise Refused(
                f"The images of {self.title} have several sizes ({sizes}), and a batch has one; give the size that all are brought "
                "to, e.g. `--data.size 64`."
            )


def _rows(file: Path, shape: tuple[int, int, int, int]) -> Tensor:
    if file.stat().st_size > LARGE:
        return cast(Tensor, Stored(file, shape))  # which can what is done with the images of a data set
    return torch.from_numpy(np.fromfile(file, np.uint8).reshape(shape))


def _close_up(file: Path, good: np.ndarray, row: int) -> None:
    """Move the rows of a file over those that are left out."""
    with open(file, "r+b") as opened:
        for to, of in enumerate(good.tolist()):
            if to != of:
                opened.seek(of * row)
                values = opened.read(row)
                opened.seek(to * row)
                opened.write(values)
        opened.truncate(len(good) * row)


def available_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Decoders:
    """Processes that decode images, each fed by a thread; no process if there is little to do.

    They are `python -m onepass.images`, which imports neither torch nor the user's own script.
    """

    def __init__(self, image: tuple[int, int, int], stretch: bool, workers: int):
        self.image, self.stretch = image, stretch
        self.workers = workers if workers > 1 and sys.executable else 0
        self._mine = threading.local()
        self._all: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Decoders":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()
            process.wait()
            for pipe in process.stdin, process.stdout:
                assert pipe is not None
                pipe.close()

    def run(self, chunks: Iterator[list[Item]], file: Path) -> Iterator[tuple[int, int, dict[int, str], str]]:
        """Write the images into the file; for each chunk as it is done: its first row, its length, what was wrong, its digest."""
        if not self.workers:
            first = 0
            for chunk in chunks:
                rows, bad, digest = images.decode(chunk, self.image[0], self.image[1:], self.stretch)
                with open(file, "r+b") as opened:
                    opened.seek(first * rows[0].nbytes)
                    opened.write(rows.data)
                yield first, len(chunk), bad, digest
                first += len(chunk)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            waiting: set[Any] = set()
            first = 0
            try:
                for chunk in chunks:
                    waiting.add(pool.submit(self._ask, first, chunk, file))
                    first += len(chunk)
                    if len(waiting) >= 4 * self.workers:  # enough is read ahead
                        done = next(as_completed(waiting))
                        waiting.remove(done)
                        yield done.result()
                for done in as_completed(waiting):
                    yield done.result()
            finally:
                for left in waiting:
                    left.cancel()

    def _ask(self, first: int, chunk: list[Item], file: Path) -> tuple[int, int, dict[int, str], str]:
        process = self._process()
        assert process.stdin is not None and process.stdout is not None
        items = [item if isinstance(item, str) else len(item) for item in chunk]
        at = first * int(np.prod(self.image))
        job = {
            "file": str(file),
            "at": at,
            "items": items,
            "channels": self.image[0],
            "size": self.image[1:],
            "stretch": self.stretch,
        }
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n" + b"".join(item for item in chunk if isinstance(item, bytes)))
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        except (OSError, ValueError) as error:
            raise Refused(
                "A process that decodes images was ended from outside (by the system for want of memory?); give the same command "
                "again."
            ) from error
        if "error" in answer:
            raise OSError(*answer["error"])
        return first, len(chunk), {int(i): reason for i, reason in answer["bad"].items()}, answer["digest"]

    def _process(self) -> "subprocess.Popen[bytes]":
        if not hasattr(self._mine, "process"):
            paths = [str(Path(images.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)}
            self._mine.process = subprocess.Popen(
                [sys.executable, "-m", "onepass.images"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._all.append(self._mine.process)
        return self._mine.process


def progress(title: str) -> Tell:
    """Says on stderr how far it is: in one line on a terminal, in a line every few seconds elsewhere."""
    began = last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now, live = time.monotonic(), sys.stderr.isatty()
        if now - last < (0.2 if live else 10) and not (done == total and last > began):
            return
        last = now
        left = (now - began) / done * (total - done)
        end = "\n" if done == total or not live else ""
        line = f"decoding {title}: {done:,} of {total:,} images, {done / (now - began):,.0f}/s, {left:,.0f} s left"
        print(f"{chr(13) if live else ''}{line:<79}", end=end, file=sys.stderr, flush=True)

    return tell
