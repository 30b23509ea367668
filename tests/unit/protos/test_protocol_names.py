"""The names of our own protocol follow Buf's standard rules."""

from inferometer.protos.inferometer.v1 import predict_pb2, registry_pb2

SERVICES = [
    service
    for module in (predict_pb2, registry_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]


def test_services_end_in_service():
    assert [service.name for service in SERVICES] == ["PredictService", "RegistryService"]


def test_each_call_has_a_request_and_a_response_of_its_own():
    calls = {
        method.name: (method.input_type.name, method.output_type.name)
        for service in SERVICES
        for method in service.methods
    }

    assert len(calls) == sum(len(service.methods) for service in SERVICES)
    assert calls == {name: (f"{name}Request", f"{name}Response") for name in calls}
