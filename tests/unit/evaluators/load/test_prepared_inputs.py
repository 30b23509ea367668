"""The inputs of a run under load, prepared before it begins."""

import io

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels, Tensor, Url
from inferometer.agent.preprocessing.model_preprocessor import ModelPreprocessor
from inferometer.agent.preprocessing.preprocessor import preprocessor_of
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.load.target import (
    prepare_inputs,
    read_inputs,
    synthetic_payloads,
    synthetic_tensors,
)
from inferometer.manifests.errors import DatasetError, InputError
from inferometer.manifests.inputs import (
    ColorMode,
    ElementType,
    ImageParameters,
    TensorElementType,
    TensorParameters,
)

GRAY = ImageParameters(dimensions=(1, 2, 2), color_mode=ColorMode.GRAY)
IMAGE_BYTES = 2 * 2 * 4


class Samples(Dataset):
    """A dataset of given data, which counts how many of them were taken."""

    def __init__(self, *data):
        super().__init__(DatasetIdentity("vision", "shapes", None, None, len(data)))
        self._data = data
        self.taken = 0

    def __iter__(self):
        for number, data in enumerate(self._data):
            self.taken += 1
            yield Sample(f"s{number}", data)


def of(parameters):
    """The preprocessor of a model with one input."""
    return ModelPreprocessor([preprocessor_of(parameters)])


def stacked(prepared):
    """The only tensor of all inputs."""
    return np.concatenate([array for row in prepared.rows for array in row.values()])


def pixels(value):
    return Pixels(np.full((2, 2), value, np.uint8))


def png(value):
    file = io.BytesIO()
    Image.new("L", (2, 2), value).save(file, "PNG")
    return file.getvalue()


def missing():
    raise FileNotFoundError(2, "No such file or directory")


