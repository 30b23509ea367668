"""The decoder ``opencv``: its pixels, the files that it refuses, and its silence about them."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from preprocessing_images import RED, encode, noise, preprocessor, refusal

from inferometer.agent.preprocessing.inputs import MAX_PIXELS, EncodedImage, Payload, Pixels
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor
from inferometer.manifests.errors import FrameworkUnavailableError, InputError


def opencv(height: int, width: int, **parameters: Any) -> ImagePreprocessor:
    """Gives the fitted pixels as they are, height × width × 3."""
    return preprocessor((height, width, 3), layout="HWC", decoder="opencv", **parameters)


def resized_without_antialias(array: NDArray[np.uint8], height: int, width: int) -> NDArray[np.float64]:
    """Bilinear between the four nearest pixels' centres, however many pixels lie between two of them."""

    def neighbours(old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        place = ((np.arange(new) + 0.5) * old / new - 0.5).clip(0, old - 1)
        first = np.floor(place).astype(np.int64)
        return first, np.minimum(first + 1, old - 1), place - first

    top, bottom, down = neighbours(array.shape[0], height)
    left, right, across = neighbours(array.shape[1], width)
    down, across = down[:, None, None], across[None, :, None]
    rows = [array[row][:, left] * (1 - across) + array[row][:, right] * across for row in (top, bottom)]
    return rows[0] * (1 - down) + rows[1] * down


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (31, 17), (1, 40), (40, 1)])
def test_resizing_is_bilinear_without_antialias(height: int, width: int) -> None:
    array = noise(height, width, 3)
    result = opencv(24, 36, crop_method="none")(Pixels(array))
    # OpenCV's weights have 11 bits
    np.testing.assert_allclose(result, resized_without_antialias(array, 24, 36), atol=1.0)


def test_pillow_and_opencv_make_different_pixels_of_the_same_image() -> None:
    image = encode(Image.fromarray(noise(375, 500, 3)))
    pillow = preprocessor((24, 36, 3), layout="HWC", crop_method="none")(image)
    assert np.abs(opencv(24, 36, crop_method="none")(image) - pillow).mean() > 20


@pytest.mark.parametrize("interpolation", ["nearest", "bicubic", "lanczos"])
def test_each_interpolation_is_opencvs_of_that_name(interpolation: str) -> None:
    array = noise(13, 17, 3)
    filters = {"nearest": cv2.INTER_NEAREST, "bicubic": cv2.INTER_CUBIC, "lanczos": cv2.INTER_LANCZOS4}
    wanted = cv2.resize(array, (8, 8), interpolation=filters[interpolation])
    result = opencv(8, 8, interpolation=interpolation, crop_method="none")(Pixels(array))
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("image_format", ["PNG", "BMP", "PPM"])
def test_a_file_without_loss_is_decoded_exactly(image_format: str) -> None:
    array = noise(6, 7, 3)
    np.testing.assert_array_equal(opencv(6, 7)(encode(Image.fromarray(array), image_format)), array)


def test_a_jpeg_and_a_webp_are_decoded() -> None:
    for image_format in ("JPEG", "WEBP"):
        result = opencv(16, 16)(encode(Image.new("RGB", (16, 16), RED), image_format, quality=100))
        assert np.abs(result - np.array(RED)).max() <= 3


@pytest.mark.parametrize(
    "image",
    [
        Image.new("RGBA", (4, 4), (*RED, 0)),
        Image.new("RGB", (4, 4), RED),
        Image.new("RGB", (4, 4), RED).convert("P", palette=Image.Palette.ADAPTIVE),
    ],
    ids=lambda image: image.mode,
)
def test_colours_are_red_green_and_blue_without_alpha(image: Image.Image) -> None:
    assert opencv(4, 4)(encode(image))[1, 2].tolist() == list(RED)
    assert opencv(4, 4, color_mode="BGR")(encode(image))[1, 2].tolist() == list(RED[::-1])


