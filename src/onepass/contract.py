"""What every method must keep, as a function that anybody may call on their own."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from onepass.augment import Partial
from onepass.boundaries import Boundaries, NewClass, Oracle
from onepass.distill import MKD, SDP, Distiller
from onepass.errors import Refused
from onepass.learner import Adam, Infer, Learner
from onepass.method import Method
from onepass.nets import ResNet18
from onepass.seeds import Seeds
from onepass.stream import Batch, Blurry, Clear, Pass
from onepass.teachers import EMA, HypoExponential, Teacher


class Broken(AssertionError):
    """A method does not keep the contract."""


@dataclass(frozen=True)
class Company:
    """What a method is run with."""

    name: str
    teacher: Teacher | None = None
    distill: Distiller | None = None
    infer: Infer = "student"


COMPANIES = (
    Company("alone"),
    Company("mkd", EMA(0.2), MKD(), "average"),
    Company("sdp", HypoExponential(20.0, 0.75), SDP(draw="sdp")),
    Company("te", EMA(0.2, buffers="average"), None, "teacher"),
)


def check_method(method: Method, *, companies: tuple[Company, ...] = COMPANIES) -> list[str]:
    """Run a method on a small clear and a small blurry stream, alone, with MKD, with SDP and with Temporal Ensembles.

    Each time it must give finite scalar losses, learn, and go on after a save and a restore with the same bits; what is added to
    it must change none of its draws.  Raises `Broken`, which says what was not kept; returns what was, line by line.
    """
    try:
        hash(method)
    except TypeError as error:
        raise Broken(f"`{type(method).__name__}` cannot be hashed ({error}); make it a frozen dataclass.") from error
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on several, networks as small as these wait longer than they compute
    try:
        return list(_checked(method, companies))
    finally:
        torch.set_num_threads(threads)


def _checked(method: Method, companies: tuple[Company, ...]) -> Iterator[str]:
    for stream in Clear(2), Blurry(2, scale=20.0):
        played = toy(stream)
        baseline: list[Tensor] | None = None
        for company in companies:
            where = f"{type(method).__name__}, {company.name}, {type(stream).__name__.lower()}"
            learner, losses = _played(method, company, played, where)
            _finite(losses, where)
            _learnt(learner, played, where)
            _resumed(method, company, played, learner, where)
            drawn = [learner.memory.x, learner.memory.y]
            if baseline is None:
                baseline = drawn
            elif not all(torch.equal(a, b) for a, b in zip(baseline, drawn, strict=True)):
                raise Broken(f"{where}: the memory differs from that of the method alone; what is added may draw nothing of it.")
            yield f"{where}: finite, learns, resumes bit for bit, draws as alone"


def toy(stream: Clear | Blurry, per_class: int = 80) -> Pass:
    """A stream of four classes, each bright in a quarter of its own."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(4).repeat(per_class)
    x = torch.randint(0, 100, (len(y), 3, 8, 8), generator=rng, dtype=torch.uint8)
    for c in range(4):
        row, column = 4 * (c // 2), 4 * (c % 2)
        x[y == c, :, row : row + 4, column : column + 4] += 120
    return stream.over(Batch(x, y), ("a", "b", "c", "d"), Seeds(0))


def learner_for(method: Method, company: Company, played: Pass) -> Learner:
    """A small learner on such a stream.  Where tasks blur, a method that must know them is given a rule."""
    rule: Boundaries | None = Oracle() if played.sharp else NewClass(lag=10) if method.needs_tasks else None
    return Learner(
        played.spec,
        method,
        teacher=company.teacher,
        distill=company.distill,
        infer=company.infer,
        net=ResNet18(width=4),
        optim=Adam(lr=3e-3),
        memory=40,
        replay_size=16,
        full=Partial(padding=1, flip=0.0),
        boundaries=rule,
        precision="fp32",
    )


def _batches(played: Pass, start: int = 0) -> Iterator[Batch]:
    return played.batches(8, start)


def _played(method: Method, company: Company, played: Pass, where: str) -> tuple[Learner, list[Tensor]]:
    learner, losses = learner_for(method, company, played), list[Tensor]()
    for batch in _batches(played):
        try:
            losses += learner.observe(batch).values()
        except Refused:
            raise
        except Exception as error:
            raise Broken(f"{where}: update {learner.clock.updates} failed: {type(error).__name__}: {error}") from error
    return learner, losses


def _finite(losses: list[Tensor], where: str) -> None:
    if not losses:
        raise Broken(f"{where}: no batch gave a loss, so nothing was learnt; `loss` may return None only now and then.")
    for i, loss in enumerate(losses):
        if loss.dim() or not bool(loss.isfinite()):
            raise Broken(f"{where}: loss {i} is {loss}, not a finite scalar.")


def _learnt(learner: Learner, played: Pass, where: str) -> None:
    share = (learner.predict(played.x) == played.y).float().mean().item()
    if share < 0.4:
        raise Broken(f"{where}: {100 * share:.0f} % of four easy classes are right after one pass, and a guess gives 25 %.")


def _resumed(method: Method, company: Company, played: Pass, whole: Learner, where: str) -> None:
    first, second = learner_for(method, company, played), learner_for(method, company, played)
    half = len(played) // 2 + 16  # within a task
    for batch in _batches(played):
        if first.clock.samples >= half:
            break
        first.observe(batch)
    second.load_state_dict({k: v.clone() for k, v in first.state_dict().items()})
    for batch in _batches(played, second.clock.samples):
        second.observe(batch)
    mine, theirs = second.state_dict(), whole.state_dict()
    differing = [k for k in theirs if not torch.equal(mine[k], theirs[k])]
    if differing:
        raise Broken(
            f"{where}: after a save and a restore `{differing[0]}` and {len(differing) - 1} others differ; what changes over steps "
            "belongs into `state`, and what is drawn comes from `step.random`."
        )
