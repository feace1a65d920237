"""The one exception for what a user asked for and cannot have: what, because, instead."""

from collections.abc import Iterable
from difflib import get_close_matches


class Refused(ValueError):
    """A mistake that its reader can mend.  The command line prints it in one line and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str], more: str = "") -> Refused:
    """The error for a name that does not exist, with the nearest that does."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(names)}."
    return Refused(f"There is no {kind} `{name}`; {hint}{' ' + more if more else ''}")
