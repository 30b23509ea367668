"""Display of addresses that come from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferometer.agent.artifacts.locations import shown
from inferometer.agent.preprocessing.inputs import Url
from inferometer.evaluators.datasets.folder import UrlsDataset


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://example.org/a.png?size=3", "https://example.org/a.png?size=3"),
        ("https://user:pass@example.org/a", "https://***@example.org/a"),
        ("https://user@example.org:8/a@b", "https://***@example.org:8/a@b"),
        ("https://us@er:p@ss@example.org/", "https://***@example.org/"),
        ("//user:pass@example.org/", "//***@example.org/"),
        ("leads to http://user:pass@h/ by a redirect", "leads to http://***@h/ by a redirect"),
        ("http://h/?X-Amz-Signature=abc&n=1", "http://h/?X-Amz-Signature=***&n=1"),
        ("http://h/?n=1&access_token=abc#part", "http://h/?n=1&access_token=***#part"),
        ("http://h/?sig=a%2Fb", "http://h/?sig=***"),
        ("http://h/?tokens=3", "http://h/?tokens=3"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_user_names_keys_and_signatures_are_not_shown(url: str, text: str) -> None:
    assert shown(url) == text


def test_what_is_shown_is_one_printable_line_of_some_length() -> None:
    assert shown("http://h/\n\x1b[31m☃") == "http://h/\\n\\x1b[31m\\u2603"
    assert len(shown("http://h/" + "a" * 1000)) == 200


def test_long_text_that_looks_like_parameters_takes_no_time() -> None:
    shown("http://h/?" + "a" * 200_000)
    shown("//" * 100_000)
    shown("?key" * 50_000)


def test_id_of_an_input_that_is_a_url_holds_no_credentials(tmp_path: Path) -> None:
    listing = tmp_path / "urls.txt"
    listing.write_text("https://me:hush@example.org/a.png?token=hush&n=1\n", encoding="utf-8")
    [sample] = UrlsDataset(listing)
    assert sample.id == "1:https://***@example.org/a.png?token=***&n=1"
    assert sample.data == Url("https://me:hush@example.org/a.png?token=hush&n=1")
