"""PSNR and SSIM have the values of their definitions; so have the errors of a regression."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import metric_of, sample_of, scored
from numpy.typing import NDArray
from sklearn import metrics as reference

from inferometer.agent.tasks.predictions import Images, Values
from inferometer.evaluators.datasets.base import ClassMap, TargetImage, TargetValues
from inferometer.evaluators.tasks.image_similarity import luma, psnr_db, ssim
from inferometer.manifests.errors import DatasetError, PredictionError

TASK = "image_enhancement"


def target(value: int, side: int = 16, channels: int = 3) -> TargetImage:
    return TargetImage(np.full((side, side, channels), value, np.uint8))


def images(pixels: Any) -> Images:
    return Images(np.asarray(pixels, np.float32)[np.newaxis])


def uniform(value: float, side: int = 16, channels: int = 3) -> Images:
    return images(np.full((side, side, channels), value / 255))


def test_a_uniform_error_of_one_step_of_255_gives_48_1308_db() -> None:
    result = scored(metric_of(TASK), (target(100), uniform(101)))
    assert result.score("PSNR") == pytest.approx(48.1308, abs=5e-5)
    assert (result.scores[0].unit, result.samples) == ("dB", 1)
    assert result.definition == "PSNR and SSIM (Wang et al. 2004), range 1, RGB, mean over images, version 1"


def test_the_mean_is_over_images() -> None:
    result = scored(metric_of(TASK), (target(100), uniform(101)), (target(100), uniform(110)))
    assert result.score("PSNR") == pytest.approx((48.130804 + 28.130804) / 2, abs=1e-4)
    assert result.scores[0].interval is None  # of two images


def test_an_image_that_equals_its_target_is_counted_and_left_out_of_the_mean() -> None:
    result = scored(metric_of(TASK), (target(51), uniform(51)), (target(100), uniform(101)))
    assert result.score("PSNR") == pytest.approx(48.1308, abs=5e-5)
    assert result.score("identical") == 1
    assert result.samples == 2
    alone = scored(metric_of(TASK), (TargetImage(np.zeros((16, 16, 3), np.uint8)), uniform(0)))
    assert (alone.score("PSNR"), alone.score("SSIM")) == (None, 1)
    json.dumps(alone.details, allow_nan=False)


def test_a_border_is_left_out() -> None:
    pixels = np.full((16, 16, 3), 101 / 255)
    pixels[:2] = pixels[-2:] = pixels[:, :2] = pixels[:, -2:] = 1
    result = scored(metric_of(TASK, score_border=2), (target(100), images(pixels)))
    assert result.score("PSNR") == pytest.approx(48.1308, abs=5e-5)
    assert "without a border of 2 pixels" in result.definition


def test_luma_is_that_of_bt_601() -> None:
    colours = np.array([[[0, 0, 0], [1, 1, 1], [1, 0, 0]]], np.float64)
    assert (luma(colours) * 255).ravel() == pytest.approx([16, 235, 81.481])
    result = scored(metric_of(TASK, score_channels="Y"), (target(100), uniform(101)))
    # one step of grey is 219/255 steps of luma
    assert result.score("PSNR") == pytest.approx(48.130804 - 20 * math.log10(219 / 255), abs=1e-3)
    assert "Y of BT.601" in result.definition


def test_the_luma_of_grey_is_that_of_the_same_grey_in_colour() -> None:
    colour, grey = (
        scored(
            metric_of(TASK, score_channels="Y"),
            (target(100, channels=channels), uniform(101, channels=channels)),
        )
        for channels in (3, 1)
    )
    assert grey.score("PSNR") == pytest.approx(48.130804 - 20 * math.log10(219 / 255), abs=1e-3)
    assert grey.score("SSIM") == colour.score("SSIM")


def test_an_image_of_another_tool_is_compared_in_float64() -> None:
    prediction = Images(np.full((1, 16, 16, 3), 101 / 255))
    result = scored(metric_of(TASK), (target(100), prediction))
    assert result.score("PSNR") == pytest.approx(20 * math.log10(255), abs=1e-11)
    assert scored(metric_of(TASK), (target(101), prediction)).score("identical") == 1


def test_a_grey_target_is_that_grey_in_each_channel() -> None:
    result = scored(metric_of(TASK), (target(100, channels=1), uniform(101)))
    assert result.score("PSNR") == pytest.approx(48.1308, abs=5e-5)


def test_an_image_below_the_window_has_a_psnr_and_no_ssim() -> None:
    result = scored(metric_of(TASK), (target(100, side=10), uniform(101, side=10)))
    assert result.score("PSNR") == pytest.approx(48.1308, abs=5e-5)
    assert (result.score("SSIM"), result.details["ssim_images"]) == (None, 0)


@pytest.mark.parametrize(
    ("truth", "prediction", "said"),
    [
        (target(1), uniform(1, side=32), "the predicted image has 32 × 32 pixels, its target 16 × 16"),
        (target(1), uniform(1, channels=1), "the predicted image is grey, its target is in colour"),
        (target(1, side=4), uniform(1, side=4), "nothing is left of 4 × 4 pixels without a border of 2"),
        (target(1), Values(np.zeros((1, 1), np.float32)), "the prediction is not an image"),
        (ClassMap(np.zeros((1, 1), np.int32)), uniform(1), "has no target image"),
    ],
)
def test_what_cannot_be_compared_is_one_line(truth: Any, prediction: Any, said: str) -> None:
    metric = metric_of(TASK, score_border=2)
    with pytest.raises((DatasetError, PredictionError)) as caught:
        metric.add(sample_of(truth), prediction)
    assert said in str(caught.value)
    assert metric.result() is None


def naive_ssim(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Wang et al.'s equation 13 at each place of the window, one channel."""
    offsets = np.arange(-5, 6)
    weights = np.exp(-(offsets[:, None] ** 2 + offsets[None, :] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    found = []
    for top in range(x.shape[0] - 10):
        for left in range(x.shape[1] - 10):
            a, b = x[top : top + 11, left : left + 11], y[top : top + 11, left : left + 11]
            mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
            var_a, var_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
            both = (weights * (a - mean_a) * (b - mean_b)).sum()
            found.append(
                (2 * mean_a * mean_b + 1e-4)
                * (2 * both + 9e-4)
                / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4))
            )
    return float(np.mean(found))


