"""Protobuf messages as JSON with the types that Triton's HTTP server gives them.

protobuf's own conversion writes 64-bit integers as strings; in the HTTP protocol they are numbers.
"""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def json_of(message: Message) -> dict[str, Any]:
    """Returns a message as a JSON object with the field names of the ``.proto`` file.

    Unset fields are included with their default, as in Triton, except messages and the members of a oneof.
    Enumerations are written as names, ``bytes`` as base64.
    """
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            of_value = kind.fields_by_name["value"]
            found[field.name] = {str(key): _value(of_value, value[key]) for key in value}
        elif field.is_repeated:
            found[field.name] = [_value(field, item) for item in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _value(field, value)
    return found


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return json_of(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return base64.b64encode(value).decode("ascii") if field.type == FieldDescriptor.TYPE_BYTES else value
