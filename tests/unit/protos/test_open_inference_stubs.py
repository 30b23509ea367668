"""The stubs of the Open Inference Protocol against tritonclient's."""

import subprocess
import sys

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tritonclient.grpc import model_config_pb2 as triton_model_config
from tritonclient.grpc import service_pb2 as triton_service

from inferometer.protos.inference.v2 import grpc_service_pb2, model_config_pb2

OURS = "from inferometer.protos.inference.v2 import grpc_service_pb2, grpc_service_pb2_grpc"
THEIRS = "import tritonclient.grpc"


def file_of(module):
    content = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(content)
    return content


def messages(found, prefix=""):
    """Every message by its full name, those within others too."""
    for message in found:
        name = f"{prefix}{message.name}"
        yield name, message
        yield from messages(message.nested_type, f"{name}.")


def fields(message):
    """What is on the wire: a oneof is not, and Triton has one of several choices where we have it of one."""
    return {(field.name, field.number, field.type, field.label, field.type_name) for field in message.field}


def signature(method):
    return method.input_type, method.output_type, method.client_streaming, method.server_streaming


def enums(content):
    """The values of every enum by its full name."""
    found = {enum.name: enum for enum in content.enum_type}
    for name, message in messages(content.message_type):
        found |= {f"{name}.{enum.name}": enum for enum in message.enum_type}
    return {name: {(v.name, v.number) for v in enum.value} for name, enum in found.items()}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(grpc_service_pb2, triton_service), (model_config_pb2, triton_model_config)],
    ids=["service", "configuration"],
)
def test_every_name_number_and_type_is_that_of_the_protocol(ours, theirs):
    known = dict(messages(file_of(theirs).message_type))
    for name, message in messages(file_of(ours).message_type):
        assert fields(message) <= fields(known[name]), name
    known_enums = enums(file_of(theirs))
    for name, values in enums(file_of(ours)).items():
        assert values == known_enums[name], name


def test_messages_of_a_request_and_its_answers_are_complete():
    known = dict(messages(file_of(triton_service).message_type))
    for name, message in messages(file_of(grpc_service_pb2).message_type):
        assert fields(message) == fields(known[name]), name


def test_every_method_is_the_protocols():
    [ours], [theirs] = file_of(grpc_service_pb2).service, file_of(triton_service).service
    known = {method.name: method for method in theirs.method}
    assert ours.name == theirs.name
    assert file_of(grpc_service_pb2).package == file_of(triton_service).package
    for method in ours.method:
        assert signature(method) == signature(known[method.name])


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours first", "tritonclient first"])
def test_tritonclient_and_our_stubs_live_in_one_process(order):
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(order)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
