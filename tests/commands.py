"""Commands, run in the process of the test."""

from __future__ import annotations

import pytest

from evofeed.cli import main


def evofeed(*words: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)
