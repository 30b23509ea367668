"""What ``--agent`` names: addresses, or conditions that an agent is to be found by."""

from __future__ import annotations

from client.agents.selector import ANY, AgentSelector
from client.remote.address import AgentAddress
from manifests.errors import ConfigurationError

_OWN = ("grpc://", "grpcs://")


def read_agents(text: str) -> tuple[str, ...] | AgentSelector:
    """Reads what ``--agent`` says.

    A text with ``=`` is a selector; so is ``any``. One with ``://`` is the address of a server of another
    protocol, and is returned as it is, unless it is ``grpcs://`` or ``grpc://``. Everything else is addresses
    with commas between.

    Raises:
        ConfigurationError: It is none of these, or names an agent twice.
    """
    text = text.strip()
    if any("://" in each and not each.strip().casefold().startswith(_OWN) for each in text.split(",")):
        return (text,)
    if "=" in text or text.casefold() == ANY:
        return AgentSelector.parse(text)
    addresses = tuple(str(AgentAddress.parse(each)) for each in text.split(","))
    for address in addresses:
        if addresses.count(address) > 1:
            raise ConfigurationError(f"--agent names {address} twice")
    return addresses
