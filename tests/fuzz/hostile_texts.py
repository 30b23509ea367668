"""The texts of a file, each of which can be replaced by one that would run as code where it is not data."""

from __future__ import annotations

import ast
import io
import json
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import yaml
from google.protobuf.message import Message

Replacer = Callable[[str], bytes]
"""Gives the content with one of its texts replaced."""
MARK = "PWNED"


def payloads(secret: Path) -> list[str]:
    """Texts that create the file ``PWNED`` where they run, or name what a reader must not reach."""
    touch = f"__import__('pathlib').Path('{MARK}').touch()"
    return [
        f"zz = {touch}, yy",
        touch,
        f"a={touch}",
        f"x;{touch}#",
        f"x\n    {touch}\n",
        f"):\n    {touch}\n    return (",
        f"'+str({touch})+'",
        f'"+str({touch})+"',
        f"{{{touch}}}",
        f"${{{touch}}}",
        f"{{{{{touch}}}}}",
        f"(lambda: {touch})()",
        f"open('{MARK}', 'w')",
        f"`touch {MARK}`",
        f"$(touch {MARK})",
        f"; touch {MARK} #",
        f"|touch {MARK}",
        f"!!python/object/apply:os.system ['touch {MARK}']",
        f"cos\nsystem\n(S'touch {MARK}'\ntR.",
        "os.system",
        "torch.os.system",
        "builtins.eval",
        "torch.ops.aten.from_file.default",
        "torch.ops.higher_order.cond",
        "_operator.attrgetter",
        "antigravity",
        "turtledemo.clock",
        "__class__",
        "__globals__",
        "0x414141414141",
        "Custom",
        "_Native",
        "_cvimread",
        str(secret),
        f"../{secret.name}",
        f"../../{secret.name}",
        secret.as_uri(),
        "%n%s%x",
        "\x00",
        "",
    ]


