"""Regions of shared memory: what may be registered, what may be used, and when it is released."""

import fcntl
import mmap
import os
import secrets
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.open_inference.codec import InferCall
from inferometer.agent.server.v2.shared_memory import SharedMemory
from inferometer.manifests.errors import InputError, MemoryLimitError, NotFoundError, RegionExistsError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

PEER = "ipv4:127.0.0.1:1"
SIZE = 3 * mmap.PAGESIZE
IDLE_S = 60.0


class Anybody:
    """Admits every peer."""

    def check(self, peer):
        pass


class Nobody:
    def check(self, peer):
        raise InputError("not this peer")


class Segment:
    """A segment of random bytes."""

    def __init__(self, size=SIZE):
        self.key = f"test-{secrets.token_hex(8)}"
        self.path = Path("/dev/shm") / self.key
        self.descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        self.content = os.urandom(size)
        os.write(self.descriptor, self.content)

    def close(self):
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def memory(clock):
    return SharedMemory(IDLE_S, Anybody(), clock=lambda: clock[0])


@pytest.fixture
def make_segment():
    with ExitStack() as stack:

        def make(size=SIZE):
            segment = Segment(size)
            stack.callback(segment.close)
            return segment

        yield make


@pytest.fixture
def segment(make_segment):
    return make_segment()


def parameters(region="r", **numbers):
    found = {"shared_memory_region": pb.InferParameter(string_param=region)}
    return found | {
        f"shared_memory_{name}": pb.InferParameter(int64_param=number) for name, number in numbers.items()
    }


def names(memory):
    return sorted(region.name for region in memory.regions("", PEER))


@pytest.mark.parametrize("offset", [0, 1, 4, mmap.PAGESIZE - 1, mmap.PAGESIZE, mmap.PAGESIZE + 5])
def test_a_region_is_its_part_of_the_segment_and_no_more(memory, segment, offset):
    memory.register("r", f"/{segment.key}", offset, 1000, PEER)
    [region] = memory.regions("r", PEER)
    assert (region.name, region.key, region.offset, region.byte_size) == (
        "r",
        f"/{segment.key}",
        offset,
        1000,
    )
    view = memory.place(parameters(byte_size=1000), "x", PEER).view()
    assert view == segment.content[offset : offset + 1000]
    assert view.readonly
    part = memory.place(parameters(byte_size=10, offset=990), "x", PEER)
    assert part.view() == segment.content[offset + 990 : offset + 1000]

    part.write(b"0123456789", "x")
    changed = os.pread(segment.descriptor, SIZE, 0)
    expected = bytearray(segment.content)
    expected[offset + 990 : offset + 1000] = b"0123456789"
    assert changed == expected
    assert part.view() == b"0123456789", "what is written is seen in place"


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [
        (0, SIZE + 1),
        (1, SIZE),
        (SIZE, 1),
        (-1, 10),
        (0, 0),
        (0, -1),
        (10, -5),
        (2**64 - 1, 2),
        (2**64 - 1, 2**64 - 1),
        (2**63 - 1, 1),
        (0, 2**63),
    ],
)
def test_a_range_beyond_the_segment_is_not_registered(memory, segment, offset, byte_size):
    with pytest.raises((InputError, MemoryLimitError)):
        memory.register("r", segment.key, offset, byte_size, PEER)
    assert names(memory) == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        ".",
        "..",
        "/..",
        "../etc/passwd",
        "a/b",
        "/a/b",
        "x\0y",
        "x" * 300,
        "\ud800",
        "/dev/shm/x",
        "none",
    ],
)
def test_a_key_that_names_no_segment_is_refused(memory, key):
    with pytest.raises(InputError) as error:
        memory.register("r", key, 0, 10, PEER)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_a_region_has_a_name_that_is_not_long(memory, segment, name):
    with pytest.raises(InputError, match="has 1 to 256 characters"):
        memory.register(name, segment.key, 0, 10, PEER)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_only_a_file_is_a_segment(memory, tmp_path, kind):
    other = tmp_path / "other"
    other.write_bytes(b"secret" * 1000)
    path = Path("/dev/shm") / f"test-{secrets.token_hex(8)}"
    try:
        if kind == "link":
            path.symlink_to(other)
        elif kind == "folder":
            path.mkdir()
        else:
            os.mkfifo(path)
        with pytest.raises(InputError):
            memory.register("r", path.name, 0, 10, PEER)
    finally:
        path.rmdir() if kind == "folder" else path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_segment_of_another_user_is_refused(memory, segment):
    os.chown(segment.path, 65534, 65534)
    with pytest.raises(InputError, match="belongs to another user than the agent"):
        memory.register("r", segment.key, 0, 10, PEER)


