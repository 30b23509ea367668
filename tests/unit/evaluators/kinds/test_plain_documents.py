"""The documents of a plug-in's measurement: what they keep comes back, and what they cannot is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from inferometer.evaluators.kinds.kind import Kind
from inferometer.manifests.errors import StoreError
from tests.contract.store_fixtures import make_evaluation


@dataclass(frozen=True, slots=True, eq=False)
class Naps:
    """How long somebody slept."""

    kind: ClassVar[str] = "naps"
    values: Any
    elapsed_ns: int = 5
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        return 1


class NapKind(Kind[Naps]):
    name = "naps"
    measurement = Naps


@pytest.mark.parametrize(
    "values",
    [
        np.array([1, 2**62], np.int64),
        np.array([2**64 - 1], np.uint64),
        np.array([1.5, np.nan, np.inf], np.float32),
        np.array([True, False]),
        np.array([], np.float64),
    ],
    ids=lambda values: str(values.dtype),
)
def test_arrays_of_numbers_come_back(values: np.ndarray) -> None:
    kind = NapKind()
    written, parts = kind.to_documents(make_evaluation(measurement=Naps(values, options={"naps": 2})), "save")

    found = kind.from_documents({"measurement": written, "elapsed_ns": 5}, parts)

    assert isinstance(found, Naps)
    assert found.values.dtype == values.dtype
    np.testing.assert_array_equal(found.values, values)
    assert found.options == {"naps": 2}


@pytest.mark.parametrize(
    "values", [np.zeros((2, 2)), np.array(["a"]), np.array([None]), np.zeros(1_000_001, np.int8)]
)
def test_other_arrays_are_refused_with_what_to_do(values: np.ndarray) -> None:
    with pytest.raises(StoreError, match=r"values is an array of .* override to_documents and from_"):
        NapKind().to_documents(make_evaluation(measurement=Naps(values)), "save")


def test_a_stored_array_of_objects_is_damaged() -> None:
    stored = {"values": {"dtype": "object", "values": [1]}, "options": {}}

    with pytest.raises(ValueError, match="an array of object"):
        NapKind().from_documents({"measurement": stored, "elapsed_ns": 5}, {})
