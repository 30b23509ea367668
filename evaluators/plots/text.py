"""Text in pictures: what cannot be printed is escaped, and what is too long loses its middle."""

from __future__ import annotations

from unicodedata import east_asian_width


def printable(text: str) -> str:
    """Returns a text in one line that every format can hold; line ends and the like are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(text: str, most: int) -> str:
    """Returns a text of at most ``most`` characters, with its begin and its end: names differ at both.

    Letters of twice the width, such as Chinese ones, count twice, more or less.
    """
    text = printable(text)
    cells = sum(2 if east_asian_width(c) in "FW" else 1 for c in text)
    if cells <= most:
        return text
    most = most * len(text) // cells
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"