def test_ssim_of_two_flat_images_is_that_of_their_means() -> None:
    x, y = np.full((12, 13, 1), 0.5), np.full((12, 13, 1), 0.25)
    assert ssim(x, y) == pytest.approx((2 * 0.125 + 1e-4) / (0.25 + 0.0625 + 1e-4))


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(11, 16), st.integers(11, 16), st.sampled_from([1, 3]))
def test_ssim_is_that_of_a_naive_loop(seed: int, height: int, width: int, channels: int) -> None:
    random = np.random.default_rng(seed)
    x = random.random((height, width, channels))
    y = np.clip(x + random.normal(0, 0.2, x.shape), 0, 1)
    expected = np.mean([naive_ssim(x[..., each], y[..., each]) for each in range(channels)])
    assert ssim(x, y) == pytest.approx(expected, abs=1e-9)
    assert ssim(x, y) == pytest.approx(ssim(y, x))
    assert psnr_db(x, y) == pytest.approx(10 * math.log10(1 / np.mean((x - y) ** 2)))


def test_ssim_is_that_of_scikit_image() -> None:
    skimage = pytest.importorskip("skimage.metrics")
    random = np.random.default_rng(0)
    x = random.random((40, 30, 3))
    y = np.clip(x + random.normal(0, 0.1, x.shape), 0, 1)
    expected = skimage.structural_similarity(
        x, y, data_range=1, channel_axis=2, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    assert ssim(x, y) == pytest.approx(expected, abs=1e-9)


def of_values(targets: Any, predicted: Any, **parameters: Any) -> Any:
    pairs = zip(np.atleast_2d(targets), np.atleast_2d(predicted), strict=True)
    return scored(
        metric_of("regression", **parameters),
        *((TargetValues(t.astype(np.float64)), Values(p[None].astype(np.float32))) for t, p in pairs),
    )


def test_the_errors_of_a_regression_are_those_by_hand() -> None:
    result = of_values([[1], [2], [3], [4]], [[1], [2], [3], [6]])
    assert result.score("MAE") == 0.5
    assert result.score("RMSE") == 1.0
    assert result.score("R2") == pytest.approx(1 - 4 / 5)
    assert (result.samples, result.definition[:3]) == (4, "MAE")


def test_r2_is_not_defined_for_targets_that_are_all_the_same() -> None:
    result = of_values([[0.1]] * 3, [[1], [2], [3]])
    assert result.score("R2") is None
    assert result.details["scores"]["R2"] == [None]
    both = of_values([[7, 1], [7, 2], [7, 3]], [[7, 1], [7, 2], [8, 3]], labels=["a", "b"])
    assert both.score("R2") == 1
    assert both.details["values"] == ["a", "b"]
    each = both.details["scores"]
    assert (each["MAE"], each["RMSE"]) == (pytest.approx([1 / 3, 0]), pytest.approx([3**-0.5, 0]))
    assert [each[name] for name in ("R2", "Pearson", "Spearman")] == [[None, 1.0]] * 3


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(2, 20), st.integers(1, 3))
def test_a_regression_has_the_scores_of_scikit_learn(seed: int, samples: int, k: int) -> None:
    random = np.random.default_rng(seed)
    targets = random.normal(size=(samples, k))
    predicted = (targets + random.normal(size=(samples, k))).astype(np.float32)
    result = of_values(targets, predicted)
    assert result.score("MAE") == pytest.approx(reference.mean_absolute_error(targets, predicted))
    assert result.score("RMSE") == pytest.approx(reference.root_mean_squared_error(targets, predicted))
    assert result.score("R2") == pytest.approx(reference.r2_score(targets, predicted))


