"""Messages that no client would send: random bytes, truncated or changed ones, and random fields."""

import random

from google.protobuf.descriptor import FieldDescriptor

_MAX_DEPTH = 4
_EDGES = {
    FieldDescriptor.CPPTYPE_INT32: (0, 1, -1, 2**31 - 1, -(2**31)),
    FieldDescriptor.CPPTYPE_INT64: (0, 1, -1, 4, 2**31, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 4, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 4, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: (0.0, -1.0, 1e308, float("inf"), float("nan")),
    FieldDescriptor.CPPTYPE_FLOAT: (0.0, -1.0, 3e38, float("inf"), float("nan")),
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
}


class RandomMessages:
    """Makes messages; the same ones for the same seed.

    Args:
        seed: What they are drawn from.
        words: Texts that mean something to the server, such as the names of models.
    """

    def __init__(self, seed, words):
        self.random = random.Random(seed)
        self._words = tuple(words)

    def content(self, message_class):
        """The bytes of a message, or of what looks like one."""
        match self.random.randrange(4):
            case 0:
                return self.random.randbytes(self.random.randrange(200))
            case 1:
                valid = self.message(message_class).SerializeToString()
                return valid[: self.random.randrange(len(valid) + 1)]
            case 2:
                valid = bytearray(self.message(message_class).SerializeToString())
                for _ in range(self.random.randint(1, 3) if valid else 0):
                    valid[self.random.randrange(len(valid))] = self.random.randrange(256)
                return bytes(valid)
        return self.message(message_class).SerializeToString()

    def message(self, message_class):
        """A message of the type, whose fields hold anything."""
        message = message_class()
        self._fill(message, 0)
        return message

    def _fill(self, message, depth):
        for field in message.DESCRIPTOR.fields:
            if self.random.random() < 0.3 or (field.message_type and depth >= _MAX_DEPTH):
                continue
            if field.message_type and field.message_type.GetOptions().map_entry:
                self._fill_map(message, field, depth)
            elif field.is_repeated:
                self._fill_list(message, field, depth)
            elif field.message_type:
                inner = getattr(message, field.name)
                inner.SetInParent()
                self._fill(inner, depth + 1)
            else:
                setattr(message, field.name, self._value(field))

    def _fill_list(self, message, field, depth):
        values = getattr(message, field.name)
        for _ in range(self.random.choice((0, 1, 1, 2, 5))):
            if field.message_type:
                self._fill(values.add(), depth + 1)
            else:
                values.append(self._value(field))

    def _fill_map(self, message, field, depth):
        values = getattr(message, field.name)
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        for _ in range(self.random.randrange(3)):
            if value.message_type:
                self._fill(values[self._value(key)], depth + 1)
            else:
                values[self._value(key)] = self._value(value)

    def _value(self, field):
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return self.random.randbytes(self.random.choice((0, 1, 4, 64, 64, 1000)))
            if self.random.random() < 0.8:
                return self.random.choice(self._words)
            return "".join(chr(self.random.randrange(1, 0xD800)) for _ in range(self.random.randrange(20)))
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            return self.random.choice((0, 1, 2, 77))
        if self.random.random() < 0.5 and field.cpp_type != FieldDescriptor.CPPTYPE_BOOL:
            return self.random.randrange(8)
        return self.random.choice(_EDGES[field.cpp_type])