def test_a_name_is_registered_once_until_it_is_released(memory, segment):
    memory.register("r", segment.key, 0, 10, PEER)
    with pytest.raises(RegionExistsError, match='"r" is registered already'):
        memory.register("r", segment.key, 0, 10, PEER)
    memory.unregister("r", PEER)
    memory.unregister("r", PEER)
    memory.register("r", segment.key, 5, 10, PEER)
    memory.register("s", segment.key, 0, 10, PEER)
    assert names(memory) == ["r", "s"]
    memory.unregister("", PEER)
    assert names(memory) == []
    with pytest.raises(NotFoundError, match='"r" is not registered'):
        memory.regions("r", PEER)


def text(value):
    return pb.InferParameter(string_param=value)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (parameters(), "shared_memory_byte_size is missing"),
        (parameters(byte_size=101), "beyond"),
        (parameters(byte_size=100, offset=1), "beyond"),
        (parameters(byte_size=0, offset=101), "beyond"),
        (parameters(byte_size=-1), "whole number"),
        (parameters(byte_size=1, offset=-1), "whole number"),
        (parameters(byte_size=2**63 - 1, offset=2**63 - 1), "beyond"),
        (parameters() | {"shared_memory_byte_size": pb.InferParameter(uint64_param=2**64 - 1)}, "beyond"),
        (parameters() | {"shared_memory_byte_size": text("10")}, "whole number"),
        (parameters() | {"shared_memory_byte_size": pb.InferParameter(double_param=1.0)}, "whole number"),
        (parameters() | {"shared_memory_byte_size": pb.InferParameter()}, "whole number"),
        ({"shared_memory_region": pb.InferParameter(int64_param=1)}, "must be the name of a region"),
        ({"shared_memory_byte_size": pb.InferParameter(int64_param=1)}, "no shared_memory_region"),
        ({"shared_memory_offset": pb.InferParameter(int64_param=1)}, "no shared_memory_region"),
    ],
)
def test_a_place_that_is_not_within_its_region_is_refused(memory, segment, given, part):
    memory.register("r", segment.key, 50, 100, PEER)
    with pytest.raises(InputError, match=f"^here: .*{part}"):
        memory.place(given, "here", PEER)


def test_a_tensor_elsewhere_has_no_place_and_one_in_no_region_is_refused(memory):
    assert memory.place({"priority": text("1")}, "here", PEER) is None
    with pytest.raises(NotFoundError, match='"r" is not registered'):
        memory.place(parameters(byte_size=1), "here", PEER)


def test_an_output_that_is_larger_than_its_place_changes_nothing(memory, segment):
    memory.register("r", segment.key, 0, 100, PEER)
    place = memory.place(parameters(byte_size=10), "here", PEER)
    with pytest.raises(InputError, match="takes 11 bytes, but its place"):
        place.write(b"x" * 11, "here")
    assert os.pread(segment.descriptor, SIZE, 0) == segment.content


@pytest.mark.parametrize("left", [0, 1, 149, mmap.PAGESIZE])
def test_a_segment_that_was_truncated_is_not_touched(memory, segment, left):
    memory.register("r", segment.key, mmap.PAGESIZE, 150, PEER)
    place = memory.place(parameters(byte_size=100), "here", PEER)
    os.ftruncate(segment.descriptor, left)
    with pytest.raises(InputError, match=f"has {left} bytes"):
        place.view()
    with pytest.raises(InputError, match=f"has {left} bytes"):
        place.write(b"x", "here")
    assert os.fstat(segment.descriptor).st_size == left


def test_a_sparse_segment_is_allocated_before_it_is_read(memory, make_segment):
    segment = make_segment(0)
    os.ftruncate(segment.descriptor, 64 * mmap.PAGESIZE)
    assert os.fstat(segment.descriptor).st_blocks == 0
    memory.register("r", segment.key, 0, 64 * mmap.PAGESIZE, PEER)
    assert os.fstat(segment.descriptor).st_blocks * 512 == 64 * mmap.PAGESIZE


def test_more_than_dev_shm_holds_is_refused_and_not_read(memory, make_segment):
    segment = make_segment(0)
    size = os.statvfs("/dev/shm")
    too_much = size.f_frsize * size.f_blocks + mmap.PAGESIZE
    os.ftruncate(segment.descriptor, too_much)
    unlimited = SharedMemory(IDLE_S, Anybody(), max_bytes=2 * too_much)
    with pytest.raises(MemoryLimitError, match="is full"):
        unlimited.register("r", segment.key, 0, too_much, PEER)
    assert unlimited.regions("", PEER) == ()


def test_regions_and_their_bytes_are_limited(segment):
    memory = SharedMemory(IDLE_S, Anybody(), max_regions=2, max_bytes=100)
    memory.register("a", segment.key, 0, 60, PEER)
    with pytest.raises(MemoryLimitError, match="may have 100 bytes together"):
        memory.register("b", segment.key, 0, 41, PEER)
    memory.register("b", segment.key, 0, 40, PEER)
    memory.unregister("a", PEER)
    memory.register("c", segment.key, 0, 1, PEER)
    with pytest.raises(MemoryLimitError, match="2 shared memory regions"):
        memory.register("d", segment.key, 0, 1, PEER)