def of_doubles(targets: Any, predicted: Any) -> Any:
    pairs = zip(np.array(targets, np.float64), np.array(predicted, np.float64), strict=True)
    return scored(metric_of("regression"), *((TargetValues(t), Values(p[None])) for t, p in pairs))


@pytest.mark.parametrize("size", [1e308, 1e-300])
def test_numbers_near_the_ends_of_float64_have_finite_scores(size: float) -> None:
    targets, predicted = np.array([[1.0], [-1], [0], [0]]), np.array([[0.5], [-0.5], [0], [0.5]])
    result, plain = of_doubles(targets * size, predicted * size), of_doubles(targets, predicted)
    assert result.score("MAE") == pytest.approx(plain.score("MAE") * size)
    assert result.score("RMSE") == pytest.approx(plain.score("RMSE") * size)
    assert result.score("R2") == pytest.approx(plain.score("R2"))


def test_an_error_beyond_float64_is_refused() -> None:
    with pytest.raises(PredictionError, match="differs from its target by more than float64 holds"):
        of_doubles([[1e308]], [[-1e308]])
    # the errors are finite; R² is about -1e400
    result = of_doubles([[0, 1], [1, 2]], [[1e200, 1], [0, 2]])
    assert result.score("RMSE") == pytest.approx(1e200 / 2**1.5)
    assert (result.score("R2"), result.details["scores"]["R2"]) == (None, [None, 1.0])


def test_values_that_do_not_fit_are_one_line() -> None:
    metric = metric_of("regression")
    two = TargetValues(np.zeros(2))
    with pytest.raises(PredictionError, match=r"1 numbers were predicted; the dataset has 2 targets"):
        metric.add(sample_of(two), Values(np.zeros((1, 1), np.float32)))
    with pytest.raises(DatasetError, match="has no targets"):
        metric.add(sample_of(target(1)), Values(np.zeros((1, 1), np.float32)))
    metric.add(sample_of(two), Values(np.zeros((1, 2), np.float32)))
    with pytest.raises(DatasetError, match="has 1 targets; others have 2"):
        metric.add(sample_of(TargetValues(np.zeros(1))), Values(np.zeros((1, 1), np.float32)))
    result = metric.result()
    assert result is not None
    assert result.samples == 1
