"""The read-only server of the page: its files, its API and its events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from inferometer.client.api.running_now import running_now
from inferometer.client.web.assets import SERVED, content_of, content_type_of, served_page
from inferometer.client.web.events import Events
from inferometer.client.web.guard import Guard
from inferometer.client.web.plans.documents import asked_of
from inferometer.client.web.plans.reader import PlansReader
from inferometer.client.web.reader import ListQuery, StoreReader
from inferometer.evaluators.store.evaluation_store import EvaluationStore
from inferometer.manifests.errors import ConfigurationError, InferometerError, NotFoundError

_T = TypeVar("_T")
_STATUS = {ConfigurationError: 400, NotFoundError: 404}
"""The status of an error; of any other, such as a database that cannot be read, it is 503."""


class PageServer:
    """The page over one store, as an ASGI application.

    A dedicated thread makes all reads of the store, one at a time, so that reads for one page do not delay
    the files and events of other pages.

    Args:
        open_store: Opens the store; called in that thread.
        data_directory: The folder in which running evaluations report progress, and plans have their folders.
        secret: The secret that clients have to send; None requires none.
        names: See ``Guard``.
    """

    def __init__(
        self,
        open_store: Callable[[], EvaluationStore],
        data_directory: Path,
        *,
        secret: str | None = None,
        names: Iterable[str] | None = (),
    ) -> None:
        self._reader = StoreReader(open_store)
        self._plans = PlansReader(data_directory, lambda: self._reader.store)
        self._data_directory = data_directory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="page-store")
        self.events = Events(self._look)
        routes = [
            Route("/", self._page),
            Route("/compare", self._page),
            Route("/evaluations/{id}", self._page),
            Route("/plans", self._page),
            Route("/plans/{name}", self._page),
            Route("/static/{name}", self._static),
            Route("/api/about", self._about),
            Route("/api/filters", self._filters),
            Route("/api/evaluations", self._evaluations),
            Route("/api/evaluations/{id}", self._evaluation),
            Route("/api/compare", self._comparison),
            Route("/api/plans", self._plan_list),
            Route("/api/plans/{name}", self._plan),
            Route("/api/events", self._events),
        ]
        known: dict[Any, Any] = {InferometerError: self._failed, 404: _missing, 405: _missing}
        starlette = Starlette(routes=routes, exception_handlers=known)
        self.app = Guard(starlette, secret, names)

    async def prepare(self) -> None:
        """Opens the store, so that its problems are reported before the server starts.

        Raises:
            StoreError: The store cannot be opened.
        """
        await self._read(lambda: self._reader.store)

    async def close(self) -> None:
        """Ends all streams, and closes the store."""
        self.events.close()
        await self._read(self._reader.close)
        self._thread.shutdown(wait=False)

    async def _read(self, read: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    async def _answer(self, read: Callable[[], Any]) -> Response:
        """Returns the result of ``read`` as JSON, encoded in the same thread."""
        return _json(await self._read(lambda: json.dumps(read(), ensure_ascii=False, allow_nan=False)))

    async def _page(self, _: Request) -> Response:
        return Response(served_page(), media_type="text/html; charset=utf-8")

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in SERVED:
            return _missing()
        return Response(
            content_of(name), media_type=content_type_of(name), headers={"Cache-Control": "no-cache"}
        )

    async def _about(self, _: Request) -> Response:
        return await self._answer(self._reader.about)

    async def _filters(self, _: Request) -> Response:
        return await self._answer(self._reader.filters)

    async def _evaluations(self, request: Request) -> Response:
        query = ListQuery.of(request.query_params)
        read = self._reader.page if query.is_by_time else self._reader.ordered_page
        return await self._answer(lambda: read(query))

    async def _evaluation(self, request: Request) -> Response:
        return await self._answer(lambda: self._reader.evaluation(request.path_params["id"]))

    async def _comparison(self, request: Request) -> Response:
        a, b = request.query_params.get("a", ""), request.query_params.get("b", "")
        return await self._answer(lambda: self._reader.comparison(a, b))

    async def _plan_list(self, _: Request) -> Response:
        return await self._answer(lambda: {"plans": self._plans.plans()})

    async def _plan(self, request: Request) -> Response:
        query = asked_of(request.query_params.multi_items())
        return await self._answer(lambda: self._plans.plan(request.path_params["name"], query))

    async def _events(self, _: Request) -> Response:
        return StreamingResponse(self.events.stream(), media_type="text/event-stream")

    async def _look(self) -> dict[str, Any]:
        def look() -> dict[str, Any]:
            running = [asdict(each) for each in running_now(self._data_directory)]
            total = self._reader.total()
            return {"evaluations": {"total": total}, "running": running, "plans": self._plans.plans()}

        return await self._read(look)

    async def _failed(self, _: Request, error: Exception) -> Response:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 503)
        return _json(json.dumps({"error": str(error)}), status)


def _json(text: str, status: int = 200) -> Response:
    return Response(text.encode("utf-8"), status, media_type="application/json")


def _missing(_: Any = None, error: Any = None) -> Response:
    status = getattr(error, "status_code", 404)
    reason = "this page is read-only" if status == 405 else "there is nothing here"
    return _json(json.dumps({"error": reason}), status)
