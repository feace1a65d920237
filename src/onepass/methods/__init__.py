"""The methods, by the names the command line knows them by."""

from onepass.method import Method
from onepass.methods.derpp import DERpp
from onepass.methods.dvc import DVC
from onepass.methods.er import ER
from onepass.methods.er_ace import ERACE
from onepass.methods.gsa import GSA
from onepass.methods.ocm import OCM
from onepass.methods.pcr import PCR

METHODS: dict[str, type[Method]] = {
    "er": ER,
    "derpp": DERpp,
    "er-ace": ERACE,
    "dvc": DVC,
    "ocm": OCM,
    "gsa": GSA,
    "pcr": PCR,
}