def test_a_cmyk_jpeg_has_the_colour_that_it_shows() -> None:
    red = encode(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100)
    assert np.abs(opencv(8, 8)(red)[4, 4] - np.array([255, 0, 0])).max() <= 3


@pytest.mark.parametrize(
    "payload", [encode(Image.new("RGB", (4, 4), RED)), Pixels(np.full((4, 4, 3), RED, np.uint8))]
)
def test_grey_is_the_luma_of_itu_r_601(payload: Payload) -> None:
    grey = preprocessor((1, 4, 4), color_mode="GRAY", decoder="opencv")(payload)
    assert np.abs(grey - (0.299 * 200 + 0.587 * 10 + 0.114 * 60)).max() <= 1


def test_grey_images_are_taken_for_colour_and_for_grey() -> None:
    array = noise(4, 4)
    for payload in (encode(Image.fromarray(array)), Pixels(array)):
        np.testing.assert_array_equal(opencv(4, 4)(payload), array[:, :, None].repeat(3, axis=2))
        grey = preprocessor((1, 4, 4), color_mode="GRAY", decoder="opencv")(payload)
        np.testing.assert_array_equal(grey[0], array)


def test_sixteen_bits_are_scaled_to_eight() -> None:
    array = (np.arange(64, dtype=np.uint16) * 1040).reshape(8, 8)
    result = opencv(8, 8)(encode(Image.fromarray(array)))
    np.testing.assert_array_equal(result[:, :, 0], array // 256)


def test_the_crop_is_the_one_of_the_other_decoder() -> None:
    array = np.zeros((300, 401, 3), np.uint8)
    array[:, :, 0], array[:, :, 1] = np.arange(300)[:, None] // 2, np.arange(401) // 2
    common = {"keep_aspect_ratio": True, "crop_ratio": 0.75, "interpolation": "nearest"}
    for crop_method in ("center", "topleft"):
        pillow = preprocessor((224, 224, 3), layout="HWC", crop_method=crop_method, **common)(Pixels(array))
        result = opencv(224, 224, crop_method=crop_method, **common)(Pixels(array))
        assert np.abs(result[:, :, :2] - pillow[:, :, :2]).max() <= 1  # where it was, in pairs


@pytest.mark.parametrize("decoder", ["pillow", "opencv"])
def test_an_image_is_not_turned_as_its_exif_data_say(decoder: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    image = Image.new("RGB", (16, 8), RED)
    image.paste((0, 0, 0), (8, 0, 16, 8))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=100, subsampling=0, exif=exif)
    process = preprocessor((8, 16, 3), layout="HWC", decoder=decoder, keep_aspect_ratio=True)
    result = process(EncodedImage(buffer.getvalue()))
    assert np.abs(result[4, 2] - np.array(RED)).max() <= 3
    assert result[4, 13].max() <= 3


@pytest.mark.parametrize("image_format", ["GIF", "TIFF", "JPEG2000"])
def test_formats_that_opencv_does_not_read_safely_are_refused(image_format: str) -> None:
    message = refusal(opencv(4, 4), encode(Image.new("RGB", (4, 4)), image_format))
    assert message.endswith("it is none of the formats PNG, JPEG, WEBP, BMP, PPM")


@pytest.mark.parametrize(
    "content", [b"", b"x", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", bytes(1000), b"<svg/>"]
)
def test_what_is_no_image_is_refused(content: bytes) -> None:
    message = refusal(opencv(4, 4), EncodedImage(content))
    assert f"image of {len(content)} bytes cannot be decoded" in message


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "BMP", "WEBP", "PPM"])
def test_a_truncated_image_is_refused_quietly(image_format: str, capfd: pytest.CaptureFixture[str]) -> None:
    content = encode(Image.fromarray(noise(64, 64, 3)), image_format).content
    assert "cannot be decoded" in refusal(opencv(4, 4), EncodedImage(content[: len(content) // 2]))
    assert capfd.readouterr() == ("", "")


def test_a_jpeg_without_its_last_byte_is_refused_as_the_other_decoder_does() -> None:
    content = encode(Image.fromarray(noise(64, 64, 3)), "JPEG").content
    for process in (opencv(4, 4), preprocessor()):
        assert "cannot be decoded" in refusal(process, EncodedImage(content[:-1]))


def test_damage_that_libjpeg_only_warns_of_is_decoded_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    content = encode(Image.fromarray(noise(64, 64, 3)), "JPEG").content
    assert opencv(4, 4)(EncodedImage(content[:-2] + bytes(40) + content[-2:])).shape == (4, 4, 3)
    assert capfd.readouterr() == ("", "")


def test_too_many_pixels_are_refused() -> None:
    thin = encode(Image.new("L", (1, 60_000)))
    message = refusal(opencv(224, 224, keep_aspect_ratio=True), thin)
    assert "1 × 60000" in message
    assert str(MAX_PIXELS) in message


@pytest.mark.parametrize("shape", [(0, 4), (4, 0, 3), (0, 0, 3)])
@pytest.mark.parametrize("color_mode", ["RGB", "GRAY"])
def test_pixels_without_any_are_refused(shape: tuple[int, ...], color_mode: str) -> None:
    process = preprocessor((1 if color_mode == "GRAY" else 3, 4, 4), color_mode=color_mode, decoder="opencv")
    assert "is empty" in refusal(process, Pixels(np.zeros(shape, np.uint8)))


BASES = [
    encode(Image.fromarray(noise(12, 10, 3)).convert(mode), image_format).content
    for image_format, mode in [("PNG", "RGB"), ("PNG", "P"), ("JPEG", "RGB"), ("JPEG", "L"), ("JPEG", "CMYK"),
                               ("BMP", "RGB"), ("WEBP", "RGB"), ("PPM", "RGB"), ("PNG", "RGBA")]
]  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(BASES),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
    st.floats(0.2, 1),
)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_damaged_image_is_decoded_or_refused_in_one_line_and_quietly(
    capfd: pytest.CaptureFixture[str], base: bytes, damage: list[tuple[float, int]], kept: float
) -> None:
    content = bytearray(base)
    for place, value in damage:
        content[int(place * len(content))] = value
    del content[int(kept * len(content)) :]
    try:
        lines = len(opencv(4, 4)(EncodedImage(bytes(content))).shape) // 3
    except InputError as error:
        lines = len(str(error).splitlines())
    assert lines == 1
    assert capfd.readouterr() == ("", "")


def test_opencv_has_no_threads_of_its_own() -> None:
    cv2.setNumThreads(2)
    opencv(4, 4)
    assert cv2.getNumThreads() == 1


def test_many_threads_get_what_one_gets() -> None:
    process = opencv(32, 32, keep_aspect_ratio=True, crop_ratio=0.875, mean=100, scale=50)
    payloads = [encode(Image.fromarray(noise(40 + seed, 50, 3, seed=seed)), "JPEG") for seed in range(16)] * 4
    alone = [process(payload) for payload in payloads]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(process, payloads))
    np.testing.assert_array_equal(alone, together)


def test_the_libraries_are_told_with_their_versions() -> None:
    libraries = opencv(4, 4).libraries
    assert libraries["OpenCV"] == cv2.__version__
    assert libraries["libjpeg-turbo"][0].isdigit()
    assert "Pillow" not in libraries
    assert set(preprocessor().libraries) >= {"Pillow"}
    assert preprocessor().libraries["Pillow"] == Image.__version__


def test_without_opencv_a_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.delitem(sys.modules, "inferometer.agent.preprocessing.opencv_decoder", raising=False)
    with pytest.raises(FrameworkUnavailableError, match=r"pip install 'inferometer\[opencv\]'$") as caught:
        opencv(4, 4)
    assert len(str(caught.value).splitlines()) == 1
    assert preprocessor()(encode(Image.new("RGB", (4, 4), RED)))[:, 0, 0].tolist() == list(RED)
