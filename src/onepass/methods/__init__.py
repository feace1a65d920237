"""The methods, by the names the command line knows them by."""

from onepass.method import Method
from onepass.methods.er import ER

METHODS: dict[str, type[Method]] = {"er": ER}
