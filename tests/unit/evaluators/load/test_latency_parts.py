"""The parts of the latency, from answers that tell their times and from the totals of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from inferometer.evaluators.load.latency_parts import PARTS, LatencyParts, latency_parts
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries
from inferometer.evaluators.load.server_statistics import ServerSeries

MS = 1_000_000
GAP_NS = 10 * MS
LAG, NETWORK, QUEUE, INPUT = 0.5, 1.0, 2.0, 0.25


def queries(compute_ms: Sequence[float], told: bool = True) -> Queries:
    """Queries that are due every 10 ms; what a prediction takes is the only difference between them."""
    due = np.arange(len(compute_ms)) * GAP_NS
    compute = np.array([round(each * MS) for each in compute_ms], np.int64)
    known = np.full(len(due), 1 if told else 0)
    return Queries(
        scheduled_ns=due,
        sent_ns=due + round(LAG * MS),
        done_ns=due + round((LAG + NETWORK + QUEUE + INPUT) * MS) + compute,
        outcome=np.full(len(due), int(Outcome.ANSWERED)),
        queue_ns=np.where(known, round(QUEUE * MS), -1),
        predict_ns=np.where(known, compute, -1),
        batch_size=known,
        batch_ns=np.where(known, round(INPUT * MS), -1),
    )


def server_of(
    found: Queries, round_trip_ms: float = 1.5, rest_ms: float = 0.0, **more: float
) -> ServerSeries:
    """What a server tells every 100 ms about these queries, whose answers it has sent."""
    at_ns = np.arange(0, len(found) * GAP_NS + 200 * MS, 100 * MS)
    count = np.searchsorted(found.done_ns, at_ns)
    service_ns = found.done_ns - found.sent_ns - round(NETWORK * MS)
    compute_ns = np.concatenate([[0], np.cumsum(service_ns - round((QUEUE + INPUT) * MS))])[count]
    figures = {
        "requests": count,
        "queue_ns": count * QUEUE * MS,
        "input_ns": count * INPUT * MS,
        "infer_ns": compute_ns,
        "success_ns": count * (QUEUE + INPUT + rest_ms) * MS + compute_ns,
        **{name: np.full(len(at_ns), value) for name, value in more.items()},
    }
    bound_ns = np.full(len(at_ns), round(round_trip_ms * MS / 2))
    return ServerSeries("V2", at_ns, bound_ns, {n: each.astype(np.float64) for n, each in figures.items()})


def parts_of(found: Queries, *server: ServerSeries, cut_ms: float = 0) -> dict[tuple[str, str], LatencyParts]:
    run = LoadRun(100.0, "constant", 0, "", found, cut_ns=round(cut_ms * MS), server=server)
    return {(each.source, each.figure): each for each in latency_parts(run)}


def ms(parts: LatencyParts) -> dict[str, float]:
    return {name: value / MS for name, value in parts.parts_ns.items()}


def test_statistics_and_answers_agree_and_their_parts_sum_to_the_latency() -> None:
    found = queries([1.0 + n % 10 for n in range(400)])

    parts = parts_of(found, server_of(found), cut_ms=400)

    for source in ("V2", "answers"):
        mean = parts[source, "mean"]
        known = ms(mean)
        assert known["compute"] == pytest.approx(5.5, rel=0.01)
        assert [known[name] for name in ("lag", "network", "queue", "input")] == pytest.approx(
            [LAG, NETWORK, QUEUE, INPUT], rel=0.01
        )
        assert sum(known.values()) == pytest.approx(mean.latency_ns / MS)
        assert set(known) <= set(PARTS)
        assert (mean.explained_share, mean.missing) == (pytest.approx(1), "")


@pytest.mark.parametrize(("figure", "compute_ms"), [("p50", 5.5), ("p90", 9.5), ("p99", 10.0)])
def test_each_percentile_has_the_parts_of_the_queries_around_it(figure: str, compute_ms: float) -> None:
    found = queries([1.0 + n % 10 for n in range(1000)])

    parts = parts_of(found)["answers", figure]

    assert ms(parts)["compute"] == pytest.approx(compute_ms, abs=0.5)
    assert len(parts.latencies_ns) == (10 if figure == "p99" else 50)
    assert np.ptp(parts.latencies_ns) <= MS, "no others than those around the percentile"
    assert sum(ms(parts).values()) == pytest.approx(parts.latency_ns / MS)


def test_a_percentile_on_queries_without_an_answer_has_no_parts() -> None:
    found = queries([1.0] * 100)
    found.outcome[-8:] = int(Outcome.TIMED_OUT)

    assert {figure for _, figure in parts_of(found)} == {"mean", "p50", "p90"}


def test_without_a_network_what_is_left_is_the_rest_and_is_missing() -> None:
    [mean, *_] = parts_of(queries([1.0] * 40)).values()

    assert ms(mean)["rest"] == pytest.approx(NETWORK)
    assert mean.explained_share == pytest.approx(1 - NETWORK / (LAG + NETWORK + QUEUE + INPUT + 1))
    assert mean.missing == "1.000 ms are not explained: outside of the queue and the model"


def test_more_network_than_an_empty_call_takes_is_missing() -> None:
    found = queries([1.0] * 400, told=False)

    [mean] = parts_of(found, server_of(found, round_trip_ms=0.2)).values()

    assert ms(mean)["network"] == pytest.approx(NETWORK)
    assert mean.missing.startswith("0.800 ms are not explained: on the network")


def test_time_of_the_server_that_is_in_no_part_is_the_rest() -> None:
    found = queries([1.0] * 400, told=False)

    [mean] = parts_of(found, server_of(found, rest_ms=0.75)).values()

    assert ms(mean)["rest"] == pytest.approx(0.75)
    assert ms(mean)["network"] == pytest.approx(NETWORK - 0.75)
    assert "outside of the queue and the model" in mean.missing


def test_a_server_that_counts_more_than_passes_here_is_told() -> None:
    found = queries([1.0] * 400, told=False)

    [mean] = parts_of(found, server_of(found, rest_ms=2.0)).values()

    assert ms(mean)["network"] < 0
    assert "the server counts more time than passes here" in mean.missing


def test_requests_of_others_are_told() -> None:
    found = queries([1.0] * 400, told=False)
    server = server_of(found)
    for name in ("requests", "queue_ns", "input_ns", "infer_ns", "success_ns"):
        server.figures[name][:] *= 2

    [mean] = parts_of(found, server, cut_ms=400).values()

    assert "the server answered 720 requests meanwhile, 360 of them from here" in mean.missing


def test_counters_that_begin_anew_lose_only_their_interval() -> None:
    """The server was restarted in the middle, after its queries had become three times as slow."""
    found = queries([1.0] * 200 + [3.0] * 200, told=False)
    server = server_of(found)
    restarted = server.at_ns >= 1000 * MS
    for values in server.figures.values():
        values[restarted] -= values[restarted][0]

    [mean] = parts_of(found, server).values()

    assert ms(mean)["compute"] == pytest.approx((190 * 1.0 + 200 * 3.0) / 390, rel=0.01)
    assert sum(ms(mean).values()) == pytest.approx(mean.latency_ns / MS)
    assert mean.missing == "counters of the server began anew; the time around that is left out"


def test_a_part_that_the_server_does_not_tell_is_unknown_and_in_the_rest() -> None:
    found = queries([1.0] * 400, told=False)
    server = server_of(found)
    del server.figures["queue_ns"]  # type: ignore[attr-defined]

    [mean] = parts_of(found, server).values()

    assert "queue" not in mean.parts_ns
    assert ms(mean)["rest"] == pytest.approx(QUEUE)


def test_waits_in_a_server_that_tells_no_total_count_as_network_which_is_said() -> None:
    found = queries([1.0] * 400, told=False)
    page = replace(server_of(found), source="metrics at http://a:1/metrics")
    del page.figures["success_ns"]  # type: ignore[attr-defined]

    [mean] = parts_of(found, page).values()

    assert (mean.source, ms(mean)["rest"]) == (page.source, 0)
    assert "waits there count as network" in mean.missing


def test_a_page_of_another_process_makes_no_network() -> None:
    found = queries([1.0] * 40)
    page = replace(server_of(found), source="metrics at http://a:1/metrics", figures={})

    assert "network" not in parts_of(found, page)["answers", "mean"].parts_ns


@pytest.mark.parametrize("name", ["requests", "infer_ns"])
def test_a_server_that_does_not_tell_its_times_gives_no_parts(name: str) -> None:
    found = queries([1.0] * 40, told=False)
    server = server_of(found)
    del server.figures[name]  # type: ignore[attr-defined]

    assert parts_of(found, server) == {}


def test_a_run_without_queries_has_no_parts() -> None:
    none = queries([])
    assert parts_of(none, server_of(none)) == {}
    assert parts_of(queries([1.0]), server_of(queries([1.0])), cut_ms=1000) != {}
