"""Groups: making, looking, seeking, replaying, pausing; and the hot calls lease and settle."""

from __future__ import annotations

from typing import Any

from headrace.frontends.http import hot, shapes
from headrace.frontends.http.calls import spoken
from headrace.frontends.http.messages import instant_ns
from headrace.frontends.http.request import Request
from headrace.frontends.http.routes import Route, namespaced
from headrace.frontends.http.schedules import where_of

__all__ = ["ROUTES", "start_of"]


def _topic(request: Request) -> dict[str, str]:
    return {"namespace": request.namespace, "topic": request.names["topic"]}


def _group(request: Request) -> dict[str, str]:
    return {**_topic(request), "group": request.names["group"]}


def start_of(start: shapes.Start | None) -> Any:
    """Where a group begins, as the broker's calls take it."""
    if not isinstance(start, shapes.StartAt):
        return start
    if start.time is not None:
        return {"time_ns": instant_ns("start.time", start.time)}
    return {"offsets": start.offsets or {}}


async def list_groups(request: Request, _: Any) -> Any:
    return {"groups": spoken(await request.call("group.list", **_topic(request)))}


async def create_group(request: Request, given: shapes.NewGroup) -> Any:
    return spoken(
        await request.call(
            "group.create",
            **_topic(request),
            group=given.group,
            start=start_of(given.start),
            durable=given.durable,
            settings=given.settings,
        )
    )


async def show_group(request: Request, _: Any) -> Any:
    return spoken(await request.call("group.show", **_group(request)))


async def change_group(request: Request, given: shapes.SettingsOrder) -> Any:
    return spoken(await request.call("group.config", **_group(request), settings=given.settings))


async def delete_group(request: Request, _: Any) -> Any:
    return await request.call("group.delete", **_group(request))


async def seek_group(request: Request, given: shapes.Seek) -> Any:
    until_ns = instant_ns("until_time", given.until_time) if given.until_time is not None else None
    return spoken(
        await request.call(
            "group.seek",
            **_group(request),
            start=start_of(given.start),
            stops=given.until,
            stop_time_ns=until_ns,
        )
    )


async def replay_group(request: Request, given: shapes.ReplayOrder) -> Any:
    return spoken(
        await request.call(
            "group.replay",
            **_group(request),
            where=where_of(given.where),
            to=given.to,
            rate=given.rate,
            dry_run=given.dry_run,
        )
    )


async def pause_group(request: Request, given: shapes.PauseOrder) -> Any:
    until_ns = instant_ns("until", given.until) if given.until is not None else 0
    return spoken(
        await request.call("group.pause", **_group(request), by=request.caller, why=given.why, until_ns=until_ns)
    )


async def resume_group(request: Request, _: Any) -> Any:
    return spoken(await request.call("group.resume", **_group(request), by=request.caller))


_GROUPS = "/v1/topics/{topic}/groups"
_GROUP = "/v1/topics/{topic}/groups/{group}"

ROUTES = namespaced(
    [
        Route(
            method="GET", path=_GROUPS, summary="The groups of a topic", tag="groups", verb="consume",
            cold=list_groups, answer=shapes.GroupList,
        ),
        Route(
            method="POST", path=_GROUPS, summary="Make a group", tag="groups", verb="admin", cold=create_group,
            body=shapes.NewGroup, answer=shapes.GroupInfo, status=201,
        ),
        Route(
            method="GET", path=_GROUP, summary="A group", tag="groups", verb="consume", cold=show_group,
            answer=shapes.GroupInfo,
        ),
        *[
            Route(
                method=method, path=_GROUP, summary="Change a group's settings", tag="groups", verb="admin",
                cold=change_group, body=shapes.SettingsOrder, answer=shapes.GroupInfo,
            )
            for method in ("PUT", "PATCH")
        ],
        Route(
            method="DELETE", path=_GROUP, summary="Delete a group", tag="groups", verb="admin", cold=delete_group,
            answer=shapes.Deleted,
        ),
        Route(
            method="POST", path=f"{_GROUP}/seek", summary="Start a group over", tag="groups", verb="admin",
            cold=seek_group, body=shapes.Seek, answer=shapes.GroupInfo,
        ),
        Route(
            method="POST", path=f"{_GROUP}/replay", summary="Hand out once more what had an outcome", tag="groups",
            verb="admin", cold=replay_group, body=shapes.ReplayOrder, answer=shapes.ReplayReport,
        ),
        Route(
            method="POST", path=f"{_GROUP}/pause", summary="Stop handing out", tag="groups", verb="admin",
            cold=pause_group, body=shapes.PauseOrder, answer=shapes.GroupInfo,
        ),
        Route(
            method="POST", path=f"{_GROUP}/resume", summary="Hand out again", tag="groups", verb="admin",
            cold=resume_group, answer=shapes.GroupInfo,
        ),
        Route(
            method="POST", path=f"{_GROUP}/lease", summary="Take messages for a while, waiting for the first",
            tag="consume", verb="consume", hot=hot.lease, body=shapes.LeaseOrder, answer=shapes.LeaseAnswer,
        ),
        Route(
            method="POST", path=f"{_GROUP}/settle", summary="Ack, nack, reject, release, extend: any mix, one record",
            tag="consume", verb="consume", hot=hot.settle, body=shapes.SettleOrder, answer=shapes.SettleAnswer,
            while_draining=True,
        ),
    ]
)  # fmt: skip
