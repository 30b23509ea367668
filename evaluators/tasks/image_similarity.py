"""The similarity of two images: the peak signal-to-noise ratio and the structural similarity."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

WINDOW = 11
"""The side of SSIM's window, in pixels."""
_SIGMA = 1.5
_C1 = 0.01**2
_C2 = 0.03**2
_LUMA = np.array([65.481, 128.553, 24.966]) / 255
_LUMA_OF_BLACK = 16 / 255


def psnr_db(image: NDArray[np.float64], target: NDArray[np.float64]) -> float:
    """Returns ``10 · log10(1 / MSE)``, in dB, over all pixels and channels; infinite for equal images.

    Args:
        image: float64, 0…1, of any shape.
        target: Likewise.
    """
    error = float(np.mean(np.square(image - target)))
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(image: NDArray[np.float64], target: NDArray[np.float64]) -> float | None:
    """Returns the structural similarity, the mean over the channels; None for images smaller than the window.

    Source: Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error Visibility to Structural
    Similarity", 2004: a Gaussian window of 11 × 11 with a deviation of 1.5 whose weights sum to 1, K1 = 0.01,
    K2 = 0.03, range 1, the mean over the positions where the window is inside the image.

    Args:
        image: float64, 0…1, height × width × channels.
        target: Likewise.
    """
    if min(image.shape[:2]) < WINDOW:
        return None
    channels = range(image.shape[2])
    return float(np.mean([_of_channel(image[..., place], target[..., place]) for place in channels]))


def luma(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns Y of ITU-R BT.601, 16/255…235/255, like MATLAB's ``rgb2ycbcr``; grey is used as each channel.

    Args:
        image: float64, 0…1, height × width × channels.
    """
    colours = np.broadcast_to(image, (*image.shape[:2], len(_LUMA)))
    return (colours @ _LUMA + _LUMA_OF_BLACK)[..., np.newaxis]


def _of_channel(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    mean_x, mean_y = _blurred(x), _blurred(y)
    squares, product = mean_x**2 + mean_y**2, mean_x * mean_y
    variances = _blurred(x * x + y * y) - squares  # of both together
    covariance = _blurred(x * y) - product
    similarity = (2 * product + _C1) * (2 * covariance + _C2) / ((squares + _C1) * (variances + _C2))
    return float(similarity.mean())


def _blurred(plane: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the weighted mean in each window that is inside the plane; rows first, then columns."""
    offsets = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-(offsets**2) / (2 * _SIGMA**2))
    weights /= weights.sum()
    for _ in range(2):
        kept = plane.shape[0] - WINDOW + 1
        summed = weights[0] * plane[:kept]
        for place in range(1, WINDOW):
            summed += weights[place] * plane[place : place + kept]
        plane = summed.T
    return plane
