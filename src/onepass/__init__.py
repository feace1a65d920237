"""Online continual learning with replay, and momentum knowledge distillation that fits every method."""

from typing import TYPE_CHECKING, Any

from onepass.__about__ import __version__ as __version__

if TYPE_CHECKING:
    from onepass.augment import Full as Full
    from onepass.augment import Partial as Partial
    from onepass.boundaries import NewClass as NewClass
    from onepass.boundaries import Oracle as Oracle
    from onepass.config import Config as Config
    from onepass.data import source as source
    from onepass.distill import MKD as MKD
    from onepass.errors import Refused as Refused
    from onepass.learner import SGD as SGD
    from onepass.learner import Adam as Adam
    from onepass.learner import Learner as Learner
    from onepass.loop import run as run
    from onepass.losses import distillation as distillation
    from onepass.losses import lambda_for as lambda_for
    from onepass.losses import mkd_loss as mkd_loss
    from onepass.memory import Memory as Memory
    from onepass.method import Method as Method
    from onepass.methods.er import ER as ER
    from onepass.nets import ResNet18 as ResNet18
    from onepass.pool import sweep as sweep
    from onepass.recipes import recipe as recipe
    from onepass.record import Record as Record
    from onepass.record import records as records
    from onepass.seeds import Seeds as Seeds
    from onepass.stream import Batch as Batch
    from onepass.stream import Blurry as Blurry
    from onepass.stream import Clear as Clear
    from onepass.stream import Spec as Spec
    from onepass.teachers import EMA as EMA
    from onepass.teachers import average as average

_PLACES = {
    "augment": ("Full", "Partial"),
    "boundaries": ("NewClass", "Oracle"),
    "config": ("Config",),
    "data": ("source",),
    "distill": ("MKD",),
    "errors": ("Refused",),
    "learner": ("SGD", "Adam", "Learner"),
    "losses": ("distillation", "lambda_for", "mkd_loss"),
    "memory": ("Memory",),
    "method": ("Method",),
    "methods.er": ("ER",),
    "nets": ("ResNet18",),
    "recipes": ("recipe",),
    "record": ("Record", "records"),
    "loop": ("run",),
    "seeds": ("Seeds",),
    "stream": ("Batch", "Blurry", "Clear", "Spec"),
    "pool": ("sweep",),
    "teachers": ("EMA", "average"),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}
__all__ = ["__version__", *sorted(_MODULE_OF)]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Each name comes from its module when it is first asked for: `onepass --help` need not wait for torch."""
    from importlib import import_module

    if name not in _MODULE_OF:
        raise AttributeError(f"module 'onepass' has no attribute {name!r}")
    value = getattr(import_module(f"onepass.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
