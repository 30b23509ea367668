"""Conversion of the conditions of an evaluation to a part of its document, and back."""

from __future__ import annotations

from typing import Any

from inferometer.evaluators.conditions.conditions import Conditions, Stability
from inferometer.evaluators.conditions.host import HostConditions, Spread
from inferometer.evaluators.store.values import checked, fields_of, restored

_SPREADS = ("frequency_mhz", "gpu_clock_mhz")


def conditions_document(conditions: Conditions | None) -> dict[str, Any] | None:
    """Returns the document of conditions; None if there are none."""
    if conditions is None:
        return None
    return fields_of(conditions) | {"hosts": [_host_document(host) for host in conditions.hosts]}


def conditions_from_document(document: Any) -> Conditions | None:
    """Returns the conditions of a document; None for one of an earlier version, which has none.

    Raises:
        KeyError, TypeError, ValueError: The document is damaged.
    """
    if document is None:
        return None
    known = restored(document)
    return checked(
        Conditions(
            stability=Stability(known["stability"]),
            reasons=tuple(map(str, known["reasons"])),
            note=known["note"],
            hosts=tuple(_host(host) for host in known["hosts"]),
        )
    )


def _host_document(host: HostConditions) -> dict[str, Any]:
    spreads = {name: getattr(host, name) for name in _SPREADS}
    return fields_of(host) | {
        name: None if each is None else fields_of(each) for name, each in spreads.items()
    }


def _host(document: dict[str, Any]) -> HostConditions:
    spreads = {name: document[name] for name in _SPREADS}
    known = {name: None if each is None else checked(Spread(**each)) for name, each in spreads.items()}
    return checked(HostConditions(**document | known))
