"""Where runs are done: the small protocol that every engine keeps, and how one is listened to until all has ended."""

import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from onepass.config import Config
from onepass.errors import Refused
from onepass.loop import Interrupted, Progress
from onepass.record import Record

NOT_BEGUN = "not begun"


class Lost(Refused):
    """A run's process was killed from outside: nothing is known against the run itself."""


Outcome = Record | Refused | Interrupted
Tell = Callable[[int, Progress | Outcome], None]


class AtWork(Protocol):
    """An engine at work.  Configs go in by `submit`; while `listen` waits, what becomes of them is told."""

    @property
    def slots(self) -> int:
        """How many runs go side by side."""
        ...

    def submit(self, i: int, config: Config) -> None: ...

    def listen(self, seconds: float) -> None:
        """Wait about so long, and tell of each run's progress and of its end, under the number it was submitted with."""
        ...

    def stop(self, i: int) -> None:
        """This run is not wanted any more; it is told as interrupted, or as what it was just then."""
        ...

    def stop_all(self, now: bool = False) -> None:
        """Every run saves where it is and stops; `now`, without saving."""
        ...


class Engine(Protocol):
    """A frozen description of where runs are done."""

    def open(
        self, root: Path, tell: Tell, *, runs: int, device: str = "cpu", data_dir: Path | None = None
    ) -> AbstractContextManager[AtWork]:
        """The engine at work on some `runs` on that device; when the context ends, so does everything it started."""
        ...


def drive(at_work: AtWork, under_way: Callable[[], bool], begin: Callable[[], None] | None = None) -> bool:
    """Listen as long as something is under way; `begin` is called in between and may submit more, until it is stopped.  Ctrl-C
    or SIGTERM stops every run where it can be taken up, a second one at once.  Says whether it was stopped."""
    with _asked_to_stop() as stop:
        heeded = 0
        while under_way():
            if begin is not None and not stop:
                begin()
            at_work.listen(0.2)
            if len(stop) > heeded:
                heeded = len(stop)
                at_work.stop_all(now=heeded > 1)
    return bool(stop)


@contextmanager
def _asked_to_stop() -> Generator[list[bool], None, None]:
    """Grows an entry when Ctrl-C or SIGTERM comes; the workers are told, save, and stop."""
    stop: list[bool] = []

    def ask(number: int, frame: object) -> None:
        stop.append(True)

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever called is interrupted instead
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
