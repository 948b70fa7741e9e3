"""The command `threadmill-sa`. Importing this package needs no extra."""

from __future__ import annotations

import sys

_EXTRA = {"click", "rich"}


def main() -> None:
    """Run the command line and exit. Without its extra: one line that says what to install."""
    try:
        from threadmill_sa.cli.program import program  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print('the command line needs: pip install "threadmill-sa[cli]"', file=sys.stderr)  # noqa: T201
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding cannot show must not end the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    program(prog_name="threadmill-sa")
