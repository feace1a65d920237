"""The command line: what the shell runs."""

import sys
from collections.abc import Sequence
from importlib import import_module

from onepass.__about__ import __version__
from onepass.commands import NAMES, Parser
from onepass.errors import Refused


def main(argv: Sequence[str] | None = None) -> int:
    """What the shell runs.  A mistake of the user's is one line on stderr and exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _do(arguments)
    except Refused as error:
        print(f"onepass: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt as error:
        print(f"onepass: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130


def _do(arguments: list[str]) -> int:
    modules = {name: import_module(f"onepass.commands.{name}") for name in NAMES}
    top = Parser(prog="onepass", description="Online continual learning with replay and momentum distillation.")
    top.add_argument("--version", action="version", version=f"onepass {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for module in modules.values():
        module.add(commands)
    first = modules.get(arguments[0]) if arguments else None
    if first is not None and hasattr(first, "main"):
        return first.main(arguments[1:])
    known = top.parse_args(arguments)
    if known.command is None:
        top.print_help()
        return 0
    return known.do(known)


if __name__ == "__main__":
    sys.exit(main())
