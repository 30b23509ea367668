"""Damaged documents of a database or a file: one is refused by name, or shown like any other."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import assert_one_clean_line, damaged_bytes, damaged_document, fuzzed

from inferometer.client.commands.show import lines_of
from inferometer.evaluators.kinds.registry import find_report
from inferometer.evaluators.kinds.reports import TraceReport
from inferometer.evaluators.store.evaluation_store import evaluation_from_json, evaluation_to_json
from inferometer.manifests.errors import StoreError
from tests.reports.pictures import REPORTS

# it finds the documents large, which it prints where one fails
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
DATA = Path(__file__).parents[1] / "data" / "documents_v1"
EARLIER = [path.read_text("utf-8") for path in sorted(DATA.glob("*.json")) if path.stem != "reports"]
PRESENT = [evaluation_to_json(evaluation_from_json(text)) for text in EARLIER]
TEXTS = [*PRESENT, *EARLIER]


def read_and_report(text: str) -> None:
    """Does with an evaluation what a user can."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            evaluation = evaluation_from_json(text)
        except StoreError as error:
            assert_one_clean_line(error)
            return
        try:
            for name in REPORTS:
                report = find_report(name)
                taken = report.taken([evaluation])
                if isinstance(report, TraceReport):
                    list(report.rows_of(taken, lambda _: iter(evaluation.spans)))
                else:
                    list(report.rows(taken))
            for line in lines_of(evaluation, [], lambda _: iter(evaluation.spans)):
                assert line.isprintable(), ascii(line)
        except StoreError as error:
            assert_one_clean_line(error)


@fuzzed
@given(damaged_document([json.loads(text) for text in TEXTS]))
def test_values(document: Any) -> None:
    read_and_report(json.dumps(document))


@fuzzed
@given(damaged_bytes([text.encode() for text in TEXTS], most_edits=2))
def test_text(content: bytes) -> None:
    read_and_report(content.decode("utf-8", "replace"))
