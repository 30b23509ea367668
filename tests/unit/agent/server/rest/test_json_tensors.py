"""Tensors in JSON: every datatype there and back, and what is refused."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from inferometer.agent.open_inference.codec import DATATYPES
from inferometer.agent.open_inference.http_codec import content_of, data_of
from inferometer.manifests.errors import InputError, PredictionError


@pytest.mark.parametrize("name", DATATYPES)
@given(data=st.data())
def test_every_datatype_comes_back_as_it_was_sent(name: str, data: st.DataObject) -> None:
    dtype = DATATYPES[name].dtype
    shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    array = data.draw(arrays.arrays(dtype, shapes))
    nested = json.loads(json.dumps(array.tolist() if array.ndim else [array.item()]))
    content = content_of(nested, name, array.size, "here")
    found = data_of(content, name, "out")
    np.testing.assert_array_equal(np.array(json.loads(json.dumps(found)), dtype), array.reshape(-1))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_texts_come_back_as_they_were_sent(texts: list[str]) -> None:
    content = content_of([texts], "BYTES", len(texts), "here")
    assert bytes(content[:4]) == (struct.pack("<I", len(texts[0].encode())) if texts else b"")
    assert data_of(content, "BYTES", "out") == texts


@pytest.mark.parametrize(
    ("data", "datatype"),
    [
        ([256], "UINT8"),
        ([-1], "UINT64"),
        ([2**64], "UINT64"),
        ([2**63], "INT64"),
        ([-129], "INT8"),
        ([1.0], "INT32"),
        ([True], "INT32"),
        (["1"], "INT32"),
        ([None], "INT32"),
        ([2], "BOOL"),
        ([0.0], "BOOL"),
        (["true"], "BOOL"),
        ([True], "FP32"),
        ([65520.0], "FP16"),
        ([1e39], "FP32"),
        ([{}], "FP32"),
        ([[[]], 1.0], "FP32"),
        ([1, [2]], "FP32"),
        ({"0": 1}, "FP32"),
        (1, "FP32"),
        ([1], "BYTES"),
        (["\ud800"], "BYTES"),
        ([1.0], "BF16"),
        ([1.0], "FP8"),
    ],
)
def test_elements_that_a_datatype_cannot_hold_are_refused(data: Any, datatype: str) -> None:
    with pytest.raises(InputError, match=r"^here: "):
        content_of(data, datatype, 1, "here")


def test_data_nested_without_end_is_refused() -> None:
    data: list[Any] = [1]
    for _ in range(500):
        data = [data]
    for datatype in ("FP32", "INT8", "UINT64", "BYTES"):
        with pytest.raises(InputError):
            content_of(data, datatype, 1, "here")


def test_whole_numbers_of_64_bits_are_not_rounded() -> None:
    data = [0, 2**64 - 1, 2**63, 2**53 + 1]
    assert data_of(content_of(data, "UINT64", 4, "here"), "UINT64", "out") == data
    data = [-(2**63), 2**63 - 1, 2**53 + 1]
    assert data_of(content_of(data, "INT64", 3, "here"), "INT64", "out") == data


def test_infinity_and_nan_stay_what_they_are() -> None:
    found = data_of(content_of([float("inf"), float("nan")], "FP16", 2, "here"), "FP16", "out")
    assert found[0] == float("inf")
    assert np.isnan(found[1])


def test_bytes_that_are_no_text_have_no_form_in_json() -> None:
    with pytest.raises(InputError, match="ask for binary_data"):
        data_of(struct.pack("<I", 1) + b"\xff", "BYTES", "out")
    with pytest.raises(PredictionError, match="ask for binary_data"):
        data_of(b"\0\0", "BF16", "out")
