"""The geometry of images, for postprocessing."""

from __future__ import annotations

from inferometer.agent.preprocessing.origins import ImageGeometry as ImageGeometry
