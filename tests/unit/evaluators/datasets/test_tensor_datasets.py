"""An ``.npz`` for models with tensor inputs: the arrays ``inputs``, ``images`` and ``x``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.preprocessing.inputs import Pixels, Tensor
from inferometer.evaluators.datasets.opening import open_path
from inferometer.manifests.errors import DatasetError


def make_npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", "<f8", "|u1", "|i1", "<i4", ">i8", "<u8"])
@pytest.mark.parametrize("shape", [(3, 784), (3, 8, 8), (3, 8, 8, 3), (3, 1, 200, 161)])
def test_inputs_are_tensors_of_any_element_type(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = (np.arange(np.prod(shape)) % 100).reshape(shape).astype(dtype)

    samples = list(open_path(make_npz(tmp_path / "d.npz", inputs=array, y=np.array([2, 0, 1])), "sound"))

    assert [(sample.id, sample.label) for sample in samples] == [("0", "2"), ("1", "0"), ("2", "1")]
    for sample, expected in zip(samples, array, strict=True):
        data = sample.read()
        assert isinstance(data, Tensor)
        assert data.array.dtype == array.dtype.newbyteorder("=")
        assert data.array.dtype.isnative
        np.testing.assert_array_equal(data.array, expected)


@pytest.mark.parametrize("name", ["images", "x", "data"])
def test_floats_are_tensors_of_any_rank_under_the_other_names(name: str, tmp_path: Path) -> None:
    array = np.ones((2, 784), np.float32)
    for sample in open_path(make_npz(tmp_path / "d.npz", **{name: array}), "sound"):
        data = sample.read()
        assert isinstance(data, Tensor)
        assert data.array.shape == (784,)
        assert sample.label is None


@pytest.mark.parametrize("name", ["images", "x", "data"])
def test_bytes_are_pixels_under_the_other_names(name: str, tmp_path: Path) -> None:
    array = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    path = make_npz(tmp_path / "d.npz", **{name: array}, labels=np.array([1, 0]))
    for sample, expected, label in zip(open_path(path, "vision"), array, "10", strict=True):
        data = sample.read()
        assert isinstance(data, Pixels)
        np.testing.assert_array_equal(data.array, expected)
        assert sample.label == label


@pytest.mark.parametrize("array", [np.array([["a", ""], ["Größe", "b"]]), np.eye(2, dtype=bool)])
def test_texts_and_bools_are_tensors(array: np.ndarray, tmp_path: Path) -> None:
    samples = list(open_path(make_npz(tmp_path / "d.npz", inputs=array), "tensors"))
    assert [sample.read().array.tolist() for sample in samples] == array.tolist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((2, 784), np.uint8)}, r"for uint8: pixels, .*; tensors are called inputs"),
        ({"x": np.zeros((2, 3, 8, 8), np.uint8)}, r"x are uint8 of shape .*; tensors are called inputs"),
        ({"x": np.zeros((2, 784), np.int64)}, "x are int64 of .*; others are called inputs"),
        ({"inputs": np.zeros((2, 3), np.complex64)}, "inputs are complex64 .*accepted: float32 .* or texts"),
        ({"inputs": np.array([[b"a"]])}, "inputs are .S1"),
        ({"inputs": np.zeros((2, 3), "datetime64[s]")}, "inputs are datetime64"),
        ({"inputs": np.zeros(2, np.float32)}, "for tensors: N × the shape of the model's input"),
        ({"inputs": np.float32(1)}, "for tensors: N × the shape of the model's input"),
        ({"inputs": np.zeros((0, 3), np.float32)}, "holds no inputs"),
        ({"inputs": np.zeros((2, 0), np.float32)}, "which is empty"),
        ({"inputs": np.zeros((2, 3)), "x": np.zeros((2, 3))}, "needs one array of .*; it has: inputs, x"),
        ({"images": np.zeros((2, 3)), "x": np.zeros((2, 3))}, "needs one array of .*; it has: images, x"),
        ({"input": np.zeros((2, 3))}, "has no array images .* or inputs; it has: input"),
        ({"inputs": np.zeros((2, 3)), "labels": np.arange(3)}, "but there are 2 samples"),
    ],
)
def test_other_arrays_are_refused(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message) as caught:
        open_path(make_npz(tmp_path / "d.npz", **arrays), "sound")
    assert len(str(caught.value).splitlines()) == 1
