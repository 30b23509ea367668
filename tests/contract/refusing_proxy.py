"""A proxy in front of a server of MongoDB's protocol that refuses what some servers do not have."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import bson

Command: TypeAlias = Mapping[str, Any]
Refusal: TypeAlias = Callable[[Command], "Mapping[str, Any] | None"]
"""Returns the answer to a command that is refused; None lets the server answer."""
_HEADER = struct.Struct("<iiii")
_OP_MSG = 2013
_WRITES = ("insert", "update", "delete", "createIndexes", "create", "drop")


def no_expiring_index(command: Command) -> Mapping[str, Any] | None:
    """FerretDB 1.24 over SQLite has no TTL indexes."""
    if any("expireAfterSeconds" in index for index in command.get("indexes", ())):
        reason = 'Index option "expireAfterSeconds" is not implemented'
        return {"ok": 0.0, "code": 238, "codeName": "NotImplemented", "errmsg": reason}
    return None


def no_nested_arrays(command: Command) -> Mapping[str, Any] | None:
    """FerretDB 1.24 over SQLite stores no array in an array."""
    if not any(_has_nested_array(document, in_array=False) for document in command.get("documents", ())):
        return None
    failed = {"index": 0, "code": 2, "errmsg": "nested arrays are not supported"}
    return {"ok": 1.0, "n": 0, "writeErrors": [failed]}


def no_writes(command: Command) -> Mapping[str, Any] | None:
    """A user who may only read."""
    name = next(iter(command))
    if name not in _WRITES:
        return None
    reason = f"not authorized on {command['$db']} to execute command {name}"
    return {"ok": 0.0, "code": 13, "codeName": "Unauthorized", "errmsg": reason}


def _has_nested_array(value: object, *, in_array: bool) -> bool:
    if isinstance(value, list):
        return in_array or any(_has_nested_array(each, in_array=True) for each in value)
    if isinstance(value, Mapping):
        return any(_has_nested_array(each, in_array=False) for each in value.values())
    return False


@contextmanager
def refusing(port: int, refusals: Sequence[Refusal]) -> Iterator[str]:
    """Serves what the server on a port of this machine has, but for the refusals; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port, refusals), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, port: int, refusals: Sequence[Refusal]) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, port, refusals), daemon=True).start()


def _serve(client: socket.socket, port: int, refusals: Sequence[Refusal]) -> None:
    with client, socket.create_connection(("127.0.0.1", port)) as server, suppress(OSError, EOFError):
        threading.Thread(target=_copy, args=(server, client), daemon=True).start()
        while True:
            head = _exactly(client, _HEADER.size)
            size, request_id, _, operation = _HEADER.unpack(head)
            body = _exactly(client, size - _HEADER.size)
            command = _command(body) if operation == _OP_MSG else {}
            answers = (answer for refusal in refusals if (answer := refusal(command)))
            if command and (answer := next(answers, None)):
                content = struct.pack("<ib", 0, 0) + bson.encode(answer)
                client.sendall(_HEADER.pack(_HEADER.size + len(content), 0, request_id, _OP_MSG) + content)
            else:
                server.sendall(head + body)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(65536):
            target.sendall(content)


def _exactly(source: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        if not (more := source.recv(size - len(content))):
            raise EOFError
        content += more
    return content


def _command(body: bytes) -> dict[str, Any]:
    """The document of an OP_MSG, with its sequences of documents as lists."""
    command: dict[str, Any] = {}
    position = 4
    while position < len(body):
        kind, position = body[position], position + 1
        (size,) = struct.unpack_from("<i", body, position)
        section, position = body[position : position + size], position + size
        if kind == 0:
            command |= bson.decode(section)
        else:
            name, _, documents = section[4:].partition(b"\0")
            command[name.decode()] = bson.decode_all(documents)
    return command
