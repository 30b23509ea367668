"""The store in MongoDB, through pymongo."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import unquote

import pymongo
from bson.errors import BSONError
from dns.exception import DNSException, FormError
from dns.exception import SyntaxError as DNSSyntaxError
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError

from evaluators.store.collection_store import EXPIRING, INDEXES, Database
from manifests.errors import ConfigurationError, StoreError

_SELECTION_MS = 3_000
_ANSWER_MS = 60_000
_UNAUTHORIZED = 13
_ERRORS: tuple[type[Exception], ...] = (PyMongoError, BSONError, ValueError, OverflowError)
_CLIENT_ERRORS: tuple[type[Exception], ...] = (*_ERRORS, OSError)
"""What the making of a client raises, also of a file that the address names."""


class MongoConnection:
    """A connection to a MongoDB server. Writes are acknowledged by a majority of its members.

    Args:
        address: ``host``, ``host:port``, or an address with the scheme ``mongodb`` or ``mongodb+srv``.
        name: The database; its indexes are made.
        otherwise: What the user may do without a database; empty for nothing.

    Raises:
        ConfigurationError: The address makes no sense.
        StoreError: The server cannot be looked up, does not answer within a few seconds, or refuses.
    """

    def __init__(self, address: str, name: str, otherwise: str = "") -> None:
        uri = address if "://" in address else f"mongodb://{address}"
        self.location = f"{without_credentials(address)}/{name}"
        self.errors = _ERRORS
        self.duplicate_error: type[Exception] = DuplicateKeyError
        self._secrets = _secrets(uri)
        advice = "start it, or name another one with --database_address"
        if otherwise:
            advice = f"start it, {otherwise}, or leave --database_address away for the local file"
        try:
            self._client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(
                uri, tz_aware=True, appname="inferscope", **_timeouts(uri)
            )
        except _CLIENT_ERRORS as error:
            if (failed := _failed_lookup(error)) is not None:
                raise StoreError(
                    f"database {self.location} cannot be used: its host cannot be looked up "
                    f"({failed}); {advice}"
                ) from error
            reason = self.reason(error)
            if self._secrets and not isinstance(error, OSError):  # pymongo may quote any piece of the login
                reason = "escape user name and password as in a URL"
            raise ConfigurationError(
                f"database address {without_credentials(address)} makes no sense: {reason}; "
                "allowed: host, host:port, mongodb://… or mongodb+srv://…"
            ) from error
        try:
            database = self._client.get_database(name, write_concern=pymongo.WriteConcern(w="majority"))
            self._client.admin.command("ping")
            database["evaluation"].find_one({}, {"_id": 1})  # a ping is answered without a login
            _make_indexes(database)
        except BaseException as error:
            self._client.close()
            if isinstance(error, _ERRORS):
                raise StoreError(
                    f"database {self.location} cannot be used: {self.reason(error)}; {advice}"
                ) from error
            raise
        self.database: Database = database

    def transaction(self) -> AbstractContextManager[None]:
        """Does nothing: a server by itself has no transactions, and the order of the writes needs none."""
        return nullcontext()

    def reason(self, error: Exception) -> str:
        """Says in one short line, without credentials, why something failed; pymongo's own are pages long."""
        text = str(error)
        if isinstance(error, OperationFailure) and isinstance(error.details, dict):
            text = str(error.details.get("errmsg") or text)
        text = re.split(r" \(configured timeouts|, Timeout: |, Topology Description|, full error", text)[0]
        for secret in self._secrets:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
        return " ".join(text.split())[:200]

    def close(self) -> None:
        """Closes the connection and ends pymongo's threads."""
        self._client.close()


def without_credentials(address: str) -> str:
    """Returns an address without user, password and options, which may hold secrets too."""
    scheme, separator, rest = address.rpartition("://")
    return scheme + separator + re.split(r"[/?]", rest.rpartition("@")[2])[0]


def _secrets(uri: str) -> set[str]:
    """The user and the password, as they stand in the address and as they are meant."""
    login = uri.partition("://")[2].rpartition("@")[0]
    return {text for part in login.split(":", 1) for text in (part, unquote(part)) if text}


def _failed_lookup(error: Exception) -> str | None:
    """The kind of failure where DNS did not answer, as pymongo takes that for a mistake in the address.

    None for every other error, and for a host that is no name at all.
    """
    cause = error.__cause__ or error.__context__
    if not isinstance(cause, DNSException) or isinstance(cause, DNSSyntaxError | FormError):
        return None
    return type(cause).__name__


def _timeouts(uri: str) -> dict[str, Any]:
    """How long to wait, in milliseconds, where the address does not say so itself."""
    ours = {
        "serverSelectionTimeoutMS": _SELECTION_MS,
        "connectTimeoutMS": _SELECTION_MS,
        "socketTimeoutMS": _ANSWER_MS,
    }
    return {name: value for name, value in ours.items() if name.casefold() not in uri.casefold()}


def _make_indexes(database: pymongo.database.Database[dict[str, Any]]) -> None:
    try:
        for name, indexed in INDEXES.items():
            for field in indexed:
                database[name].create_index(field)
        for name, field in EXPIRING.items():
            database[name].create_index(field, expireAfterSeconds=0)
    except OperationFailure as error:
        if error.code != _UNAUTHORIZED:  # who may only read can do without
            raise
