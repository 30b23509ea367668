"""What other tools would have said of a stream, and the table of it in the docs."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests import generation_tools
from tests.generation_tools import Stream

MS = 1_000_000
EVENTS = [(12, "role"), (62, "text"), (74, "text"), (82, "text"), (83, "finish"), (84, "usage"), (85, "done")]
STREAM = Stream(0, 2 * MS, [(time_ms * MS, kind) for time_ms, kind in EVENTS], 86 * MS, 8, 3)
"""Sent 2 ms late; chunks of 3, 3 and 2 tokens."""


@pytest.mark.parametrize(
    ("tool", "figures"),
    [
        ("inferometer", {"TTFT": 62, "TPOT": 20 / 7, "ICL": 10, "e2e": 86}),
        ("aiperf", {"TTFT": 60, "TPOT": 20 / 7, "ICL": 10, "e2e": 80}),
        ("aiperf, usage per chunk", {"TTFT": 60, "TPOT": 4, "ICL": 10, "e2e": 80}),
        ("guidellm", {"TTFT": 60, "TPOT": 20 / 7, "over all": 10, "e2e": 83}),
        ("vllm bench serve", {"TTFT": 10, "TPOT": 71 / 7, "ICL": 71 / 4, "e2e": 81}),
        ("LoadGen", {"TTFT": 62, "TPOT": 24 / 7, "e2e": 86}),
    ],
)
def test_each_tool_by_its_own_definitions(tool, figures):
    assert generation_tools.COLUMNS[tool](STREAM) == pytest.approx(figures)


def test_the_formulas_that_convert():
    ours, guidellm = generation_tools.ours(STREAM), generation_tools.guidellm(STREAM)
    aiperf = generation_tools.aiperf(STREAM, per_chunk_usage=True)
    lag_ms, n, m = 2, STREAM.tokens, STREAM.first_tokens

    assert ours["TTFT"] == guidellm["TTFT"] + lag_ms
    assert ours["TPOT"] * (n - 1) / (n - m) == pytest.approx(aiperf["TPOT"])
    assert (guidellm["TTFT"] + ours["TPOT"] * (n - 1)) / n == pytest.approx(guidellm["over all"])


def test_a_stream_without_a_role_has_one_first_token_for_all():
    plain = replace(
        STREAM, due_ns=STREAM.sent_ns, events=[each for each in STREAM.events if each[1] != "role"]
    )

    assert {found(plain)["TTFT"] for found in generation_tools.COLUMNS.values()} == {60}


def test_the_page_has_the_table_of_the_recorded_stream():
    page = Path(__file__).parents[2] / "docs" / "generation.md"

    assert "\n".join(generation_tools.table(Stream.recorded())) in page.read_text(encoding="utf-8")
