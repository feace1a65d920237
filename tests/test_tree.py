"""The images below a folder: found by suffix, in order, through links, and never in circles."""

from __future__ import annotations

import os
from pathlib import Path
from unicodedata import normalize

import pytest
from trees import write

from onepass.data.tree import called, folders, images_in, printable
from onepass.errors import Refused


def names(root: Path) -> list[str]:
    return [os.path.relpath(path, root) for path in images_in(root).paths]


def test_images_are_those_with_the_suffix_of_one_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in (
        "b.png",
        "a.JPEG",
        "c/d/e.WebP",
        "c/a.tiff",
        "n_boxes.txt",
        ".hidden.png",
        "._a.JPEG",
        ".git/x.png",
        "README",
        "z.npz",
    ):
        write(tmp_path / name, b"x")
    assert names(tmp_path) == ["a.JPEG", "b.png", "c/a.tiff", "c/d/e.WebP"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path / "else" / "far.png", b"x")
    here = tmp_path / "here"
    write(here / "near.png", b"x")
    (here / "up").symlink_to(here)
    (here / "round").mkdir()
    (here / "round" / "about").symlink_to(tmp_path / "here")
    (here / "there").symlink_to(tmp_path / "else")
    (here / "link.png").symlink_to(tmp_path / "else" / "far.png")
    (here / "itself").symlink_to(here / "itself")
    assert names(here) == ["link.png", "near.png", "there/far.png"]


def test_a_link_to_nothing_is_an_image_that_cannot_be_read_not_none(tmp_path: Path) -> None:
    (tmp_path / "gone.png").symlink_to(tmp_path / "none")
    (tmp_path / "itself.png").symlink_to(tmp_path / "itself.png")
    assert names(tmp_path) == ["gone.png", "itself.png"]


def test_the_stamp_changes_with_any_path_size_or_time_and_with_nothing_else(tmp_path: Path) -> None:
    def stamp() -> str:
        return images_in(tmp_path).stamp

    file = write(tmp_path / "a.png", b"one")
    os.utime(file, ns=(0, 10**18))
    first = stamp()
    write(tmp_path / "notes.txt", b"x")
    assert stamp() == first
    os.utime(file, ns=(5, 10**18))  # that somebody has read it
    assert stamp() == first
    seen = {first}
    for change in (
        lambda: os.utime(file, ns=(0, 10**18 + 1)),
        lambda: file.write_bytes(b"other") and os.utime(file, ns=(0, 10**18)),
        lambda: file.rename(tmp_path / "b.png"),
        lambda: write(tmp_path / "c.png", b"x"),
    ):
        change()
        assert stamp() not in seen
        seen.add(stamp())


def test_folders_are_sorted_and_not_hidden(tmp_path: Path) -> None:
    for name in "b", "a", ".cache", "c":
        (tmp_path / name).mkdir()
    write(tmp_path / "file.png", b"x")
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    assert folders(tmp_path) == ["a", "b", "c", "linked"]


def test_a_class_has_one_name_however_the_file_system_spells_it() -> None:
    assert called(normalize("NFD", "café")) == called(normalize("NFC", "café")) == "café"
    assert called("猫") == "猫"


def test_a_name_that_is_no_text_can_be_opened_and_printed(tmp_path: Path) -> None:
    write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")), b"x")
    (path,) = images_in(tmp_path).paths
    assert Path(path).read_bytes() == b"x"
    assert printable(path).endswith("/caf\\xe9.png") and printable(path).encode("utf-8")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for look in images_in, folders:
        with pytest.raises(Refused, match=r"none` cannot be read \(No such file"):
            look(tmp_path / "none")
