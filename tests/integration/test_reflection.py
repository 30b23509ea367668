"""Reflection, by the client of grpcio-reflection and by raw requests of both versions of the service."""

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

TIMEOUT_S = 20
V2 = "inference/v2/grpc_service.proto"
CONFIG = "inference/v2/model_config.proto"


@pytest.fixture(scope="module")
def channel(start_shared_agent):
    with grpc.insecure_channel(start_shared_agent().address) as found:
        yield found


@pytest.fixture(params=["v1", "v1alpha"])
def ask(request, channel):
    """Asks one version of the service, and returns its answers."""
    call = channel.stream_stream(
        f"/grpc.reflection.{request.param}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )

    def asked(**fields):
        requests = [reflection_pb2.ServerReflectionRequest(**fields)]
        [answer] = call(iter(requests), timeout=TIMEOUT_S)
        assert answer.original_request == requests[0]
        return answer

    return asked


def files_of(answer):
    contents = answer.file_descriptor_response.file_descriptor_proto
    return {file.name: file for file in map(FileDescriptorProto.FromString, contents)}


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("inference.GRPCInferenceService", V2),
        ("inference.GRPCInferenceService.ModelInfer", V2),
        ("inference.GRPCInferenceService.ModelStreamInfer", V2),
        ("inferometer.v1.PredictService.Predict", "inferometer/v1/predict.proto"),
        ("grpc.health.v1.Health.Check", "grpc_health/v1/health.proto"),
        ("inference.ModelInferRequest", V2),
        ("inference.ModelInferRequest.InferInputTensor", V2),
        ("inference.ModelInferRequest.InferInputTensor.datatype", V2),
        ("inference.InferParameter.parameter_choice", V2),
        ("inference.DataType", CONFIG),
        ("inference.TYPE_FP32", CONFIG),
        ("inference.ModelInput.Format", CONFIG),
        ("inference.ModelInput.FORMAT_NHWC", CONFIG),
        ("grpc.reflection.v1.ServerReflection", "grpc/reflection/v1/reflection.proto"),
        ("grpc.reflection.v1.ServerReflection.ServerReflectionInfo", "grpc/reflection/v1/reflection.proto"),
        ("grpc.reflection.v1.ServerReflectionRequest", "grpc/reflection/v1/reflection.proto"),
    ],
)
def test_each_kind_of_name_leads_to_its_file(ask, symbol, file):
    assert file in files_of(ask(file_containing_symbol=symbol))


@pytest.mark.parametrize(
    "symbol",
    [
        *("", ".", "inference.", ".ModelInfer", "inference", "ModelInfer", "inference.Nothing"),
        *("inference.GRPCInferenceService.", "inference.GRPCInferenceService.Nothing"),
        *(
            "inference.GRPCInferenceService.ModelInfer.name",
            "inference.ModelConfig.ModelInfer",
            "x" * 100_000,
        ),
    ],
    ids=lambda symbol: symbol[:60],
)
def test_a_name_of_nothing_is_not_found(ask, symbol):
    assert ask(file_containing_symbol=symbol).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_both_versions_are_listed_and_files_are_found_by_name(ask):
    services = {each.name for each in ask(list_services="").list_services_response.service}
    assert {f"grpc.reflection.{version}.ServerReflection" for version in ("v1", "v1alpha")} < services
    assert V2 in files_of(ask(file_by_filename=V2))
    assert ask(file_by_filename="nothing.proto").error_response.error_code == 5
    assert ask().error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


def test_the_file_of_version_1_names_its_own_messages(ask):
    file = files_of(ask(file_containing_symbol="grpc.reflection.v1.ServerReflection"))
    described = file["grpc/reflection/v1/reflection.proto"]
    assert described.package == "grpc.reflection.v1"
    assert "v1alpha" not in str(described)


def test_the_client_of_the_library_describes_every_method_and_can_call_it(channel):
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    infer = service.methods_by_name["ModelInfer"]
    assert infer.input_type.fields_by_name["model_version"].number == 2
    assert pool.FindServiceByName("grpc.reflection.v1.ServerReflection").methods[0].client_streaming
    assert ProtoReflectionDescriptorDatabase(channel).FindFileContainingSymbol(infer.full_name).name == V2
