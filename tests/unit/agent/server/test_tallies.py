"""Counters, gauges and histograms of the agent, beside those of prometheus_client that count the same."""

import threading

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from inferometer.agent.server.metrics import Counts, Distributions, Levels

BOUNDS = (0.0005, 0.01, 1, 2.5, 1024)
VALUES = (0, 0.0005, 0.00051, 0.01, 0.5, 1, 2.4999, 1024, 1024.5, 1e9)


def scrape(*metrics):
    """The lines of a scrape, without the times at which the children were made."""
    registry = CollectorRegistry(auto_describe=True)
    for metric in metrics:
        registry.register(metric)
    lines = generate_latest(registry).decode().splitlines()
    return [line.rpartition(" ")[0] if "_created{" in line else line for line in lines]


def pairs():
    labels = ("model", "code")
    theirs = {"registry": None}
    return [
        (Counts("calls", "Some.", labels), Counter("calls", "Some.", labels, **theirs)),
        (Levels("flying", "Now.", labels), Gauge("flying", "Now.", labels, **theirs)),
        (
            Distributions("taken_seconds", "Time.", labels, BOUNDS),
            Histogram("taken_seconds", "Time.", labels, buckets=BOUNDS, **theirs),
        ),
    ]


def test_a_scrape_is_that_of_prometheus_client():
    ours, theirs = zip(*pairs(), strict=True)
    assert scrape(*ours) == scrape(*theirs)
    for number, value in enumerate(VALUES):
        labels = (f'Echo "{number % 3}"', "OK")
        for mine, other in zip(ours, theirs, strict=True):
            if isinstance(mine, Distributions):
                mine.of(*labels).add(value)
                other.labels(*labels).observe(value)
            else:
                mine.of(*labels).add(number)
                other.labels(*labels).inc(number)
    ours[1].of("Echo", "gone").add(-4)
    theirs[1].labels("Echo", "gone").dec(4)
    found = scrape(*ours)
    assert found == scrape(*theirs)
    assert 'taken_seconds_bucket{code="OK",le="+Inf",model="Echo \\"0\\""} 4.0' in found


@pytest.mark.parametrize("place", range(3))
def test_what_threads_count_at_once_is_all_counted(place):
    metric = pairs()[place][0]
    barrier = threading.Barrier(4)

    def count():
        barrier.wait(20)
        for _ in range(500):
            metric.of("Echo", "OK").add(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [total] = [
        line for line in scrape(metric) if line.startswith(("calls_total", "flying{", "taken_seconds_sum"))
    ]
    assert total.endswith(" 2000.0")
