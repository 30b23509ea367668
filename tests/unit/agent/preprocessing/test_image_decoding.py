"""Decoding: every kind of image, and files that are not images."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from preprocessing_images import RED, encode, grey, noise, preprocessor, refusal

from inferometer.agent.preprocessing.inputs import MAX_PIXELS, EncodedImage, Url
from inferometer.manifests.errors import InputError


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def test_a_png_is_decoded_exactly() -> None:
    array = noise(6, 7, 3)
    result = preprocessor((6, 7, 3), layout="HWC")(encode(Image.fromarray(array)))
    np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize("image_format", ["PNG", "PPM", "TIFF"])
def test_sixteen_bits_are_scaled_to_eight(image_format: str) -> None:
    array = (np.arange(64, dtype=np.uint16) * 1040).reshape(8, 8)
    result = grey(8, 8)(encode(Image.fromarray(array), image_format))
    np.testing.assert_array_equal(result[0], array // 256)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_of_32_bits_are_refused_because_nobody_knows_their_range(mode: str) -> None:
    assert "32 bits" in refusal(preprocessor(), encode(Image.new(mode, (4, 4)), "TIFF"))


def test_a_palette_is_looked_up() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, *RED])
    assert preprocessor()(encode(image))[:, 0, 0].tolist() == list(RED)


@pytest.mark.parametrize("transparency", [0, bytes([0, 128])])
def test_a_palette_with_transparency_is_looked_up(transparency: int | bytes) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, *RED])
    payload = encode(image, transparency=transparency)
    assert preprocessor()(payload)[:, 0, 0].tolist() == list(RED)
    assert grey(4, 4)(payload)[0, 0, 0] == round(0.299 * 200 + 0.587 * 10 + 0.114 * 60)


@pytest.mark.parametrize(("mode", "pixel"), [("RGBA", (*RED, 0)), ("RGBA", (*RED, 255))])
def test_the_alpha_channel_is_left_out(mode: str, pixel: tuple[int, ...]) -> None:
    assert preprocessor()(encode(Image.new(mode, (4, 4), pixel)))[:, 0, 0].tolist() == list(RED)


def test_black_and_white_is_0_and_255() -> None:
    image = Image.fromarray(np.array([[True, False], [False, True]]))
    assert image.mode == "1"
    np.testing.assert_array_equal(grey(2, 2)(encode(image))[0], [[255, 0], [0, 255]])


def test_a_cmyk_jpeg_has_the_colour_that_it_shows() -> None:
    red = encode(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100)
    result = preprocessor((3, 8, 8))(red)[:, 4, 4]
    assert np.abs(result - np.array([255, 0, 0])).max() <= 3


def test_the_first_frame_of_an_animation_counts() -> None:
    frames = [Image.new("RGB", (4, 4), RED), Image.new("RGB", (4, 4), (0, 0, 0))]
    payload = encode(frames[0], "PNG", save_all=True, append_images=frames[1:])
    assert preprocessor()(payload)[:, 0, 0].tolist() == list(RED)


def test_a_mode_that_cannot_be_converted_is_refused() -> None:
    assert "mode LAB" in refusal(grey(4, 4), encode(Image.new("LAB", (4, 4)), "TIFF"))


@pytest.mark.parametrize("keep", [True, False])
def test_one_pixel_fills_the_input(keep: bool) -> None:
    result = preprocessor((3, 5, 6), keep_aspect_ratio=keep)(encode(Image.new("RGB", (1, 1), RED)))
    np.testing.assert_array_equal(result, np.broadcast_to(np.array(RED)[:, None, None], (3, 5, 6)))


@pytest.mark.parametrize(
    ("width", "height"), [(100_000, 100_000), (2**31 - 1, 2**31 - 1), (MAX_PIXELS + 1, 1)]
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_image_that_claims_to_be_huge_is_refused_before_it_is_decoded(width: int, height: int) -> None:
    message = refusal(preprocessor(), EncodedImage(png_header(width, height)))
    assert str(MAX_PIXELS) in message or "too large" in message


def test_a_thin_image_that_would_be_resized_to_a_huge_one_is_refused() -> None:
    thin = encode(Image.new("L", (1, 60_000)))
    message = refusal(preprocessor((3, 224, 224), keep_aspect_ratio=True), thin)
    assert "1 × 60000" in message
    assert str(MAX_PIXELS) in message
    assert preprocessor((3, 224, 224))(thin).shape == (3, 224, 224)


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP"])
def test_a_truncated_image_is_refused(image_format: str) -> None:
    content = encode(Image.fromarray(noise(64, 64, 3)), image_format).content
    assert "cannot be decoded" in refusal(preprocessor(), EncodedImage(content[: len(content) // 2]))


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"%!PS-Adobe-3.0 EPSF-3.0\n", bytes(1000), b"<svg/>"],
)
def test_what_is_no_image_is_refused(content: bytes) -> None:
    assert f"image of {len(content)} bytes cannot be decoded" in refusal(
        preprocessor(), EncodedImage(content)
    )


def test_formats_that_need_another_program_or_are_rare_are_not_decoded() -> None:
    for image_format in ("EPS", "PCX", "SGI"):
        payload = encode(Image.new("RGB", (4, 4)), image_format)
        assert "none of the formats PNG, JPEG" in refusal(preprocessor(), payload)


def test_a_url_is_refused_because_it_has_to_be_fetched_first() -> None:
    assert "http://a/b.png has to be fetched" in refusal(preprocessor(), Url("http://a/b.png"))


BASES = [
    encode(Image.fromarray(noise(12, 10, 3)).convert(mode), image_format).content
    for image_format, mode in [("PNG", "RGB"), ("PNG", "P"), ("JPEG", "RGB"), ("GIF", "P"), ("BMP", "RGB"),
                               ("WEBP", "RGB"), ("PPM", "RGB"), ("PNG", "RGBA"), ("JPEG2000", "RGB")]
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(BASES),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_damaged_image_is_decoded_or_refused_in_one_line(
    base: bytes, damage: list[tuple[float, int]]
) -> None:
    content = bytearray(base)
    for place, value in damage:
        content[int(place * len(content))] = value
    try:
        lines = len(preprocessor()(EncodedImage(bytes(content))).shape) // 3
    except InputError as error:
        lines = len(str(error).splitlines())
    assert lines == 1
