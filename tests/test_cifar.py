"""CIFAR's official files: read whoever wrote them, and a pickle that is anything else is refused before it can do anything."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepass.data import source
from onepass.data.cifar import unpickle
from onepass.errors import Refused

RNG = np.random.RandomState(0)
X = RNG.randint(0, 256, (4, 3072)).astype(np.uint8)
Y = [3, 0, 9, 3]


def written(folder: Path, content: bytes) -> Path:
    file = folder / "data_batch_1"
    file.write_bytes(content)
    return file


class Called:
    """In a pickle, a call of something by its name, perhaps with a state for what it gives."""

    def __init__(self, what: Any, *args: Any, state: Any = None):
        self.how = (what, args) if state is None else (what, args, state)

    def __reduce__(self) -> Any:
        return self.how


def python2() -> bytes:
    """As Python 2 wrote the official files (protocol 2, numpy 1): text is bytes, and an array's content is one of them."""

    def text(value: bytes) -> bytes:
        return b"T" + len(value).to_bytes(4, "little") + value

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    array += b"(K\x01K\x04M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
    array += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array += b"\x89" + text(X.tobytes()) + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([y]) for y in Y) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + labels + b"u."


def with_numpy(protocol: int, labels: Any) -> bytes:
    """As this numpy writes them."""
    return pickle.dumps({b"data": X, "labels": labels}, protocol=protocol)


def test_python_2s_files_are_read(tmp_path: Path) -> None:
    values = unpickle(written(tmp_path, python2()))
    assert values.keys() == {"data", "labels"} and values["labels"] == Y
    assert values["data"].dtype == np.uint8 and np.array_equal(values["data"], X)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3])
@pytest.mark.parametrize("core", [b"numpy.core", b"numpy._core"])
@pytest.mark.parametrize("kind", ["list", "array", "scalars", "big endian", "fortran"])
def test_numpy_1s_and_2s_are_read(tmp_path: Path, protocol: int, core: bytes, kind: str) -> None:
    labels: Any = {"list": Y, "scalars": [np.int64(y) for y in Y], "big endian": np.array(Y, ">i4")}.get(kind, np.array(Y))
    content = with_numpy(protocol, np.asfortranarray(X) if kind == "fortran" else labels)
    content = content.replace(b"numpy._core", b"numpy.core").replace(b"numpy.core", core)
    assert core in content
    values = unpickle(written(tmp_path, content))
    assert np.array_equal(values["data"], X)
    assert np.array_equal(values["labels"], X if kind == "fortran" else Y)


@pytest.mark.parametrize("protocol", [4, 5])
def test_so_are_those_of_later_protocols(tmp_path: Path, protocol: int) -> None:
    values = unpickle(written(tmp_path, with_numpy(protocol, np.array(Y))))
    assert np.array_equal(values["data"], X) and values["labels"].tolist() == Y


def tree(folder: Path, batch: dict[bytes, Any] | None = None) -> Path:
    """A CIFAR-10 of five times these images, tested on the same."""
    home = folder / "cifar-10-batches-py"
    home.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (home / name).write_bytes(pickle.dumps({b"data": X, b"labels": Y} | (batch or {}), protocol=2))
    (home / "batches.meta").write_bytes(pickle.dumps({b"label_names": [f"c{i}".encode() for i in range(10)]}, protocol=2))
    return folder


def test_the_tree_is_a_data_set(tmp_path: Path) -> None:
    data = source("cifar10").load(tree(tmp_path))
    assert data.train.x.shape == (20, 3, 32, 32) and data.train.y.tolist() == 5 * Y and data.names[9] == "c9"
    assert np.array_equal(data.test.x.numpy().reshape(4, -1), X) and data.test.y.tolist() == Y


@pytest.mark.parametrize(
    "batch", [{b"labels": [1, 2, 3, 10]}, {b"labels": [1, 2]}, {b"labels": [0.5] * 4}, {b"data": X[:, :5]}, {b"data": X.tolist()}]
)
def test_what_is_no_image_with_its_label_is_refused(tmp_path: Path, batch: dict[bytes, Any]) -> None:
    with pytest.raises(Refused, match="download it again"):
        source("cifar10").load(tree(tmp_path, batch))


# ---- what is anything else


def flagless(name: str, *state: Any) -> Called:
    """A type of numpy's that denies that it holds objects: what is behind it are bytes, taken for addresses."""
    return Called(np.dtype, name, False, True, state=state)


OBJECTS = flagless("O8", 3, "|", None, None, None, -1, -1, 0)
HIDDEN = flagless("V8", 3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
BEYOND = flagless("V4", 3, "|", None, ("a",), {"a": (np.dtype("u1"), 10**9)}, 4, 1, 0)
_RECONSTRUCT, _SCALAR = np.zeros(1).__reduce__()[0], np.int64(0).__reduce__()[0]


def of(kind: Called) -> Called:
    return Called(_RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (1,), kind, False, b"A" * 8))


EVIL = {
    "a call of the system's": Called(subprocess.getoutput, "touch {}"),
    "an evaluation": Called(eval, "open({!r}, 'w')"),
    "an array over given bytes, as objects": Called(np.ndarray, (1,), np.dtype("O"), b"A" * 8),
    "an array of objects": np.array([object], dtype=object),
    "an array of objects that says it has none": of(OBJECTS),
    "objects in a field": of(HIDDEN),
    "a field beyond the end": of(BEYOND),
    "a number that is an object": Called(_SCALAR, HIDDEN, b"A" * 8),
    "numbers that are not whole": np.zeros(3),
    "an array that never comes": Called(_RECONSTRUCT, np.ndarray, (0,), b"b"),
    "more than there is": Called(_RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (10**9,), np.dtype("u1"), False, b"A")),
    "no type": Called(_RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (1,), None, False, b"A")),
    "other bytes": Called(__import__("_codecs").encode, "a", "rot13"),
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("evil", EVIL.values(), ids=list(EVIL))
def test_a_pickle_of_anything_else_is_refused_and_nothing_is_run(tmp_path: Path, evil: Any, protocol: int) -> None:
    trace = tmp_path / "was-here"
    if isinstance(evil, Called) and evil.how[0] in (subprocess.getoutput, eval):
        evil = Called(evil.how[0], evil.how[1][0].format(str(trace)))
    file = written(tmp_path, pickle.dumps({b"data": evil, b"labels": Y}, protocol=protocol))
    with pytest.raises(Refused, match=r"not an official file.*Nothing of it was run\.$") as error:
        unpickle(file)
    assert not trace.exists() and "\n" not in str(error.value)


def test_it_cannot_change_what_it_names(tmp_path: Path) -> None:
    """A BUILD sets attributes: of numpy's array, of a function, of what stands for either."""
    for name in b"numpy\nndarray", b"numpy\ndtype", b"numpy.core.multiarray\n_reconstruct", b"_codecs\nencode":
        for state in b"}U\x08__call__K\x01s", b"N}U\x08__call__K\x01s\x86":
            with pytest.raises(Refused):
                unpickle(written(tmp_path, b"\x80\x02}U\x04datac" + name + b"\n" + state + b"bs."))
    assert np.array_equal(unpickle(written(tmp_path, python2()))["data"], X)


@pytest.mark.parametrize("content", [b"", b"\x80", b"nonsense", python2()[:-3000], pickle.dumps([1]), pickle.dumps("text")])
def test_what_is_no_whole_pickle_of_a_dictionary_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(Refused, match="official file"):
        unpickle(written(tmp_path, content))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(Refused, match=r"data_batch_3` is missing"):
        source("cifar10").load(tmp_path)
