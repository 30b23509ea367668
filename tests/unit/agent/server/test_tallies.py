"""Counters, gauges and histograms of the agent, beside those of prometheus_client that count the same."""

import threading

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from inferometer.agent.server.metrics import Counts, Distributions, Levels, SummedPages

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


def page(*values, serving=1, gpu=0.5):
    """The metrics of a process that counted these values as calls, levels and times."""
    ours = [each for each, _ in pairs()]
    for value in values:
        ours[0].of("Echo", "OK").add(value)
        ours[1].of("Echo", "OK").add(value)
        ours[2].of("Echo", "OK").add(value)
    gauges = {"inferometer_serving": serving, "inferometer_gpu_utilization_ratio": gpu}
    told = [GaugeMetricFamily(name, "Told.", value) for name, value in gauges.items()]
    return [*(family for metric in ours for family in metric.collect()), *told]


def test_the_page_of_several_processes_is_what_one_counts_alone():
    several = [page(1, 3), page(700), page()]

    class Alone:
        def collect(self):
            return page(1, 3, 700)

    assert scrape(SummedPages(lambda: several)) == scrape(Alone())


def test_levels_that_no_sum_describes_are_the_least_or_what_all_read_alike():
    found = {
        family.name: family.samples
        for family in SummedPages(lambda: [page(serving=1), page(serving=0, gpu=0.75)]).collect()
    }

    assert [each.value for each in found["inferometer_serving"]] == [0]
    assert [each.value for each in found["inferometer_gpu_utilization_ratio"]] == [0.75]


def test_counts_outlive_their_process_and_levels_do_not():
    summed = SummedPages(lambda: [page(1)])
    summed.keep_counts(page(2))
    summed.keep_counts(page(5))

    found = {family.name: family.samples for family in summed.collect()}
    assert [found[name][-2].value for name in ("calls", "taken_seconds")] == [8, 8]
    assert found["flying"][0].value == 1