def test_the_inputs_are_preprocessed_in_the_order_of_the_dataset():
    dataset = Samples(pixels(1), lambda: EncodedImage(png(2)), Url("http://here/3"))

    prepared = prepare_inputs(dataset, of(GRAY), fetch=lambda address: png(int(address[-1])))

    assert stacked(prepared).dtype == np.float32
    assert stacked(prepared).shape == (3, 1, 2, 2)
    assert stacked(prepared)[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert prepared.source == "the first 3 of 3 inputs of shapes"


def test_inputs_that_fail_are_left_out_and_told():
    dataset = Samples(missing, pixels(1), EncodedImage(b"no image"), pixels(4))

    prepared = prepare_inputs(dataset, of(GRAY))

    assert stacked(prepared)[:, 0, 0, 0].tolist() == [1, 4]
    assert [failure.input_id for failure in prepared.failures] == ["s0", "s2"]
    assert prepared.source == "the first 4 of 4 inputs of shapes, 2 left out"


@pytest.mark.parametrize("prepare", [lambda data: prepare_inputs(data, of(GRAY)), read_inputs])
def test_without_any_input_that_can_be_used_there_is_no_load(prepare):
    with pytest.raises(DatasetError) as raised:
        prepare(Samples(missing, missing))
    assert str(raised.value) == (
        "dataset shapes: none of the first 2 inputs can be used; "
        "input s0: cannot be read: No such file or directory"
    )

    with pytest.raises(DatasetError, match="dataset shapes is empty"):
        prepare(Samples())


def test_memory_bounds_how_many_are_prepared():
    dataset = Samples(*map(pixels, range(9)))

    prepared = prepare_inputs(dataset, of(GRAY), max_bytes=3 * IMAGE_BYTES + 1)

    assert len(prepared) == 3
    assert dataset.taken == 3
    assert prepared.source == "the first 3 of 9 inputs of shapes"
    assert len(prepare_inputs(dataset, of(GRAY), max_bytes=1)) == 1
    assert len(prepare_inputs(dataset, of(GRAY), max_inputs=5)) == 5


def test_inputs_are_read_and_fetched_but_not_preprocessed():
    dataset = Samples(missing, lambda: EncodedImage(b"any"), Url("http://here/3"), pixels(4))

    read = read_inputs(dataset, fetch=lambda address: address.encode())

    assert read.payloads[:2] == (EncodedImage(b"any"), EncodedImage(b"http://here/3"))
    assert len(read) == 3
    assert [failure.input_id for failure in read.failures] == ["s0"]


def test_memory_bounds_how_many_are_read():
    dataset = Samples(*(EncodedImage(bytes(10)) for _ in range(9)))

    assert len(read_inputs(dataset, max_bytes=35)) == 3
    assert len(read_inputs(dataset, max_bytes=5)) == 1
    assert len(read_inputs(dataset, max_inputs=4)) == 4


def test_a_url_that_cannot_be_fetched_is_left_out():
    def fetch(address):
        raise InputError(f"{address}: 404")

    with pytest.raises(DatasetError, match=r"none of the first 1 inputs can be used; .*: http://x: 404"):
        read_inputs(Samples(Url("http://x")), fetch=fetch)


def test_synthetic_tensors_have_the_shape_and_dtype_of_the_model_and_are_all_different():
    for dtype, highest in (("float32", 1), ("float16", 1), ("uint8", 256), ("int64", 2), ("int32", 2)):
        parameters = TensorParameters(dimensions=(3, 50), element_type=TensorElementType(dtype))

        made = synthetic_tensors([parameters], seed=3, count=5)

        assert stacked(made).shape == (5, 3, 50)
        assert stacked(made).dtype == dtype
        assert stacked(made).min() >= 0
        assert stacked(made).max() < highest
        assert len({tensor.tobytes() for tensor in stacked(made)}) == 5


def test_synthetic_tensors_come_from_their_seed():
    parameters = TensorParameters(dimensions=(2,))

    tensors = stacked(synthetic_tensors([parameters], seed=7, count=1))

    # the same on every machine
    assert tensors.tolist() == [[0.30630460381507874, 0.6329972743988037]]
    assert not np.array_equal(tensors, stacked(synthetic_tensors([parameters], seed=8, count=1)))
    assert synthetic_tensors([parameters], seed=7, count=1).source == "1 synthetic tensor, seed 7"


def test_synthetic_inputs_are_bounded_by_memory():
    assert len(synthetic_tensors([GRAY], 0, max_bytes=2 * IMAGE_BYTES)) == 2
    assert len(synthetic_payloads([GRAY], 0, max_bytes=2 * 12)) == 2


def test_synthetic_images_can_be_preprocessed():
    parameters = ImageParameters(dimensions=(5, 4, 3), layout="HWC", element_type=ElementType.UINT8)
    made = synthetic_payloads([parameters], 1, count=2)

    prepared = prepare_inputs(Samples(*made.payloads), of(parameters))

    # of the model's own size, they become tensors as they are
    assert np.array_equal(stacked(prepared), [image.array for image in made.payloads])


def test_synthetic_inputs_of_a_model_that_takes_tensors_are_tensors():
    parameters = TensorParameters(dimensions=(2,))

    made = synthetic_payloads([parameters], 7, count=1)

    assert isinstance(made.payloads[0], Tensor)
    assert np.array_equal(made.payloads[0].array, stacked(synthetic_tensors([parameters], 7, count=1))[0])


def test_synthetic_strings_are_letters_which_the_seed_draws():
    words = TensorParameters(dimensions=(2,), element_type=TensorElementType.STRING, input_layer="words")

    drawn = [synthetic_tensors([words], seed, count=3) for seed in (0, 0, 1)]

    first, same, other = ([row["words"].tolist() for row in each.rows] for each in drawn)
    assert first == same != other
    texts = [text for [row] in first for text in row]
    assert len(set(texts)) == len(texts) == 6
    assert all(len(text) == 128 and text.isalpha() and text.islower() for text in texts)


def test_synthetic_integers_of_8_bits_have_any_value_and_others_may_be_tokens():
    for name, ends in (("int8", (-128, 127)), ("uint8", (0, 255)), ("int16", (0, 1)), ("uint32", (0, 1))):
        parameters = TensorParameters(dimensions=(2000,), element_type=TensorElementType(name))
        [tensor] = synthetic_tensors([parameters], 0, count=1).rows[0].values()
        assert (tensor.dtype, int(tensor.min()), int(tensor.max())) == (np.dtype(name), *ends)
