"""Preprocessing of inputs that are tensors from the start: there is none, but they are checked."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from agent.inputs import EncodedImage, Payload, Pixels, Tensor, Url
from agent.preprocessor import Preprocessor
from manifests.errors import InputError


class TensorPreprocessor(Preprocessor):
    """Takes tensors of the model's shape, and refuses images, which it could only guess to turn into one."""

    def write(self, payload: Payload, out: NDArray[Any]) -> None:
        """Writes a tensor as the model's element type.

        Raises:
            InputError: It is an image, or a tensor of another shape or element type; see ``check``.
        """
        match payload:
            case Tensor():
                out[...] = self.check(payload.array, self.dimensions)
                return
            case EncodedImage():
                found = f"an encoded image of {len(payload.content)} bytes"
            case Pixels():
                found = f"a decoded image of shape {list(payload.array.shape)}"
            case Url():
                found = payload.address
        raise InputError(
            f"the model takes tensors of {self.dtype} of shape {list(self.dimensions)}; found {found}"
        )
