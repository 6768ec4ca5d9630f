"""Ends a command with one line when a Python module is not installed. Imports nothing that could be missing."""

from __future__ import annotations

import sys
from typing import Final, NoReturn

_REFUSED: Final = 2


def end_for_missing_module(error: ModuleNotFoundError) -> NoReturn:
    """Ends the process. Raises: the error, where one of our own modules is missing."""
    module = (error.name or "stratalog").partition(".")[0]
    if module.startswith("stratalog"):
        raise error
    sys.stderr.write(
        f"stratalog: this needs the Python module {module}, which is not installed here: install "
        "requirements/all.txt of the checkout beside it (docs/install.md)\n"
    )
    raise SystemExit(_REFUSED) from None
