"""What waits for its time, and what died: looking, cancelling, moving, sending back to work."""

from __future__ import annotations

from typing import Any

from headrace.frontends.http import shapes
from headrace.frontends.http.calls import spoken
from headrace.frontends.http.messages import instant_ns, span_ns
from headrace.frontends.http.request import Request
from headrace.frontends.http.routes import Route, namespaced
from headrace.ids import parse_id

__all__ = ["ROUTES", "where_of"]


def _topic(request: Request) -> dict[str, str]:
    return {"namespace": request.namespace, "topic": request.names["topic"]}


# -- schedules ---------------------------------------------------------------------------------------------------------


async def list_scheduled(request: Request, given: shapes.ScheduleQuery) -> Any:
    rows = await request.call("schedule.list", **_topic(request), limit=given.limit, group=given.group)
    count = await request.call("schedule.count", **_topic(request))
    return {**spoken(count), "messages": spoken(rows)}


async def show_scheduled(request: Request, _: Any) -> Any:
    return spoken(await request.call("schedule.show", **_topic(request), id=parse_id(request.names["id"])))


def _chosen(given: shapes.Chosen) -> dict[str, Any]:
    return {
        "ids": [parse_id(one) for one in given.ids] if given.ids is not None else None,
        "key": given.key.encode() if given.key is not None else None,
        "tag": given.tag,
    }


async def cancel_scheduled(request: Request, given: shapes.Chosen) -> Any:
    return await request.call("schedule.cancel", **_topic(request), **_chosen(given))


async def cancel_one(request: Request, _: Any) -> Any:
    return await request.call("schedule.cancel", **_topic(request), ids=[parse_id(request.names["id"])])


async def move_scheduled(request: Request, given: shapes.MoveOrder) -> Any:
    deliver_at_ns = instant_ns("deliver_at", given.deliver_at) if given.deliver_at is not None else None
    delay_ns = span_ns("delay", given.delay) if given.delay is not None else None
    return spoken(
        await request.call(
            "schedule.move", **_topic(request), **_chosen(given), deliver_at_ns=deliver_at_ns, delay_ns=delay_ns
        )
    )


# -- dead letters ------------------------------------------------------------------------------------------------------


def where_of(given: shapes.Where | shapes.DeadQuery | shapes.ReplayWhere | None) -> dict[str, Any]:
    """A filter as the broker's calls take it."""
    if given is None:
        return {}
    where: dict[str, Any] = {
        name: getattr(given, name, None)
        for name in ("outcome", "reason", "error", "group", "consumer", "min_attempts", "key_prefix", "header")
    }
    if isinstance(given, shapes.DeadQuery) and given.header is not None and "=" in given.header:
        name, _, value = given.header.partition("=")
        where["header"] = {name: value}
    if isinstance(given, shapes.Where | shapes.ReplayWhere) and given.ids is not None:
        where["ids"] = [parse_id(one) for one in given.ids]
    for name in ("from_time", "to_time"):
        moment = getattr(given, name)
        if moment is not None:
            where[f"{name}_ns"] = instant_ns(name, moment)
    return {name: value for name, value in where.items() if value is not None}


async def list_dead(request: Request, given: shapes.DeadQuery) -> Any:
    rows = await request.call("dlq.list", **_topic(request), where=where_of(given), limit=given.limit)
    return {"dead_letters": spoken(rows)}


async def show_dead(request: Request, _: Any) -> Any:
    return spoken(await request.call("dlq.show", **_topic(request), id=parse_id(request.names["id"])))


async def purge_dead(request: Request, given: shapes.WhereOrder) -> Any:
    return await request.call("dlq.purge", **_topic(request), where=where_of(given.where))


async def redrive(request: Request, given: shapes.RedriveOrder) -> Any:
    return spoken(
        await request.call(
            "dlq.redrive",
            **_topic(request),
            where=where_of(given.where),
            to=given.to,
            rate=given.rate,
            dry_run=given.dry_run,
        )
    )


_SCHEDULE = "/v1/topics/{topic}/schedule"
_DEAD = "/v1/topics/{topic}/dead-letters"

ROUTES = namespaced(
    [
        Route(
            method="GET", path=_SCHEDULE, summary="What is scheduled, the next first", tag="schedule", verb="consume",
            cold=list_scheduled, query=shapes.ScheduleQuery, answer=shapes.ScheduleAnswer,
        ),
        Route(
            method="GET", path=f"{_SCHEDULE}/{{id}}", summary="One scheduled message", tag="schedule", verb="consume",
            cold=show_scheduled, answer=shapes.Scheduled,
        ),
        Route(
            method="DELETE", path=f"{_SCHEDULE}/{{id}}", summary="Cancel a scheduled message", tag="schedule",
            verb="publish", cold=cancel_one, answer=shapes.Cancelled,
        ),
        Route(
            method="POST", path=f"{_SCHEDULE}/cancel", summary="Cancel by ids, key or tag", tag="schedule",
            verb="publish", cold=cancel_scheduled, body=shapes.Chosen, answer=shapes.Cancelled,
        ),
        Route(
            method="POST", path=f"{_SCHEDULE}/move", summary="Another time, by ids, key or tag", tag="schedule",
            verb="publish", cold=move_scheduled, body=shapes.MoveOrder, answer=shapes.Moved,
        ),
        Route(
            method="GET", path=_DEAD, summary="Dead letters, the oldest first", tag="dead letters", verb="admin",
            cold=list_dead, query=shapes.DeadQuery, answer=shapes.DeadLetters,
        ),
        Route(
            method="GET", path=f"{_DEAD}/{{id}}", summary="A dead letter, by its id or that of what died",
            tag="dead letters", verb="admin", cold=show_dead, answer=shapes.DeadLetter,
        ),
        Route(
            method="POST", path=f"{_DEAD}/purge", summary="Drop dead letters for good", tag="dead letters",
            verb="admin", cold=purge_dead, body=shapes.WhereOrder, answer=shapes.Dropped,
        ),
        Route(
            method="POST", path="/v1/topics/{topic}/redrive", summary="Send dead letters back to work",
            tag="dead letters", verb="admin", cold=redrive, body=shapes.RedriveOrder, answer=shapes.RedriveReport,
        ),
    ]
)  # fmt: skip
