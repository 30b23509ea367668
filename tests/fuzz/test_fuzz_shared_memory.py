"""Random registrations and uses of regions: none crashes, and none reads beyond its region."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import assert_one_clean_line, fuzzed

from inferometer.agent.server.v2.shared_memory import SharedMemory
from inferometer.manifests.errors import InferometerError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

SIZE = 2 * mmap.PAGESIZE + 17
PEER = "ipv4:127.0.0.1:1"
EDGES = (0, 1, 2, 17, mmap.PAGESIZE - 1, mmap.PAGESIZE, mmap.PAGESIZE + 1, SIZE - 1, SIZE, SIZE + 1)
UNSIGNED = st.one_of(st.sampled_from(EDGES), st.integers(0, SIZE), st.integers(0, 2**64 - 1))
SIGNED = st.one_of(UNSIGNED, st.integers(-(2**63), 2**63 - 1))
NAMES = st.one_of(st.sampled_from(["a", "b", ""]), st.text(max_size=4))
KEYS = st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["/..", "../../etc/passwd", "a/b"]))


@pytest.fixture(scope="module")
def segment() -> Iterator[tuple[str, bytes]]:
    path, content = Path("/dev/shm") / f"test-{secrets.token_hex(8)}", os.urandom(SIZE)
    path.write_bytes(content)
    yield path.name, content
    path.unlink()


class Anybody:
    def check(self, peer):
        pass


@st.composite
def parameter(draw: st.DrawFn) -> pb.InferParameter:
    kind = draw(st.sampled_from(["int64_param", "int64_param", "uint64_param", "string_param", "bool_param"]))
    values = {
        "int64_param": SIGNED.filter(lambda n: n < 2**63),
        "uint64_param": UNSIGNED,
        "string_param": NAMES,
        "bool_param": st.booleans(),
    }
    return pb.InferParameter(**{kind: draw(values[kind])})


@fuzzed
@given(data=st.data())
def test_what_is_read_is_within_a_region(segment, data):
    key, content = segment
    memory, regions = SharedMemory(60.0, Anybody(), max_regions=3), {}
    for _ in range(data.draw(st.integers(1, 8))):
        name = data.draw(NAMES)
        try:
            if data.draw(st.booleans()):
                other, offset, size = data.draw(KEYS), data.draw(SIGNED), data.draw(SIGNED)
                memory.register(name, f"/{key}" if other is None else other, offset, size, PEER)
                assert other is None
                assert name not in regions
                assert 0 <= offset < offset + size <= SIZE
                regions[name] = content[offset : offset + size]
            elif data.draw(st.booleans()):
                memory.unregister(name, PEER)
                regions = {} if not name else {k: v for k, v in regions.items() if k != name}
            else:
                given_ = {
                    "shared_memory_region": pb.InferParameter(string_param=name),
                    "shared_memory_byte_size": data.draw(parameter()),
                    "shared_memory_offset": data.draw(parameter()),
                }
                place = memory.place(given_, "here", PEER)
                start, size = place.offset, place.byte_size
                assert 0 <= start <= start + size <= len(regions[name])
                assert place.view() == regions[name][start : start + size]
        except InferometerError as error:
            assert_one_clean_line(error)
        assert {region.name for region in memory.regions("", PEER)} == set(regions)
