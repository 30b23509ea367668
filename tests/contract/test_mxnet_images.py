"""The decoder ``opencv`` gives the same pixels as MXNet's image pipeline, which has its own OpenCV."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor
from inferometer.manifests.inputs import ImageParameters
from tests.optional_mxnet import mxnet

# MXNet's conversion of what it was given looks at scipy's old names
pytestmark = pytest.mark.filterwarnings("ignore:Please import `:DeprecationWarning")


def photo(width: int, height: int, mode: str) -> Image.Image:
    """An image with smooth areas and noise."""
    random = np.random.default_rng(width)
    rough = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8))
    smooth = np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC))
    return Image.fromarray(smooth // 2 + random.integers(0, 128, smooth.shape, np.uint8)).convert(mode)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(
    ("width", "height", "mode", "image_format"),
    [(500, 375, "RGB", "JPEG"), (333, 500, "RGB", "JPEG"), (97, 131, "RGB", "PNG"), (311, 257, "L", "JPEG"),
     (320, 243, "P", "PNG"), (301, 299, "RGBA", "PNG"), (317, 270, "CMYK", "JPEG"), (12, 1, "RGB", "PNG")],
)  # fmt: skip
def test_an_image_becomes_what_mxnets_resize_short_and_center_crop_make_of_it(
    width: int, height: int, mode: str, image_format: str, interpolation: str
) -> None:
    buffer = io.BytesIO()
    photo(width, height, mode).save(buffer, image_format)
    # MXNet hands the number on to OpenCV, where 2 is bicubic; its documentation says area
    number = {"nearest": 0, "bilinear": 1, "bicubic": 2, "lanczos": 4}[interpolation]
    resized = mxnet.image.resize_short(mxnet.image.imdecode(buffer.getvalue()), 256, interp=number)
    cropped, (left, top, _, _) = mxnet.image.center_crop(resized, (224, 224))
    # MXNet rounds the crop's margins down, where torchvision and we round to even; these images have no such
    assert (left, top) == tuple(round((side - 224) / 2) for side in (resized.shape[1], resized.shape[0]))
    parameters = ImageParameters.model_validate(
        {"dimensions": [224, 224, 3], "layout": "HWC", "element_type": "uint8", "keep_aspect_ratio": True,
         "crop_ratio": 0.875, "decoder": "opencv", "interpolation": interpolation}
    )  # fmt: skip
    result = ImagePreprocessor(parameters)(EncodedImage(buffer.getvalue()))
    difference = np.abs(result.astype(np.int16) - cropped.asnumpy())
    # the two releases of OpenCV round bicubic's last bit differently, in one value of 25
    assert difference.max() <= (1 if interpolation == "bicubic" else 0)
    assert (difference > 0).mean() < 0.05
