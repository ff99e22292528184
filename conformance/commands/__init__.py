"""The subcommands of `bloomery-conformance`, a module each.

A module has `add_arguments(parser)` and either `checks(arguments)`, which lists what can be run without opening an
engine, or `run(arguments)`, which answers with findings.
"""


class UsageError(ValueError):
    """Arguments that ask for nothing that can be run; the message names the flag and the remedy."""
