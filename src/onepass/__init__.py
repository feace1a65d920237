"""Online continual learning with replay, and momentum knowledge distillation that fits every method."""

from typing import TYPE_CHECKING, Any

from onepass.__about__ import __version__ as __version__

if TYPE_CHECKING:
    from onepass.arrivals import Open as Open
    from onepass.augment import Full as Full
    from onepass.augment import Partial as Partial
    from onepass.boundaries import NewClass as NewClass
    from onepass.boundaries import Oracle as Oracle
    from onepass.config import Config as Config
    from onepass.contract import check_method as check_method
    from onepass.data import source as source
    from onepass.distill import MKD as MKD
    from onepass.distill import SDP as SDP
    from onepass.distill import Warm as Warm
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
    from onepass.methods.derpp import DERpp as DERpp
    from onepass.methods.dvc import DVC as DVC
    from onepass.methods.er import ER as ER
    from onepass.methods.er_ace import ERACE as ERACE
    from onepass.methods.gsa import GSA as GSA
    from onepass.methods.ocm import OCM as OCM
    from onepass.methods.pcr import PCR as PCR
    from onepass.nets import ResNet18 as ResNet18
    from onepass.pool import sweep as sweep
    from onepass.recipes import recipe as recipe
    from onepass.record import Record as Record
    from onepass.record import records as records
    from onepass.seeds import Seeds as Seeds
    from onepass.stream import Batch as Batch
    from onepass.stream import Blend as Blend
    from onepass.stream import Blurry as Blurry
    from onepass.stream import Clear as Clear
    from onepass.stream import Imbalanced as Imbalanced
    from onepass.stream import Spec as Spec
    from onepass.teachers import EMA as EMA
    from onepass.teachers import HypoExponential as HypoExponential
    from onepass.teachers import Snapshot as Snapshot
    from onepass.teachers import average as average

_PLACES = {
    "arrivals": ("Open",),
    "augment": ("Full", "Partial"),
    "boundaries": ("NewClass", "Oracle"),
    "config": ("Config",),
    "contract": ("check_method",),
    "data": ("source",),
    "distill": ("MKD", "SDP", "Warm"),
    "errors": ("Refused",),
    "learner": ("SGD", "Adam", "Learner"),
    "losses": ("distillation", "lambda_for", "mkd_loss"),
    "memory": ("Memory",),
    "method": ("Method",),
    "methods.derpp": ("DERpp",),
    "methods.dvc": ("DVC",),
    "methods.er": ("ER",),
    "methods.er_ace": ("ERACE",),
    "methods.gsa": ("GSA",),
    "methods.ocm": ("OCM",),
    "methods.pcr": ("PCR",),
    "nets": ("ResNet18",),
    "recipes": ("recipe",),
    "record": ("Record", "records"),
    "loop": ("run",),
    "seeds": ("Seeds",),
    "stream": ("Batch", "Blend", "Blurry", "Clear", "Imbalanced", "Spec"),
    "pool": ("sweep",),
    "teachers": ("EMA", "HypoExponential", "Snapshot", "average"),
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