class Exploit:
    """What runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return eval, (f"__import__('pathlib').Path('{MARK}').touch()",)


def replacers(name: str, content: bytes) -> Iterator[Replacer]:
    """Yields one for each text of a file; ``name`` tells its format."""
    end = name.rpartition("/")[2].rpartition(".")[2].casefold()
    if content[:2] == b"PK":
        yield from _of_zip(content)
    elif end in {"yml", "yaml"}:
        yield from _of_document(yaml.safe_load(content))
        yield from _of_words(content)
    elif end == "onnx":
        yield from _of_message(onnx.ModelProto.FromString(content))
    elif re.match(rb"\x80[\x02-\x05]", content) and content.endswith(pickle.STOP):
        yield from _of_pickle(content)
    elif content[:6] == b"\x93NUMPY":
        yield from _of_array(content)
    elif end == "json":
        yield from _of_document(json.loads(content))
    elif end in {"txt", "csv", "jsonl", "xml", "py", "idx"}:
        yield from _of_words(content)
    else:
        yield from _of_bytes(content)


def _of_document(document: Any) -> Iterator[Replacer]:
    """One for each key and each text of a document, which becomes JSON."""

    def write() -> bytes:
        return json.dumps(document).encode("utf-8", "surrogatepass")

    def value(inside: Any, key: Any) -> Replacer:
        def replaced(text: str) -> bytes:
            before, inside[key] = inside[key], text
            try:
                return write()
            finally:
                inside[key] = before

        return replaced

    def renamed(inside: dict[str, Any], key: str) -> Replacer:
        def replaced(text: str) -> bytes:
            before = dict(inside)
            inside.clear()
            inside.update({text if name == key else name: each for name, each in before.items()})
            try:
                return write()
            finally:
                inside.clear()
                inside.update(before)

        return replaced

    left = [document]
    while left:
        part = left.pop(0)
        for key in list(part) if isinstance(part, dict) else range(len(part)):
            if isinstance(part[key], dict | list):
                left.append(part[key])
            else:
                yield value(part, key)
            if isinstance(part, dict):
                yield renamed(part, key)


def _of_zip(content: bytes) -> Iterator[Replacer]:
    """One for each name of a member, and for each text of one."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(each.filename, archive.read(each)) for each in archive.infolist()]

    def written(place: int, name: str, member: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for number, (known, kept) in enumerate(members):
                archive.writestr(
                    *((name.strip("\0") or "empty", member) if number == place else (known, kept))
                )
        return file.getvalue()

    for place, (name, member) in enumerate(members):
        yield lambda text, place=place, member=member: written(place, text, member)
        yield lambda text, place=place, name=name: written(
            place, name, pickle.dumps(Exploit()) + text.encode()
        )
        top, slash, _ = name.partition("/")
        yield lambda text, place=place, top=top + slash, member=member: written(place, top + text, member)
        for replace in replacers(name, member):
            yield lambda text, place=place, name=name, replace=replace: written(place, name, replace(text))


def _of_message(message: Message) -> Iterator[Replacer]:
    """One for each text of a message of protobuf, also deep within it."""
    left: list[Message] = [message]
    while left:
        part = left.pop(0)
        for field, value in part.ListFields():
            if isinstance(value, Message):
                left.append(value)
            elif field.type == field.TYPE_MESSAGE:
                left += list(value)
            elif field.type in {field.TYPE_STRING, field.TYPE_BYTES}:
                several = not isinstance(value, str | bytes)
                for place in range(len(value)) if several else [None]:
                    yield lambda text, at=(part, field, place): _message_with(message, *at, text)


def _message_with(message: Message, part: Message, field: Any, place: int | None, text: str) -> bytes:
    new = text if field.type == field.TYPE_STRING else text.encode()
    before = getattr(part, field.name)
    if place is None:
        setattr(part, field.name, new)
        written = message.SerializeToString()
        setattr(part, field.name, before)
    else:
        kept, before[place] = before[place], new
        written = message.SerializeToString()
        before[place] = kept
    return bytes(written)


def _of_pickle(content: bytes) -> Iterator[Replacer]:
    """One for each text of a pickle, one for each of its classes, and one that adds a call."""
    steps = [(step.name, at, argument) for step, argument, at in pickletools.genops(content)]
    ends = [at for _, at, _ in steps[1:]] + [len(content)]
    for (name, at, _), end in zip(steps, ends, strict=True):
        if name == "GLOBAL":
            for path in ("posix system", "builtins eval", "os system", "torch load", "builtins exec"):
                new = b"c" + path.replace(" ", "\n").encode() + b"\n"
                yield lambda _, new=new, at=at, end=end: content[:at] + new + content[end:]
        elif "UNICODE" in name or "STRING" in name:
            yield lambda text, at=at, end=end: content[:at] + _unicode(text) + content[end:]
    call = b"cbuiltins\neval\n(" + _unicode(f"open('{MARK}', 'w')") + b"tR0"
    yield lambda _: content[:2] + call + content[2:]
    yield lambda text: pickle.dumps(Exploit()) + text.encode()


def _unicode(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _of_array(content: bytes) -> Iterator[Replacer]:
    """One for each word of the header of an array, which is a literal of Python."""
    (length,) = struct.unpack("<H", content[8:10])
    header, rest = content[10 : 10 + length], content[10 + length :]
    assert isinstance(ast.literal_eval(header.decode()), dict)

    def with_header(new: bytes) -> bytes:
        return content[:8] + struct.pack("<H", len(new) & 0xFFFF) + new + rest

    for word in re.finditer(rb"'[^']*'|\w+|[(){}]", header):
        replace = _at(header, *word.span())
        yield lambda text, replace=replace: with_header(replace(text))
    objects = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"
    yield (
        lambda text: content[:8] + struct.pack("<H", len(objects)) + objects + pickle.dumps([Exploit(), text])
    )


def _at(content: bytes, begin: int, end: int) -> Replacer:
    return lambda text: content[:begin] + text.encode() + content[end:]


def _of_words(content: bytes) -> Iterator[Replacer]:
    """One for each word of a text, and one for what stands in its quotes."""
    for word in re.finditer(rb'[^\s,:;<>="\']+', content):
        yield _at(content, *word.span())


def _of_bytes(content: bytes) -> Iterator[Replacer]:
    """One for each of 64 places, over what is there and beside it, and for texts within other bytes."""
    for place in sorted(
        {len(content) * each // 64 for each in range(64)} | set(range(0, min(64, len(content)), 4))
    ):
        yield lambda text, at=place: content[:at] + text.encode() + content[at + len(text.encode()) :]
        yield _at(content, place, place)
    for word in re.finditer(rb"[ -~]{3,}", content):
        yield _at(content, *word.span())
    yield lambda text: pickle.dumps(Exploit()) + text.encode()
