"""The YAML of manifests: safe, and without ambiguous constructs.

PyYAML parses in Python or, five times as fast, in C with libyaml. The two differ for some texts, and in their
messages: libyaml is used where they agree, and PyYAML parses what libyaml rejects.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

_MAX_NUMBER_BITS = 63
_NUMBER_TAGS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
# what PyYAML raises, beside its own errors, for invalid values of a tag and for deep nesting
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
# what libyaml accepts and PyYAML does not, or reads as another value; found with random texts
_READ_DIFFERENTLY = re.compile(r"[!?\t\ufeff]|(?<!\S)[^\s|>]*[|>]\S*#")


class InvalidYamlError(ValueError):
    """A text that is not valid YAML, or uses constructs that manifests do not allow."""


def parse_yaml(text: str, *, libyaml: bool = yaml.__with_libyaml__) -> Any:
    """Parses YAML into mappings, lists, text, numbers, booleans, dates and None.

    - ``version: 1.10`` stays text; YAML reads it as the number 1.1.
    - A repeated field is an error; YAML uses the last one.
    - An alias is an error: a few lines of aliases can expand beyond the memory.
    - A whole number of more than 63 bits is an error: no database accepts it.

    The use of libyaml only affects the speed.

    Raises:
        InvalidYamlError: The text is not valid; the message is one line.
    """
    if libyaml and not _READ_DIFFERENTLY.search(text):
        try:
            return yaml.load(text, _LibyamlLoader)  # noqa: S506 - a safe loader
        except _YAML_ERRORS:
            pass  # PyYAML reports the error with its position
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 - a SafeLoader
    except RecursionError as error:
        raise InvalidYamlError("is nested too deep") from error
    except _YAML_ERRORS as error:
        raise InvalidYamlError(" ".join(str(error).split())) from error


class _StrictLoader(yaml.SafeLoader):
    """The loader in Python; see ``parse_yaml``."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number = super().construct_yaml_int(node)
        if number.bit_length() > _MAX_NUMBER_BITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"found a whole number of more than {_MAX_NUMBER_BITS} bits", node.start_mark
            )
        return number

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call] # as types-PyYAML has it
            raise yaml.composer.ComposerError(
                None, None, f"found the alias *{event.anchor}; write the value out instead", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"found the field {key.value} twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
                if key.value == "version" and value.tag in _NUMBER_TAGS:
                    value.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)


class _LibyamlLoader(_StrictLoader):
    """The same loader with libyaml's parser.

    libyaml's composer is not used: it is recursive in C, and deep nesting crashes the process.
    """

    def __init__(self, text: str) -> None:
        from yaml._yaml import CParser  # only available if PyYAML was built with libyaml

        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._parser = CParser(text)

    def check_event(self, *choices: Any) -> bool:
        return self._parser.check_event(*choices)

    def peek_event(self) -> yaml.Event | None:
        return self._parser.peek_event()

    def get_event(self) -> yaml.Event | None:
        return self._parser.get_event()

    def dispose(self) -> None:
        self._parser.dispose()
