"""Arrival processes: equal for equal seeds, at the requested rate, and within the limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.evaluators.load.arrivals import (
    ARRIVALS,
    ArrivalProcess,
    BurstArrivals,
    ConstantArrivals,
    Extent,
    GammaArrivals,
    PoissonArrivals,
    RampArrivals,
    Schedule,
    arrival_process,
)
from inferometer.manifests.errors import ConfigurationError

GOLDEN = {
    "constant": "sha256:993682499cf41cc4d54947b4707169e3e3b10dbad17a45fbd46b0bb893ebaef1",
    "poisson": "sha256:c4bf50f5c2834b4b54881b1b4cb61f4fdb0cf239fbbc75a81d944a0eee188004",
    "gamma:cv=3": "sha256:c812ab320c7706cd4305da751e6c794488e162027d7a610a6f7492c4d9f742b0",
    "gamma:cv=0.5": "sha256:9db38bc332c98efcc302a331246e59447c77b69b9710cbc15137ce9d3c786c62",
    "bursts:on_s=0.5,off_s=2": "sha256:3ef8fffb5a909435df66c363ebd43cb4629900343398e7f258c97ba332faed14",
    "ramp:over_s=20": "sha256:4b603c2d8169d00a9ff10e332278df60c944ea09e6e2ac8fa6dbd82b26d0e685",
}
PROCESSES = st.one_of(
    st.just(ConstantArrivals()),
    st.just(PoissonArrivals()),
    st.builds(GammaArrivals, st.floats(0.05, 20)),
    st.builds(BurstArrivals, st.floats(0.01, 10), st.floats(0, 10)),
    st.builds(RampArrivals, st.floats(0, 3), st.floats(0.1, 3), st.floats(0.1, 100)),
)


@pytest.mark.parametrize("text", GOLDEN)
def test_a_seed_gives_the_same_schedule_on_any_machine(text: str) -> None:
    extent = Extent(min_duration_s=30, min_queries=5000)

    assert Schedule.drawn(arrival_process(text), 150, extent, seed=42).checksum == GOLDEN[text]


@pytest.mark.parametrize("text", [text for text in GOLDEN if text != "constant"])
def test_another_seed_gives_another_schedule(text: str) -> None:
    one, other = (arrival_process(text).offsets_ns(100, Extent(min_queries=50), seed) for seed in (1, 2))

    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "process", [PoissonArrivals(), GammaArrivals(3), GammaArrivals(0.3), BurstArrivals(1, 3)]
)
def test_the_mean_rate_is_the_one_asked_for(process: ArrivalProcess) -> None:
    offsets = process.offsets_ns(250, Extent(min_duration_s=800), seed=7)

    assert len(offsets) * 1e9 / offsets[-1] == pytest.approx(250, rel=0.03)


@pytest.mark.parametrize("text", ["constant", "poisson", "gamma:cv=2", "bursts:on_s=1,off_s=3", "ramp"])
@pytest.mark.parametrize("duration_s", [0.5, 20.0, 100.0])
def test_the_mean_rate_until_a_time_is_known_without_drawing(text: str, duration_s: float) -> None:
    process = arrival_process(text)

    drawn = len(process.offsets_ns(2000.0, Extent(duration_s, 1, duration_s), 3))

    assert process.mean_qps(2000.0, duration_s) * duration_s == pytest.approx(drawn, rel=0.2)
    assert process.mean_qps(2000.0, 0.0) == 0


def test_more_queries_than_are_allowed_are_refused_before_they_are_drawn() -> None:
    drawn: list[int] = []

    class Counted(PoissonArrivals):
        def _gaps(self, random: np.random.RandomState, count: int) -> np.ndarray:
            drawn.append(count)
            return super()._gaps(random, count)

    with pytest.raises(ConfigurationError, match=r"1e\+09 queries/s for 5 s are some 5e\+09 queries"):
        Counted().offsets_ns(1e9, Extent(5.0), 0)
    assert drawn == []


def test_constant_arrivals_come_in_equal_steps() -> None:
    assert ConstantArrivals().offsets_ns(4, Extent(min_queries=3), 0).tolist() == [
        250_000_000,
        500_000_000,
        750_000_000,
    ]


@pytest.mark.parametrize(
    ("process", "cv"), [(PoissonArrivals(), 1), (GammaArrivals(3), 3), (GammaArrivals(0.5), 0.5)]
)
def test_gaps_vary_as_the_process_says(process: ArrivalProcess, cv: float) -> None:
    gaps = np.diff(process.offsets_ns(100, Extent(min_queries=200_000), seed=3))

    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_bursts_come_only_while_they_are_switched_on() -> None:
    offsets_s = BurstArrivals(on_s=0.5, off_s=2).offsets_ns(100, Extent(min_duration_s=100), 1) / 1e9

    assert (offsets_s % 2.5 <= 0.5).all()
    assert np.count_nonzero(offsets_s < 100) == pytest.approx(10_000, rel=0.05)


def test_a_ramp_grows_evenly_and_stays_at_its_last_rate() -> None:
    process = RampArrivals(from_share=0, to_share=2, over_s=100)

    offsets_s = process.offsets_ns(500, Extent(min_duration_s=150), 1) / 1e9

    counts = np.histogram(offsets_s, [0, 50, 100, 150])[0]
    assert counts == pytest.approx([12_500, 37_500, 50_000], rel=0.03)


def test_a_ramp_may_fall() -> None:
    offsets_s = RampArrivals(2, 0.5, 100).offsets_ns(500, Extent(min_duration_s=200), 1) / 1e9

    assert np.histogram(offsets_s, [0, 100, 200])[0] == pytest.approx([62_500, 25_000], rel=0.03)


@settings(max_examples=150, deadline=None)
@given(PROCESSES, st.floats(1, 2000), st.floats(0, 5), st.integers(1, 3000), st.integers(0, 2**63))
def test_arrivals_ascend_and_are_the_fewest_that_reach_the_extent(
    process: ArrivalProcess, rate_qps: float, least_s: float, least: int, seed: int
) -> None:
    offsets = process.offsets_ns(rate_qps, Extent(least_s, least), seed)

    assert offsets.dtype == np.int64
    assert offsets[0] >= 0
    assert (np.diff(offsets) >= 0).all()
    assert len(offsets) >= least
    assert offsets[-1] >= round(least_s * 1e9)
    assert len(offsets) == least or offsets[-2] <= round(least_s * 1e9)


@settings(max_examples=100, deadline=None)
@given(PROCESSES, st.floats(50, 2000), st.floats(0.5, 3), st.integers(1, 3000), st.integers(0, 100))
def test_no_arrival_comes_after_the_longest_duration(
    process: ArrivalProcess, rate_qps: float, most_s: float, least: int, seed: int
) -> None:
    extent = Extent(10, least, most_s)
    if process.offsets_ns(rate_qps, Extent(), seed)[0] > most_s * 1e9:  # a slow start
        with pytest.raises(ConfigurationError, match="no query arrives within"):
            process.offsets_ns(rate_qps, extent, seed)
        return

    assert process.offsets_ns(rate_qps, extent, seed)[-1] <= round(most_s * 1e9)


def test_the_longest_duration_goes_before_the_least_queries() -> None:
    offsets = ConstantArrivals().offsets_ns(10, Extent(min_queries=1000, max_duration_s=2), 0)

    assert len(offsets) == 20


def test_a_longer_schedule_begins_with_the_shorter_one() -> None:
    short, long = (PoissonArrivals().offsets_ns(100, Extent(min_queries=n), 5) for n in (100, 20_000))

    assert np.array_equal(short, long[:100])


@settings(max_examples=100, deadline=None)
@given(PROCESSES)
def test_the_text_of_a_process_reads_back(process: ArrivalProcess) -> None:
    assert arrival_process(str(process)) == process


@pytest.mark.parametrize("name", ARRIVALS)
def test_a_process_is_named_without_parameters_in_any_case(name: str) -> None:
    assert arrival_process(f" {name.upper()} ").name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("poison", 'unknown arrival process "poison"; did you mean "poisson"?'),
        ("", 'unknown arrival process ""'),
        ("poisson:cv=2", 'arrival poisson: unknown parameter "cv"; it has none'),
        ("gamma:cw=2", 'arrival gamma: unknown parameter "cw"; it has cv'),
        ("gamma:cv", 'arrival gamma: cv is ""; it must be a number'),
        ("gamma:cv=big", 'arrival gamma: cv is "big"; it must be a number'),
        ("gamma:cv=nan", "arrival gamma: cv is nan; it must be finite"),
        ("gamma:cv=1e400", "arrival gamma: cv is 1e400; it must be finite"),
        ("gamma:cv=0", "arrival gamma: cv is 0; allowed: 0.01…100"),
        ("gamma:cv=-1", "arrival gamma: cv is -1; allowed: 0.01…100"),
        ("bursts:on_s=0", "on_s must be above 0"),
        ("bursts:off_s=-1", "off_s at least 0"),
        ("ramp:over_s=0", "over_s above 0"),
        ("ramp:to_share=0", "to_share and over_s above 0"),
        ("ramp:from_share=-0.1", "from_share must be at least 0"),
    ],
)
def test_what_is_no_process_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        arrival_process(text)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "extent",
    [
        {"min_duration_s": -1},
        {"min_duration_s": float("nan")},
        {"min_duration_s": float("inf")},
        {"max_duration_s": 1e9},
        {"min_queries": 0},
        {"min_queries": 10**9},
    ],
)
def test_an_extent_without_sense_is_refused(extent: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(extent))} is .*allowed"):
        Extent(**extent)  # type: ignore[arg-type] # one of the keys, with a number


@pytest.mark.parametrize("rate_qps", [0, -5, float("nan"), float("inf")])
def test_a_rate_that_is_not_above_zero_is_refused(rate_qps: float) -> None:
    with pytest.raises(ConfigurationError, match="must be above 0"):
        PoissonArrivals().offsets_ns(rate_qps, Extent(), 1)


def test_a_schedule_longer_than_a_fortnight_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="ask for less"):
        ConstantArrivals().offsets_ns(1e-3, Extent(min_queries=1_000_000), 1)


def test_no_arrival_within_the_longest_duration_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no query arrives within 0\.5 s"):
        ConstantArrivals().offsets_ns(1, Extent(max_duration_s=0.5), 1)
