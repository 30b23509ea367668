"""Tensor inputs: what a model accepts, and the errors for everything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import EncodedImage, Payload, Pixels, Tensor, Url
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor, Preprocessor, preprocessor_of
from inferometer.manifests.errors import InputError
from inferometer.manifests.inputs import ImageParameters, TensorParameters


def preprocessor(dimensions: tuple[int, ...] = (540,), element_type: str = "float32") -> Preprocessor:
    content = {"dimensions": dimensions, "element_type": element_type}
    return preprocessor_of(TensorParameters.model_validate(content))


def refusal(process: Preprocessor, payload: Payload) -> str:
    with pytest.raises(InputError) as caught:
        process(payload)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def test_the_type_of_the_input_chooses_what_preprocesses_it() -> None:
    assert isinstance(preprocessor_of(ImageParameters(dimensions=(3, 8, 8))), ImagePreprocessor)
    assert not isinstance(preprocessor(), ImagePreprocessor)


@pytest.mark.parametrize("dimensions", [(540,), (1, 200, 161), (2, 3, 4, 5)])
@pytest.mark.parametrize("element_type", ["float32", "float16", "uint8", "int32", "int64"])
def test_a_tensor_of_any_rank_and_element_type_passes_as_it_is(
    dimensions: tuple[int, ...], element_type: str
) -> None:
    array = (np.arange(np.prod(dimensions)) % 100).reshape(dimensions).astype(element_type)
    process = preprocessor(dimensions, element_type)

    result = process(Tensor(array))

    np.testing.assert_array_equal(result, array)
    assert (result.dtype, process.dtype) == (array.dtype, array.dtype)
    assert (process.dimensions, process.tensor_bytes) == (dimensions, array.nbytes)
    assert result.flags.c_contiguous


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (EncodedImage(b"\x89PNG"), "an encoded image of 4 bytes"),
        (Pixels(np.zeros((28, 20, 3), np.uint8)), "a decoded image of shape [28, 20, 3]"),
        (Url("http://host/a.png"), "http://host/a.png"),
    ],
)
def test_what_is_no_tensor_is_refused(payload: Payload, found: str) -> None:
    message = refusal(preprocessor(), payload)
    assert message == f"the model takes tensors of float32 of shape [540]; found {found}"


@pytest.mark.parametrize("shape", [(539,), (1, 540), (540, 1), (), (0,), (2, 270)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    message = refusal(preprocessor(), Tensor(np.zeros(shape, np.float32)))
    assert message == f"tensor has shape {list(shape)}; the model takes [540]"


@pytest.mark.parametrize(
    ("found", "wanted"),
    [("float32", "int64"), ("int64", "int32"), ("uint64", "int64"), ("int8", "uint8"), ("float16", "uint8"),
     ("U1", "int64"), ("complex64", "float32"), ("object", "float32"), ("datetime64[s]", "int64"),
     ("timedelta64[s]", "int64")],
)  # fmt: skip
def test_an_element_type_that_would_lose_values_is_refused(found: str, wanted: str) -> None:
    message = refusal(preprocessor((3,), wanted), Tensor(np.zeros(3, found)))
    assert message.endswith(f"; the model takes {wanted}")


@pytest.mark.parametrize(
    ("found", "wanted"), [("int32", "int64"), ("uint8", "int32"), ("bool", "uint8"), (">i8", "int64")]
)
def test_whole_numbers_are_widened(found: str, wanted: str) -> None:
    result = preprocessor((2,), wanted)(Tensor(np.array([1, 0]).astype(found)))
    assert result.dtype == np.dtype(wanted)
    assert result.tolist() == [1, 0]


@pytest.mark.parametrize(("value", "wanted"), [(1e300, "float32"), (-1e39, "float32"), (70_000, "float16")])
def test_a_value_that_would_become_infinite_is_refused(value: float, wanted: str) -> None:
    message = refusal(preprocessor((2,), wanted), Tensor(np.array([0, value])))
    assert message.endswith(f"has a value that {wanted} cannot hold")


def test_what_is_infinite_or_no_number_already_passes() -> None:
    array = np.array([np.inf, -np.inf, np.nan, 1.0])
    np.testing.assert_array_equal(preprocessor((4,))(Tensor(array)), array.astype(np.float32))


_DTYPES = st.one_of(
    arrays.integer_dtypes(),
    arrays.unsigned_integer_dtypes(),
    arrays.floating_dtypes(),
    arrays.boolean_dtypes(),
    arrays.complex_number_dtypes(),
)


@given(
    st.sampled_from(["float32", "float16", "uint8", "int32", "int64"]),
    arrays.arrays(_DTYPES, arrays.array_shapes(min_dims=0, max_dims=2, max_side=3)),
)
def test_any_array_is_taken_to_float_precision_or_refused(wanted: str, array: NDArray[Any]) -> None:
    process = preprocessor((3,), wanted)
    try:
        result = process(Tensor(array))
    except InputError:
        return
    assert (result.shape, result.dtype) == ((3,), np.dtype(wanted))
    if result.dtype.kind in "iu":
        np.testing.assert_array_equal(result, array)
    else:
        np.testing.assert_array_equal(np.isfinite(result), np.isfinite(array))
