"""Names beside points: each is in the picture, unless it would cover another."""

from __future__ import annotations

from inferometer.evaluators.drawing.canvas import svg
from inferometer.evaluators.drawing.charts import Drawing, Label, PointChart, Series


def _drawn(places):
    """The names that are in the picture of some points."""
    series = tuple(Series("", (x,), (y,), text=name) for name, (x, y) in places.items())
    picture = svg(Drawing("Points", (PointChart(Label("a chart"), "x", "y", series, tall=True),)))
    return [name for name in places if name in picture]


def test_points_that_lie_apart_have_their_names():
    places = {f"point-{n}": (float(n), 10.0 - n) for n in range(9)}
    assert _drawn(places) == list(places)


def test_of_points_in_one_place_as_many_have_names_as_there_is_room_for():
    places = {f"point-{n:02}": (5.0, 5.0) for n in range(20)}
    drawn = _drawn({**places, "elsewhere": (1.0, 9.0)})
    assert 2 <= len(drawn) < 15
    assert {"elsewhere", "point-19"} <= set(drawn)  # later ones come first


def test_a_name_at_the_edge_is_inside():
    assert _drawn({"left": (0.0, 1.0), "a long name at the right edge": (10.0, 2.0)}) == [
        "left",
        "a long name at the right edge",
    ]
