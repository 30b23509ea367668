"""The counters of a host's conditions on the wire."""

from __future__ import annotations

import pytest

from inferometer.agent.hardware.conditions import ConditionCounters, GpuCounters, ProcessorTimes
from inferometer.agent.protocol.conversion import conditions_response, read_conditions
from inferometer.protos.inferometer.v1 import predict_pb2

LEAST = ConditionCounters("boot", "bench-1", 17, 2**62, 1.25)
WHOLE = ConditionCounters(
    machine="boot",
    hostname="bench-1",
    process=17,
    taken_ns=5,
    own_cpu_s=0.1,
    processors=ProcessorTimes(2, 1.5, 2.5, 0.0),
    involuntary_switches=0,
    major_faults=1,
    minor_faults=2**40,
    waited_s=0.0,
    swapped_in_pages=3,
    swapped_out_pages=4,
    quota_periods=5,
    throttled_periods=6,
    throttled_s=7.5,
    heat_throttles=(0, 2),
    gpu=GpuCounters(1, 2, False, 0, 4, 5),
)


@pytest.mark.parametrize(
    "counters",
    [
        LEAST,
        WHOLE,
        ConditionCounters("b", "", 0, 0, 0.0, ProcessorTimes(0, 0.0, 0.0, 0.0), gpu=GpuCounters()),
    ],
    ids=["least", "whole", "zeros"],
)
def test_counters_come_back_as_they_were(counters: ConditionCounters) -> None:
    wire = conditions_response(counters).SerializeToString()

    assert read_conditions(predict_pb2.ConditionsResponse.FromString(wire)) == counters
