"""The gRPC status code of every error, and messages that fit into a status."""

import grpc
import pytest

from inferometer.agent.protocol.status import STATUS_CODES, class_name, one_line, status_code
from inferometer.manifests import errors


def all_error_classes():
    found, todo = [], [errors.InferometerError]
    while todo:
        kind = todo.pop()
        # Classes that tests of other modules define are not the program's.
        found += [kind] if kind.__module__ == errors.__name__ else []
        todo += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", all_error_classes(), ids=lambda kind: kind.__name__)
def test_every_error_class_has_a_status_code(kind):
    assert kind in STATUS_CODES
    assert status_code(kind("why")) is STATUS_CODES[kind]


def test_no_error_becomes_ok():
    assert grpc.StatusCode.OK not in STATUS_CODES.values()


def test_class_that_is_not_in_the_table_has_the_code_of_its_nearest_ancestor():
    class OddInputError(errors.InputError):
        pass

    assert status_code(OddInputError("why")) is grpc.StatusCode.INVALID_ARGUMENT
    assert class_name(OddInputError("why")) == "InputError"


def test_message_becomes_one_line_that_fits_into_a_status():
    line = one_line("a\n  b\t" + "x" * 10_000)
    assert line.startswith("a b x")
    assert "\n" not in line
    assert len(line) <= 1500
