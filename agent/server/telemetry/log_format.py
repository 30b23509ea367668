"""How a served agent's log lines look: as text, or as one JSON object a line."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from enum import Enum

from inferometer.agent.serving.observers import current_call

EXTRAS = ("code", "duration_s", "model", "peer")
"""Fields that only some lines have, from the ``extra`` of a log call."""


class LogFormat(str, Enum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"

    @property
    def formatter(self) -> logging.Formatter:
        """What makes the lines."""
        return JsonFormatter() if self is LogFormat.JSON else TextFormatter()


class TextFormatter(logging.Formatter):
    """``LEVEL logger: message [request id]``; a traceback follows in lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        text = super().format(record)
        call = current_call()
        head = f"{record.levelname} {record.name}: "
        if call is None:
            return head + text
        first, separator, rest = text.partition("\n")
        return f"{head}{first} [{call.request_id}]{separator}{rest}"


class JsonFormatter(logging.Formatter):
    """One object a line: ``time``, ``level``, ``logger``, ``message``, and fields of the call.

    Within a call those are ``request_id``, ``trace_id`` where the client sent a ``traceparent``, and
    ``method``. The line that is written when a call has ended has ``EXTRAS``, too. A traceback is in
    ``exception``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="microseconds")
        line: dict[str, object] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if call := current_call():
            line["request_id"] = call.request_id
            if call.trace_id is not None:
                line["trace_id"] = call.trace_id
            line["method"] = call.method
        for name in EXTRAS:
            if value := getattr(record, name, None):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
