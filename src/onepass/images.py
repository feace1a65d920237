"""An image file as uint8 (c, h, w): the one place that reads them, and what a process does that reads many."""

import io
import json
import signal
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, UnidentifiedImageError


class Unreadable(ValueError):
    """A file that is no image, or not a whole one."""


def pixels(source: str | Path | bytes, channels: int = 3, size: tuple[int, int] | None = None) -> np.ndarray:
    """An image as uint8 (c, h, w), stretched to `size` (h, w) if it has another.

    Gray, palette, CMYK and transparent ones become RGB, or one gray channel if `channels` is 1; of sixteen bits the upper
    eight are kept; of an animation the first frame.  It is not turned, whatever its EXIF says.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow's, about metadata and sizes
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
                return of_pillow(opened, channels, size)
    except FileNotFoundError:
        raise
    except UnidentifiedImageError as error:
        raise Unreadable("it is no image of a format that Pillow knows") from error
    except Exception as error:  # a broken file may raise anything
        raise Unreadable(" ".join(str(error).split()) or type(error).__name__) from error


def of_pillow(image: Image.Image, channels: int = 3, size: tuple[int, int] | None = None) -> np.ndarray:
    """The same of an image that is open already.  One that is broken may raise anything."""
    image = _eight_bits(image).convert("L" if channels == 1 else "RGB")
    if size is not None and image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    values = np.array(image, dtype=np.uint8)
    return values[None] if channels == 1 else np.ascontiguousarray(values.transpose(2, 0, 1))


def _eight_bits(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise Unreadable(f"its pixels are of Pillow's mode {image.mode}, of which nobody says what is black and what is white")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA")
    return image


@cache
def suffixes() -> frozenset[str]:
    """Of the files that Pillow can open, in lower case."""
    known = Image.registered_extensions()
    return frozenset(suffix for suffix, kind in known.items() if kind in Image.OPEN)


def side(files: Iterable[str | bytes]) -> int:
    """The shorter side of the first image whose header can be read; 0 if there is none."""
    for file in files:
        try:
            with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as opened:
                return min(opened.size)
        except Exception:  # a broken file may raise anything
            continue
    return 0


# -- many of them --------------------------------------------------------------------------------------------------


OTHER = "another size: "


def decode(
    items: Sequence[str | bytes], channels: int, size: tuple[int, int], stretch: bool
) -> tuple[np.ndarray, dict[int, str], str]:
    """Images of one shape, (n, c, h, w), those that could not be read with the reason, and a digest of the others.

    Unless they may be stretched, one of another size is among those that could not be read: its reason is OTHER and the size.
    """
    rows = np.zeros((len(items), channels, *size), dtype=np.uint8)
    bad: dict[int, str] = {}
    digest = blake2b(digest_size=16)
    for i, item in enumerate(items):
        try:
            image = pixels(item, channels, size if stretch else None)
            if image.shape[1:] != size:
                raise Unreadable(f"{OTHER}{image.shape[2]}x{image.shape[1]}")
        except Unreadable as error:
            bad[i] = str(error)
        except OSError as error:
            bad[i] = error.strerror or str(error)
        else:
            rows[i] = image
            digest.update(rows[i].data)
    return rows, bad, digest.hexdigest()


def serve(asked: IO[bytes], answers: IO[bytes]) -> None:
    """Do one job after another: a line of JSON, then the bytes of those images that are not files, then an answer in a line."""
    for line in asked:
        job: dict[str, Any] = json.loads(line)
        items = [item if isinstance(item, str) else asked.read(item) for item in job["items"]]
        rows, bad, digest = decode(items, job["channels"], (job["size"][0], job["size"][1]), job["stretch"])
        answer: dict[str, Any] = {"bad": bad, "digest": digest}
        try:
            with open(job["file"], "r+b") as file:
                file.seek(job["at"])
                file.write(rows.data)
        except OSError as error:
            answer["error"] = [error.errno, error.strerror]
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches it too, and whoever asks ends it
    serve(sys.stdin.buffer, sys.stdout.buffer)