def test_an_unlinked_segment_is_kept_while_its_client_holds_the_lock(memory, segment):
    fcntl.flock(segment.descriptor, fcntl.LOCK_SH)
    memory.register("r", segment.key, 0, 10, PEER)
    segment.path.unlink()
    assert memory.release_dead() == 0
    assert memory.place(parameters(byte_size=10), "here", PEER).view() == segment.content[:10]
    fcntl.flock(segment.descriptor, fcntl.LOCK_UN)  # as the kernel does when the client ends
    assert memory.release_dead() == 1
    assert names(memory) == []


def test_an_unlinked_segment_without_a_lock_makes_room_for_others(segment, make_segment):
    memory = SharedMemory(IDLE_S, Anybody(), max_regions=1)
    memory.register("r", segment.key, 0, 10, PEER)
    segment.path.unlink()
    memory.register("r", make_segment().key, 0, 10, PEER)
    assert names(memory) == ["r"]


def test_a_region_that_nobody_uses_is_released_after_a_time(memory, segment, clock):
    for name in ("idle", "used"):
        memory.register(name, segment.key, 0, 10, PEER)
    clock[0] += IDLE_S
    memory.place(parameters("used", byte_size=10), "here", PEER)
    clock[0] += 1
    assert memory.release_dead() == 1
    assert names(memory) == ["used"]


def test_a_region_whose_client_holds_the_lock_may_be_idle(memory, segment, clock):
    fcntl.flock(segment.descriptor, fcntl.LOCK_SH)
    memory.register("r", segment.key, 0, 10, PEER)
    clock[0] += 2 * IDLE_S
    assert memory.release_dead() == 0


def test_a_released_region_stays_readable_for_whoever_reads_it(memory, segment):
    memory.register("r", segment.key, 0, SIZE, PEER)
    place = memory.place(parameters(byte_size=SIZE), "here", PEER)
    view = place.view()
    memory.unregister("r", PEER)
    assert view == segment.content
    place.write(b"late", "here")
    assert os.pread(segment.descriptor, 4, 0) == b"late"


def test_every_method_asks_who_the_peer_is(segment):
    memory = SharedMemory(IDLE_S, Nobody())
    calls = [
        lambda: memory.register("r", segment.key, 0, 10, PEER),
        lambda: memory.unregister("r", PEER),
        lambda: memory.regions("", PEER),
        lambda: memory.place(parameters(byte_size=1), "here", PEER),
    ]
    for call in calls:
        with pytest.raises(InputError, match="not this peer"):
            call()


def infer_call(*inputs, raw=()):
    request = pb.ModelInferRequest()
    for number, given in enumerate(inputs):
        item = request.inputs.add(name=str(number))
        for name, parameter in given.items():
            item.parameters[name].CopyFrom(parameter)
    return InferCall(request, [memoryview(content) for content in raw])


def test_inputs_in_a_region_take_their_places_among_those_that_were_sent(memory, segment):
    memory.register("r", segment.key, 0, 100, PEER)
    given = infer_call({}, parameters(byte_size=4, offset=8), {}, raw=[b"first", b"third"])
    found = memory.with_inputs(given, PEER)
    assert [bytes(content) for content in found.raw] == [b"first", segment.content[8:12], b"third"]
    assert not found.message.inputs[1].parameters


def test_an_input_in_a_region_has_no_contents_beside_it(memory, segment):
    memory.register("r", segment.key, 0, 100, PEER)
    with pytest.raises(InputError, match="give one of them"):
        memory.with_inputs(infer_call(parameters(byte_size=4), raw=[b"more"]), PEER)
    typed = infer_call(parameters(byte_size=4))
    typed.message.inputs[0].contents.fp32_contents.append(1)
    with pytest.raises(InputError, match="give one of them"):
        memory.with_inputs(typed, PEER)


def test_ten_thousand_registrations_leave_nothing_behind(memory, segment):
    def state():
        maps = Path("/proc/self/maps").read_text().count(segment.key)
        return (
            maps,
            len(list(Path("/proc/self/fd").iterdir())),
            int(Path("/proc/self/statm").read_text().split()[1]),
        )

    def register():
        memory.register("r", segment.key, 0, SIZE, PEER)
        assert np.frombuffer(memory.place(parameters(byte_size=4), "x", PEER).view(), np.uint8).size == 4
        memory.unregister("r", PEER)

    for _ in range(1000):
        register()
    before = state()
    for _ in range(10_000):
        register()
    after = state()
    assert after[:2] == before[:2] == (0, before[1])
    assert (after[2] - before[2]) * mmap.PAGESIZE < 2 * 1024 * 1024
