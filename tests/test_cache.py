"""Decoded once: what is kept is what was read, and is made anew whenever that changed or was not finished."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trees import encoded, folder, write

from onepass import images
from onepass.data import Dataset, cache, cache_folder
from onepass.data.folder import Folder
from onepass.data.stored import Stored
from onepass.errors import Refused


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "onepass" / "decoded"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images were decoded, a number for each chunk."""
    counts: list[int] = []
    true = images.decode

    def counted(items: Any, *how: Any) -> Any:
        counts.append(len(items))
        return true(items, *how)

    monkeypatch.setattr(images, "decode", counted)
    return counts


def same(one: Dataset, other: Dataset) -> bool:
    parts = all(
        torch.equal(a.x[:], b.x[:]) and torch.equal(a.y, b.y) for a, b in ((one.train, other.train), (one.test, other.test))
    )
    return parts and (one.names, one.fingerprint, one.skipped) == (other.names, other.fingerprint, other.skipped)


def expected(root: Path, part: str) -> list[tuple[int, np.ndarray]]:
    """Every image of a part, read plainly, in the order of classes and names."""
    classes = sorted(p.name for p in (root / "train").iterdir())
    return [(c, images.pixels(f)) for c, name in enumerate(classes) for f in sorted((root / part / name).iterdir())]


def test_what_is_kept_is_what_the_files_hold(tmp_path: Path) -> None:
    root = folder(tmp_path / "data")
    for data in (Folder(path=str(root)).load() for _ in range(2)):
        for part, rows in ("train", data.train), ("test", data.test):
            plain = expected(root, part)
            assert rows.y.tolist() == [c for c, _ in plain] and rows.y.dtype == torch.int64
            assert all((x.numpy() == pixels).all() for x, (_, pixels) in zip(rows.x, plain, strict=True))


def test_a_second_start_decodes_nothing(tmp_path: Path, decoded: list[int]) -> None:
    source = Folder(path=str(folder(tmp_path / "data")))
    first = source.load()
    assert sum(decoded) == len(first.train) + len(first.test)
    decoded.clear()
    assert same(source.load(), first) and not decoded
    assert same(Folder(path=str(tmp_path / "data"), corrupt="skip", mean=(0.5,) * 3, std=(1.0,) * 3).load(), first) and not decoded


