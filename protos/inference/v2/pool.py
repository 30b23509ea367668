"""Where the descriptors of these stubs live.

protobuf's default pool holds each full name once in a process. tritonclient puts the messages of the same
protocol there, from files of its own, and whoever came second would fail at import. ``tools/make_stubs.sh``
therefore lets the stubs of this package use the pool below.
"""

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
