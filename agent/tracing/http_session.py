"""HTTP towards a collector: one attempt, whose failure says why."""

from __future__ import annotations

from typing import Any

import requests
from requests import Response

from inferometer.agent.tracing.address import TraceAddress
from inferometer.agent.tracing.exporting import ATTEMPT_TIMEOUT_S, DeliveryError, innermost

_AGAIN_STATUSES = {429, 502, 503, 504}


class CollectorSession(requests.Session):
    """Raises DeliveryError for every answer that is not a collector's."""

    def __init__(self, address: TraceAddress) -> None:
        super().__init__()
        # requests merges these with the proxies of the environment
        self._proxies_of_calls = {"no_proxy": address.host} if address.is_loopback else None

    def post(self, url: str | bytes, data: Any = None, json: Any = None, **given: Any) -> Response:
        """Sends a request; see ``requests.Session.post``."""
        proxies = self._proxies_of_calls
        try:
            # a redirected POST becomes a GET, and its answer looks like success
            answer = super().post(url, data, json, allow_redirects=False, proxies=proxies, **given)
        except requests.Timeout as error:
            raise DeliveryError(f"no answer within {ATTEMPT_TIMEOUT_S:g} s", again=True) from error
        except requests.ConnectionError as error:
            raise DeliveryError(innermost(error), again=True) from error
        except requests.RequestException as error:
            raise DeliveryError(innermost(error)) from error
        _check_answer(answer)
        return answer


def status_of(answer: Response) -> str:
    """Returns the status of an answer, in words."""
    return f"HTTP {answer.status_code} {answer.reason}"


def kind_of(answer: Response) -> str:
    """Returns the media type of an answer."""
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _check_answer(answer: Response) -> None:
    """Raises DeliveryError unless a collector has accepted the request."""
    status = status_of(answer)
    if answer.is_redirect:
        raise DeliveryError(f"{status}, to {answer.headers['Location']}")
    if not 200 <= answer.status_code < 300:
        raise DeliveryError(status, again=answer.status_code in _AGAIN_STATUSES)
    if kind_of(answer) == "text/html":
        raise DeliveryError(f"{status} with a web page: what listens there is no collector")
