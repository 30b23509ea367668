"""Preprocessing against torchvision's classification transform, ``Resize``, ``CenterCrop``, ``ToTensor`` and
``Normalize`` on a Pillow image.

torchvision cannot be installed beside this project, so that ``transformed`` does with Pillow and NumPy what
torchvision documents: the shorter side becomes ``resize`` and the longer is rounded down; the crop's margins
are rounded to even; values are divided by 255 in float32, then ``(value - mean) / std`` in float32.

It was compared once with torchvision 0.28.0 (torch 2.13.0, Pillow 13.0.0) over every case below, bilinear and
bicubic: its pixels are torchvision's bit for bit, and so are its normalised values. What the preprocessor
gives then differs only in that it takes ``mean`` and ``scale`` on 0…255 and divides once: by at most 4.8e-7
over all 256 values of the three channels, which lie between -2.2 and 2.7.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from preprocessing_images import noise, preprocessor

from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels, fit_image
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.inputs import CropMethod, ImageParameters

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
ROUNDING = 5e-7
"""Four units in the last place of float32 at 1, on values between -2.2 and 2.7."""
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
PUBLISHED_RESIZE = {224: 256, 299: 342}
"""``resize_size`` of torchvision's weights by ``crop_size``, in the first version of each model's weights."""


def photo(width: int, height: int) -> Image.Image:
    """An image with smooth areas, edges and noise."""
    rough = Image.fromarray(noise(max(height // 8, 1), max(width // 8, 1), 3, seed=width))
    smooth = np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    speckled = smooth + noise(height, width, 3, seed=height) % 32
    return Image.fromarray(speckled.clip(0, 255).astype(np.uint8))


def file_of(image: Image.Image, image_format: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


CASES = {
    "landscape photo": file_of(photo(500, 375), "JPEG", quality=90),
    "portrait photo": file_of(photo(333, 500), "JPEG", quality=75),
    "subsampled colour": file_of(photo(401, 301), "JPEG", quality=60, subsampling=2),
    "smaller than the crop": file_of(photo(97, 131), "PNG"),
    "one pixel wide": file_of(photo(1, 12), "PNG"),
    "one pixel high": file_of(photo(9, 1), "PNG"),
    "a single pixel": file_of(photo(1, 1), "PNG"),
    "square of the size": file_of(photo(256, 256), "PNG"),
    "long": file_of(photo(1201, 231), "PNG"),
    "grey": file_of(photo(311, 257).convert("L"), "PNG"),
    "grey photo": file_of(photo(311, 257).convert("L"), "JPEG"),
    "palette": file_of(photo(320, 243).convert("P"), "PNG"),
    "transparent": file_of(photo(301, 299).convert("RGBA"), "PNG"),
    "print colours": file_of(photo(317, 270).convert("CMYK"), "JPEG", quality=90),
    "black and white": file_of(photo(280, 333).convert("1"), "PNG"),
}


def resized_and_cropped(content: bytes, resize: int, crop: int, interpolation: str) -> NDArray[np.uint8]:
    image = Image.open(io.BytesIO(content)).convert("RGB")
    short, long = min(image.size), max(image.size)
    longer = int(resize * long / short)
    image = image.resize(
        (resize, longer) if image.width <= image.height else (longer, resize), FILTERS[interpolation]
    )
    left, top = round((image.width - crop) / 2.0), round((image.height - crop) / 2.0)
    return np.asarray(image)[top : top + crop, left : left + crop]


def transformed(content: bytes, resize: int, crop: int, interpolation: str) -> NDArray[np.float32]:
    """What torchvision's transform makes of an image file."""
    pixels = resized_and_cropped(content, resize, crop, interpolation)
    tensor = pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    return (tensor - MEAN[:, None, None]) / STD[:, None, None]


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(
    ("crop", "ratio", "resize"), [(224, 0.875, 256), (299, 0.875, 342), (224, 0.95, 236)]
)
@pytest.mark.parametrize("case", CASES)
def test_an_image_becomes_what_torchvision_makes_of_it(
    case: str, crop: int, ratio: float, resize: int, interpolation: str
) -> None:
    common = {"keep_aspect_ratio": True, "crop_ratio": ratio, "interpolation": interpolation}
    payload = EncodedImage(CASES[case])
    pixels = preprocessor((crop, crop, 3), layout="HWC", element_type="uint8", **common)(payload)
    np.testing.assert_array_equal(pixels, resized_and_cropped(CASES[case], resize, crop, interpolation))
    process = preprocessor(
        (3, crop, crop), mean=[123.675, 116.28, 103.53], scale=[58.395, 57.12, 57.375], **common
    )
    wanted = transformed(CASES[case], resize, crop, interpolation)
    np.testing.assert_allclose(process(payload), wanted, rtol=0, atol=ROUNDING)


def test_every_value_of_a_pixel_is_normalised_to_rounding() -> None:
    values = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    process = preprocessor((3, 16, 16), mean=[123.675, 116.28, 103.53], scale=[58.395, 57.12, 57.375])
    exact = (values / 255.0 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(process(Pixels(values)), exact.transpose(2, 0, 1), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(
    ("crop", "ratio", "resize"),
    [
        (224, 0.875, 256),
        (299, 0.875, 342),  # torchvision's Inception v3; timm rounds 341.7 down
        (227, 0.875, 259),
        (224, 0.95, 236),  # timm: 235
        (224, 0.9655, 232),  # torchvision's second weights of ResNet50
        (299, 299 / 341, 341),  # how a manifest asks for timm's size
        (224, 1.0, 224),
    ],
)
def test_the_size_to_resize_to_is_rounded_to_the_nearest(crop: int, ratio: float, resize: int) -> None:
    content = {"dimensions": [3, crop, crop], "keep_aspect_ratio": True, "crop_ratio": ratio}
    fit = fit_image(ImageParameters.model_validate(content), 1000, 1000)
    assert (fit.width, fit.height) == (resize, resize)


def test_shipped_manifests_resize_to_what_torchvisions_weights_were_published_with() -> None:
    found = {}
    for manifest in Catalog().models:
        parameters = manifest.inputs[0].parameters
        if isinstance(parameters, ImageParameters) and parameters.width in PUBLISHED_RESIZE:
            assert parameters.keep_aspect_ratio, manifest.source
            assert parameters.crop_method is CropMethod.CENTER, manifest.source
            fit = fit_image(parameters, 1000, 1000)
            found[manifest.source] = (parameters.width, fit.width)
    assert len(found) > 30
    assert set(found.values()) == set(PUBLISHED_RESIZE.items())
