"""The store in MongoDB, through pymongo."""

from __future__ import annotations

import logging
import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import unquote

import pymongo
from bson.errors import BSONError
from dns.exception import DNSException, FormError
from dns.exception import SyntaxError as DNSSyntaxError
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError

from inferometer.evaluators.store.evaluation_store import EXPIRING, indexes
from inferometer.manifests.errors import ConfigurationError, StoreError

_log = logging.getLogger(__name__)
_TIMEOUTS: dict[str, Any] = {
    "serverSelectionTimeoutMS": 3_000,
    "connectTimeoutMS": 3_000,
    "socketTimeoutMS": 60_000,
}
"""The timeouts that apply unless the address itself sets them."""
_REFUSED = frozenset({13, 18})  # Unauthorized and AuthenticationFailed
_ERRORS: tuple[type[Exception], ...] = (PyMongoError, BSONError, ValueError, OverflowError)
_CLIENT_ERRORS: tuple[type[Exception], ...] = (*_ERRORS, OSError)
"""The exceptions of the client's constructor, which also opens files named in the address."""


class MongoConnection:
    """A connection to a MongoDB server. Writes are acknowledged by a majority of its members.

    Args:
        address: ``host``, ``host:port``, or an address with the scheme ``mongodb`` or ``mongodb+srv``.
        name: The database.
        otherwise: The user's alternative to a database, for messages; empty if there is none.

    Raises:
        ConfigurationError: The address is invalid.
        StoreError: The server cannot be found, does not answer within a few seconds, or refuses to connect.
    """

    def __init__(self, address: str, name: str, otherwise: str = "") -> None:
        uri = address if "://" in address else f"mongodb://{address}"
        self.location = f"{without_credentials(address)}/{name}"
        self.errors = _ERRORS
        self.duplicate_error: type[Exception] = DuplicateKeyError
        self.creation: tuple[str, ...] = ("created_at",)
        self._secrets = _secrets(uri)
        self._is_prepared = False
        timeouts = {n: ms for n, ms in _TIMEOUTS.items() if n.casefold() not in uri.casefold()}
        try:
            self._client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(
                uri, tz_aware=True, appname="inferometer", **timeouts
            )
        except _CLIENT_ERRORS as error:
            if (failed := _failed_lookup(error)) is not None:
                raise StoreError(
                    f"database {self.location} cannot be used: its host cannot be looked up "
                    f"({failed}); {_advice(error, otherwise)}"
                ) from error
            reason = self.reason(error)
            if self._secrets and not isinstance(error, OSError):  # pymongo may quote any part of the login
                reason = "escape user name and password as in a URL"
            raise ConfigurationError(
                f"database address {without_credentials(address)} makes no sense: {reason}; "
                "allowed: host, host:port, mongodb://… or mongodb+srv://…"
            ) from error
        try:
            database = self._client.get_database(name, write_concern=pymongo.WriteConcern(w="majority"))
            self._client.admin.command("ping")
            database["evaluation"].find_one({}, {"_id": 1})  # a ping is answered without a login
        except BaseException as error:
            self._client.close()
            if isinstance(error, _ERRORS):
                raise StoreError(
                    f"database {self.location} cannot be used: {self.reason(error)}; "
                    f"{_advice(error, otherwise)}"
                ) from error
            raise
        self.database: Any = database

    def prepare_to_write(self) -> None:
        """Creates missing indexes; logs a warning if the server refuses one."""
        if self._is_prepared:
            return
        self._is_prepared = True
        wanted: list[tuple[str, str, dict[str, int]]] = [
            *((name, field, {}) for name, fields in indexes().items() for field in fields),
            *((name, field, {"expireAfterSeconds": 0}) for name, field in EXPIRING.items()),
        ]
        refused = []
        for name, field, options in wanted:
            try:
                self.database[name].create_index(field, **options)
            except OperationFailure as error:
                refused.append(f"{name}.{field} ({self.reason(error)})")
        if refused:
            _log.warning(
                "%s: the database refused indexes, without which reports take longer, and records of killed "
                "agents stay until another agent publishes: %s",
                self.location,
                ", ".join(refused),
            )

    def transaction(self) -> AbstractContextManager[None]:
        """Does nothing: a standalone server has no transactions, and the order of writes requires none."""
        return nullcontext()

    def reason(self, error: Exception) -> str:
        """Returns the reason for an error as one short line, without credentials; pymongo's are long."""
        text = str(error)
        if isinstance(error, OperationFailure) and isinstance(error.details, dict):
            failed = [error.details, *error.details.get("writeErrors", ())]
            text = next((str(each["errmsg"]) for each in failed if each.get("errmsg")), text)
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
    """Returns the user and the password, both as in the address and unquoted."""
    login = uri.partition("://")[2].rpartition("@")[0]
    return {text for part in login.split(":", 1) for text in (part, unquote(part)) if text}


def _failed_lookup(error: Exception) -> str | None:
    """Returns the kind of a DNS failure, which pymongo reports as an invalid address; None otherwise."""
    cause = error.__cause__ or error.__context__
    if not isinstance(cause, DNSException) or isinstance(cause, DNSSyntaxError | FormError):
        return None
    return type(cause).__name__


def _advice(error: Exception, otherwise: str) -> str:
    """Returns advice for a database that cannot be used, with ``otherwise`` as an alternative."""
    if isinstance(error, OperationFailure) and error.code in _REFUSED:
        return "check the user and the password in --database_address, and the permissions of this user"
    if "certificate" in str(error).casefold() or "SSL" in str(error):
        return "check the certificates, which tlsCAFile and tlsCertificateKeyFile in --database_address name"
    if isinstance(error, OperationFailure):
        return "name another database with --database_address"
    if otherwise:
        return f"start it, {otherwise}, or leave out --database_address for the local file"
    return "start it, or name another one with --database_address"