CHANGES: dict[str, Callable[[Path], object]] = {
    "touched": lambda root: os.utime(root / "train" / "ape" / "0.png", ns=(1, 1)),
    "replaced": lambda root: write(root / "train" / "ape" / "0.png", encoded(77, (16, 16), kind="PNG")),
    "added": lambda root: write(root / "test" / "bee" / "new.png", encoded(78, (16, 16), kind="PNG")),
    "removed": lambda root: (root / "train" / "cat" / "1.JPG").unlink(),
    "renamed": lambda root: (root / "train" / "cat" / "1.JPG").rename(root / "train" / "cat" / "9.JPG"),
    "class added": lambda root: write(root / "train" / "dog" / "1.png", encoded(79, (16, 16), kind="PNG")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stale_cache_is_made_anew_and_never_used(change: str, tmp_path: Path, decoded: list[int], own_cache: Path) -> None:
    source = Folder(path=str(folder(tmp_path / "data")))
    source.load()
    CHANGES[change](tmp_path / "data")
    decoded.clear()
    data = source.load()
    assert sum(decoded) == len(data.train) + len(data.test)
    assert [(c, p.tolist()) for c, p in expected(tmp_path / "data", "train")] == [
        (int(y), x.tolist()) for x, y in zip(data.train.x, data.train.y, strict=True)
    ]
    assert len(list(own_cache.glob("folder-*/"))) == 1  # the old one takes no room


def test_options_that_change_the_images_have_caches_of_their_own(tmp_path: Path, own_cache: Path, decoded: list[int]) -> None:
    root = str(folder(tmp_path / "data"))
    sources = [Folder(path=root), Folder(path=root, size=8), Folder(path=root, channels=1)]
    shapes = [tuple(source.load().train.x.shape[1:]) for source in sources]
    assert shapes == [(3, 16, 16), (3, 8, 8), (1, 16, 16)] and len(list(own_cache.glob("folder-*/"))) == 3
    decoded.clear()
    assert len({source.load().fingerprint for source in sources}) == 3 and not decoded


DAMAGES: dict[str, Callable[[Path], object]] = {
    "images cut": lambda kept: os.truncate(kept / "train.u8", 100),
    "images gone": lambda kept: (kept / "test.u8").unlink(),
    "labels cut": lambda kept: os.truncate(kept / "train.npy", 90),
    "labels gone": lambda kept: (kept / "test.npy").unlink(),
    "no meta": lambda kept: (kept / "meta.json").unlink(),
    "meta cut": lambda kept: os.truncate(kept / "meta.json", 40),
    "meta of something else": lambda kept: (kept / "meta.json").write_text("[1]"),
    "left aside": lambda kept: kept.rename(kept.with_name(kept.name + ".aside")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_cache_that_is_not_whole_is_made_anew(damage: str, tmp_path: Path, decoded: list[int], own_cache: Path) -> None:
    source = Folder(path=str(folder(tmp_path / "data")))
    first = source.load()
    (kept,) = own_cache.glob("folder-*/")
    DAMAGES[damage](kept)
    decoded.clear()
    assert same(source.load(), first) and sum(decoded) == len(first.train) + len(first.test)
    assert sorted(p.name for p in own_cache.iterdir()) == [kept.name, f"{kept.name}.lock"]


def test_what_breaks_off_leaves_nothing_under_its_name(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Folder(path=str(folder(tmp_path / "data")))

    def broken_off(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "progress", lambda title: broken_off)
    with pytest.raises(KeyboardInterrupt):
        source.load()
    assert [p.suffix for p in own_cache.iterdir()] == [".lock"]
    monkeypatch.undo()
    os.environ["XDG_CACHE_HOME"] = str(own_cache.parents[1])
    assert len(source.load().train) == 12


LOAD = """
    import sys, time
    from onepass.data import cache
    from onepass.data.folder import Folder
    if len(sys.argv) > 2:  # slowly, and saying when it has begun
        true = cache.images.decode
        def slow(*how):
            print("begun", flush=True)
            time.sleep(float(sys.argv[2]))
            return true(*how)
        cache.images.decode = slow
    print(Folder(path=sys.argv[1]).load().fingerprint, flush=True)
"""


def process(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LOAD), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_killed_it_is_begun_again_and_beside_another_it_waits(tmp_path: Path, own_cache: Path, capfd: Any) -> None:
    source = Folder(path=str(folder(tmp_path / "data")))
    with process(source.path, "60") as killed:
        assert killed.stdout is not None and killed.stdout.readline() == "begun\n"
        killed.send_signal(signal.SIGKILL)
    assert len(list(own_cache.glob("*.aside"))) == 1
    with process(source.path, "1") as first:
        assert first.stdout is not None and first.stdout.readline() == "begun\n"
        data = source.load()  # waits for the first, and reads what it has made
        assert "waiting for another process" in capfd.readouterr().err
        said = first.communicate()[0].split()
    assert said[-1] == data.fingerprint and first.returncode == 0
    assert not list(own_cache.glob("*.aside"))


# ---- several processes


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """600 images in files of their own, one of them broken."""
    root = tmp_path / "many"
    contents = [encoded(i, (8, 8), kind="PNG") for i in range(40)]
    for i in range(600):
        part = "test" if i % 10 == 9 else "train"
        write(root / part / "ab"[i % 2 if part == "train" else i // 10 % 2] / f"{i:03d}.png", contents[i % 40])
    write(root / "train" / "a" / "100.png", contents[0][:50])
    return root


def test_several_processes_make_what_one_makes(many: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = Folder(path=str(many), corrupt="skip")
    made: list[Dataset] = []
    for cores in 1, 2:
        monkeypatch.setattr(cache, "available_cores", lambda cores=cores: cores)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"with-{cores}"))
        made.append(source.load())
    assert same(*made) and len(made[0].train) == 539 and len(made[0].skipped) == 1


def test_their_number_is_what_the_work_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.available_cores() == len(os.sched_getaffinity(0))
    assert cache.Decoders((3, 8, 8), True, 1).workers == 0 == cache.Decoders((3, 8, 8), True, 0).workers
    assert cache.Decoders((3, 8, 8), True, 2).workers == 2


def test_a_process_that_is_killed_is_told_in_one_line(many: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(cache, "available_cores", lambda: 2)
    true = cache.Decoders._process  # pyright: ignore[reportPrivateUsage]

    def killed(self: Any) -> Any:
        process = true(self)
        process.kill()
        process.wait()
        return process

    monkeypatch.setattr(cache.Decoders, "_process", killed)
    with pytest.raises(Refused, match="A process that decodes images was ended from outside"):
        Folder(path=str(many)).load()
    assert not list(own_cache.glob("folder-*/"))


def test_a_process_that_cannot_write_is_told_as_a_full_disk_is(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "available_cores", lambda: 2)

    def gone(chunks: Any, file: Path) -> Iterator[Any]:
        file.unlink()
        return run(chunks, file)

    decoders = cache.Decoders((3, 8, 8), True, 2)
    run = decoders.run
    monkeypatch.setattr(cache, "Decoders", lambda *_, **__: decoders)
    monkeypatch.setattr(decoders, "run", gone)
    with pytest.raises(Refused, match=r"could not be kept in .*\(No such file or directory\).*XDG_CACHE_HOME"):
        Folder(path=str(many)).load()


def test_progress_is_told_until_all_is_done(many: Path) -> None:
    told: list[tuple[int, int]] = []
    source = Folder(path=str(many), corrupt="skip")
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(cache, "progress", lambda title: lambda done, total: told.append((done, total)))
        source.load()
    assert told[-1] == (600, 600) and [d for d, _ in told] == sorted(d for d, _ in told) and len(told) == 10


def test_progress_is_a_line_now_and_then_or_one_that_is_written_over(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    tell = cache.progress("folder:x")
    for now in 1.0, 12.0, 13.0, 20.0:
        tell(round(100 * now), 2000)
    said = capsys.readouterr().err.splitlines()
    assert [line.split() for line in said] == [
        "decoding folder:x: 1,200 of 2,000 images, 100/s, 8 s left".split(),
        "decoding folder:x: 2,000 of 2,000 images, 100/s, 0 s left".split(),
    ]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    now = 0.0
    tell = cache.progress("folder:x")
    for now in 1.0, 1.1, 2.0:
        tell(round(100 * now), 200)
    said = capsys.readouterr().err
    assert said.count("\r") == 2 and said.count("\n") == 1 and said.endswith("\n")


# ---- large ones


def test_where_they_are_many_images_stay_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Folder(path=str(folder(tmp_path / "data")))
    small = source.load()
    monkeypatch.setattr(cache, "LARGE", 100)
    large = source.load()
    assert isinstance(small.train.x, torch.Tensor) and isinstance(large.train.x, Stored) and isinstance(large.test.x, Stored)
    assert same(small, large)
    shutil.rmtree(cache_folder())
    assert torch.equal(large.train.x[:], small.train.x)


# ---- what cannot be read, and what cannot be kept


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    root = folder(tmp_path / "broken")
    for name, content in ("train/ape/1.JPG", encoded(1, (16, 16))[:-20]), ("train/cat/0.png", b""), ("test/bee/0.png", b"text"):
        write(root / name, content)
    (root / "train" / "bee" / "gone.png").symlink_to(root / "none")
    return root


def test_one_that_cannot_be_read_is_named_and_refused(broken: Path) -> None:
    for _ in range(2):  # also from the cache
        with pytest.raises(Refused) as error:
            Folder(path=str(broken)).load()
        said = str(error.value)
        assert "4 images of folder:" in said and "ape/1.JPG` (image file is truncated" in said and " and 1 more" in said
        assert "bee/gone.png` (No such file or directory)" in said and "--data.corrupt skip" in said and "\n" not in said


def test_by_choice_it_is_skipped_named_and_counted_and_the_others_close_up(broken: Path, decoded: list[int]) -> None:
    data = Folder(path=str(broken), corrupt="skip").load()
    assert [what.split("`")[1].removeprefix(f"{broken}/") for what in data.skipped] == [
        "train/ape/1.JPG", "train/bee/gone.png", "train/cat/0.png", "test/bee/0.png",
    ]  # fmt: skip
    wrong = ("ape/1.JPG", "bee/gone.png", "cat/0.png")
    files = [(c, f) for c, name in enumerate(("ape", "bee", "cat")) for f in sorted((broken / "train" / name).iterdir())]
    readable = [(c, images.pixels(f)) for c, f in files if f"{f.parent.name}/{f.name}" not in wrong]
    assert data.train.y.tolist() == [c for c, _ in readable] and len(data.train) == 10 and len(data.test) == 5
    assert all((x.numpy() == p).all() for x, (_, p) in zip(data.train.x, readable, strict=True))
    decoded.clear()
    with pytest.raises(Refused, match="4 images"):  # what was found while skipping is refused without decoding again
        Folder(path=str(broken)).load()
    assert not decoded


def test_none_that_can_be_read_is_refused_whatever_the_choice(tmp_path: Path) -> None:
    for name in "train/a/1.png", "train/b/1.png", "test/a/1.png":
        write(tmp_path / "data" / name, b"no image")
    for size in None, 8:
        with pytest.raises(Refused, match="can be read"):
            Folder(path=str(tmp_path / "data"), size=size, corrupt="skip").load()
    write(tmp_path / "data" / "train" / "a" / "1.png", encoded(0, (8, 8)))
    with pytest.raises(Refused, match=r"no image to test on that can be read \(.*1.png"):
        Folder(path=str(tmp_path / "data"), size=8, corrupt="skip").load()


def test_several_sizes_are_refused_with_the_field_that_gives_one(tmp_path: Path, own_cache: Path) -> None:
    root = folder(tmp_path / "data")
    write(root / "train" / "bee" / "2.png", encoded(1, (16, 20), kind="PNG"))
    with pytest.raises(Refused) as error:
        Folder(path=str(root)).load()
    assert "bee/2.png` has 20x16, another 16x16" in str(error.value) and "--data.size 64" in str(error.value)
    assert not list(own_cache.glob("folder-*/"))
    assert Folder(path=str(root), size=12).load().train.x.shape[1:] == (3, 12, 12)


def test_a_disk_without_room_is_refused_before_it_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))  # type: ignore[attr-defined]
    with pytest.raises(Refused, match=r"take 0.0 GB, and .* has 0.0 GB left.*XDG_CACHE_HOME"):
        Folder(path=str(folder(tmp_path / "data"))).load()


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "file", b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Refused, match=r"could not be kept in .*file/onepass/decoded` \(Not a directory\).*XDG_CACHE_HOME"):
        Folder(path=str(folder(tmp_path / "data"))).load()


def test_the_contents_have_a_fingerprint_whatever_they_are_called_and_whenever_they_were_written(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "one"), folder(tmp_path / "two")
    (two / "train" / "ape" / "0.png").rename(two / "train" / "ape" / "0a.png")
    prints = [Folder(path=str(root)).load().fingerprint for root in (one, two)]
    assert prints[0] == prints[1]
    write(two / "train" / "ape" / "0a.png", encoded(99, (16, 16), kind="PNG"))
    assert Folder(path=str(two)).load().fingerprint != prints[0]


def test_meta_says_what_is_kept(tmp_path: Path, own_cache: Path) -> None:
    data = Folder(path=str(folder(tmp_path / "data"))).load()
    (kept,) = own_cache.glob("folder-*/")
    meta = json.loads((kept / "meta.json").read_text())
    assert meta["names"] == list(data.names) and meta["image"] == [3, 16, 16] and meta["fingerprint"] == data.fingerprint
