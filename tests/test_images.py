"""Image files of every kind as bytes, against Pillow itself; and the process that reads many of them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from trees import encoded, write
from trees import pixels as noise

from onepass.images import OTHER, Unreadable, decode, pixels, serve, side, suffixes


def saved(image: Image.Image, kind: str = "PNG", **how: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def plain(content: bytes) -> np.ndarray:
    """What Pillow makes of it in the plainest way."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_file_is_what_pillow_says_whether_from_disk_or_memory(kind: str, mode: str, tmp_path: Path) -> None:
    content = encoded(3, (12, 20), mode, kind)
    read = pixels(content)
    assert read.dtype == np.uint8 and read.shape == (3, 12, 20) and read.flags.c_contiguous
    assert (read == plain(content)).all()
    assert (pixels(write(tmp_path / "a", content)) == read).all() and (pixels(str(tmp_path / "a")) == read).all()


def test_gray_images_have_three_equal_channels_or_are_asked_for_as_one() -> None:
    content = encoded(1, mode="L", kind="PNG")
    three, one = pixels(content), pixels(content, channels=1)
    assert one.shape == (1, 64, 64) and (three == one).all()
    coloured = encoded(1, kind="PNG")
    assert (pixels(coloured, 1)[0] == np.asarray(Image.open(io.BytesIO(coloured)).convert("L"))).all()


def test_cmyk_jpegs_are_converted_not_read_as_four_channels() -> None:
    content = encoded(2, mode="CMYK")
    assert Image.open(io.BytesIO(content)).mode == "CMYK"
    difference = pixels(content).astype(int) - noise(2).transpose(2, 0, 1)
    assert abs(difference).mean() < 8  # but for what JPEG loses: the colours are right and not inverted


@pytest.mark.parametrize("mode", ["1", "P", "RGBA", "LA"])
def test_other_modes_become_rgb(mode: str) -> None:
    assert pixels(saved(Image.fromarray(noise(4)).convert(mode))).shape == (3, 64, 64)


def test_a_palette_with_transparent_colours_gives_no_warning_and_keeps_them() -> None:
    image = Image.fromarray(noise(4)).convert("P")
    content = saved(image, transparency=bytes(range(256)))
    assert (pixels(content) == np.asarray(image.convert("RGB")).transpose(2, 0, 1)).all()


def test_of_sixteen_bits_the_upper_eight_are_kept() -> None:
    values = np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16) + 99
    for kind in "PNG", "TIFF":
        assert (pixels(saved(Image.fromarray(values), kind), 1)[0] == values >> 8).all()


def test_floats_are_refused_since_nobody_says_what_white_is() -> None:
    with pytest.raises(Unreadable, match="mode F"):
        pixels(saved(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"))


def test_of_an_animation_the_first_frame_is_taken() -> None:
    frames = [Image.fromarray(np.full((8, 8, 3), v, np.uint8)) for v in (10, 200)]
    assert (pixels(saved(frames[0], "GIF", save_all=True, append_images=frames[1:])) == 10).all()


def test_another_size_is_stretched_as_pillow_does_it_and_the_same_is_left_alone() -> None:
    content = encoded(5, (30, 50))
    expected = Image.open(io.BytesIO(content)).resize((14, 21), Image.Resampling.BILINEAR)
    assert (pixels(content, size=(21, 14)) == np.asarray(expected).transpose(2, 0, 1)).all()
    assert (pixels(content, size=(30, 50)) == plain(content)).all()


@pytest.mark.parametrize(
    "content", [encoded(6)[:-200], encoded(6, kind="PNG")[:400], b"", b"no image", b"\x89PNG\r\n\x1a\n" + b"\0" * 50]
)
def test_what_is_no_whole_image_is_unreadable_in_one_line_that_is_the_same_each_time(content: bytes) -> None:
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(Unreadable) as error:
            pixels(content)
        said.append(str(error.value))
    assert said[0] == said[1] and said[0] and "\n" not in said[0] and "0x" not in said[0]


def test_a_file_that_is_not_there_is_not_called_broken(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pixels(tmp_path / "none.png")


def test_suffixes_are_those_that_can_be_opened() -> None:
    assert {".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".tif"} <= suffixes()
    assert not {".pdf", ".txt", ".npz", ""} & suffixes()


def test_the_shorter_side_is_of_the_first_that_is_an_image(tmp_path: Path) -> None:
    assert side([str(tmp_path / "none"), b"broken", encoded(1, (30, 20))]) == 20
    assert side([]) == side([b"broken"]) == 0


# ---- many


def test_many_are_decoded_and_the_others_named_with_the_reason(tmp_path: Path) -> None:
    items = [
        encoded(0, (8, 8), kind="PNG"),
        encoded(1, (8, 8), kind="PNG")[:60],
        encoded(2, (9, 8), kind="PNG"),
        str(tmp_path / "none"),
    ]
    rows, bad, _ = decode(items, 3, (8, 8), stretch=False)
    assert (rows[0] == pixels(items[0])).all() and not rows[1:].any()
    assert list(bad) == [1, 2, 3] and bad[2] == f"{OTHER}8x9" and bad[3] == "No such file or directory"
    rows, bad, _ = decode(items, 3, (8, 8), stretch=True)
    assert (rows[2] == pixels(items[2], size=(8, 8))).all() and list(bad) == [1, 3]


def test_the_digest_is_of_the_images_that_were_read_and_of_nothing_else() -> None:
    one, two = encoded(0, (8, 8), kind="PNG"), encoded(1, (8, 8), kind="PNG")
    digests = [decode(items, 3, (8, 8), True)[2] for items in ([one, two], [one, b"", two], [two, one], [one])]
    assert digests[0] == digests[1] and len(set(digests)) == 3


def job(file: Path, at: int, *items: str | bytes) -> bytes:
    listed = [item if isinstance(item, str) else len(item) for item in items]
    line = json.dumps({"file": str(file), "at": at, "items": listed, "channels": 3, "size": [8, 8], "stretch": True})
    return line.encode() + b"\n" + b"".join(item for item in items if isinstance(item, bytes))


def test_a_process_takes_jobs_of_files_and_of_bytes_and_writes_each_to_its_place(tmp_path: Path) -> None:
    one, two = encoded(0, (8, 8), kind="PNG"), encoded(1, (8, 8), kind="PNG")
    path = write(tmp_path / "größe\n.png", one)  # a line break in a name breaks no line of the jobs
    target = write(tmp_path / "rows", bytes(3 * 192))
    asked, answers = io.BytesIO(job(target, 192, str(path), two) + job(target, 0, b"broken")), io.BytesIO()
    serve(asked, answers)
    said = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert said[0]["bad"] == {} and list(said[1]["bad"]) == ["0"]
    rows = np.fromfile(target, np.uint8).reshape(3, 3, 8, 8)
    assert not rows[0].any() and (rows[1] == pixels(one)).all() and (rows[2] == pixels(two)).all()


def test_a_process_that_cannot_write_says_so_and_lives(tmp_path: Path) -> None:
    answers = io.BytesIO()
    serve(io.BytesIO(job(tmp_path / "none" / "rows", 0, encoded(0, (8, 8)))), answers)
    assert json.loads(answers.getvalue())["error"][1] == "No such file or directory"


def test_it_needs_no_torch_and_ends_with_whoever_asked() -> None:
    code = "import sys, onepass.images; assert 'torch' not in sys.modules, 'torch'"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
    assert subprocess.run([sys.executable, "-m", "onepass.images"], input=b"", check=False, timeout=60).returncode == 0
