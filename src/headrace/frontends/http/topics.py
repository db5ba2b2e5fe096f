"""Topics, namespaces, their settings and numbers."""

from __future__ import annotations

from typing import Any

from headrace.frontends.http import shapes
from headrace.frontends.http.calls import spoken
from headrace.frontends.http.messages import instant_ns
from headrace.frontends.http.request import Request
from headrace.frontends.http.routes import Route, namespaced

__all__ = ["ROUTES"]


def _topic(request: Request) -> dict[str, str]:
    return {"namespace": request.namespace, "topic": request.names["topic"]}


async def list_topics(request: Request, _: Any) -> Any:
    return {"topics": spoken(await request.call("topic.list", namespace=request.namespace))}


async def create_topic(request: Request, given: shapes.NewTopic) -> Any:
    info = await request.call("topic.create", namespace=request.namespace, topic=given.topic, settings=given.settings)
    return spoken(info)


async def show_topic(request: Request, _: Any) -> Any:
    return spoken(await request.call("topic.show", **_topic(request)))


async def ensure_topic(request: Request, given: shapes.SettingsOrder) -> Any:
    return spoken(await request.call("topic.ensure", **_topic(request), settings=given.settings))


async def change_topic(request: Request, given: shapes.SettingsOrder) -> Any:
    return spoken(await request.call("topic.config", **_topic(request), settings=given.settings))


async def delete_topic(request: Request, _: Any) -> Any:
    return await request.call("topic.delete", **_topic(request))


async def show_config(request: Request, _: Any) -> Any:
    return (await request.call("topic.show", **_topic(request)))["settings"]


async def change_config(request: Request, given: dict[str, Any]) -> Any:
    return (await request.call("topic.config", **_topic(request), settings=given))["settings"]


async def purge_topic(request: Request, given: shapes.PurgeOrder) -> Any:
    return await request.call("topic.purge", **_topic(request), group=given.group)


async def show_offsets(request: Request, given: shapes.OffsetsQuery) -> Any:
    time_ns = instant_ns("time", given.time) if given.time is not None else None
    return spoken(await request.call("topic.offsets", **_topic(request), time_ns=time_ns))


async def list_namespaces(request: Request, _: Any) -> Any:
    return {"namespaces": await request.door.broker.call("namespace.list", {})}


async def show_namespace(request: Request, _: Any) -> Any:
    return spoken(await request.call("namespace.show", namespace=request.namespace))


async def change_namespace(request: Request, given: shapes.SettingsOrder) -> Any:
    return spoken(await request.call("namespace.config", namespace=request.namespace, settings=given.settings))


_TOPIC = "/v1/topics/{topic}"
_NAMESPACE = "/v1/namespaces/{namespace}"

ROUTES = [
    *namespaced(
        [
            Route(
                method="GET", path="/v1/topics", summary="The topics of a namespace", tag="topics", verb="consume",
                cold=list_topics, answer=shapes.TopicList,
            ),
            Route(
                method="POST", path="/v1/topics", summary="Make a topic", tag="topics", verb="admin",
                cold=create_topic, body=shapes.NewTopic, answer=shapes.TopicInfo, status=201,
            ),
            Route(
                method="GET", path=_TOPIC, summary="A topic", tag="topics", verb="consume",
                cold=show_topic, answer=shapes.TopicInfo,
            ),
            Route(
                method="PUT", path=_TOPIC, summary="A topic with these settings, made when it is new", tag="topics",
                verb="publish", cold=ensure_topic, body=shapes.SettingsOrder, answer=shapes.TopicInfo,
            ),
            Route(
                method="PATCH", path=_TOPIC, summary="Change a topic's settings", tag="topics", verb="admin",
                cold=change_topic, body=shapes.SettingsOrder, answer=shapes.TopicInfo,
            ),
            Route(
                method="DELETE", path=_TOPIC, summary="Delete a topic with its messages and groups", tag="topics",
                verb="admin", cold=delete_topic, answer=shapes.Deleted,
            ),
            Route(
                method="GET", path=f"{_TOPIC}/config", summary="A topic's settings", tag="topics", verb="consume",
                cold=show_config, answer=dict[str, Any],
            ),
            *[
                Route(
                    method=method, path=f"{_TOPIC}/config", summary="Change settings; what is not named stays",
                    tag="topics", verb="admin", cold=change_config, body=shapes.Settings, answer=dict[str, Any],
                )
                for method in ("PUT", "PATCH")
            ],
            Route(
                method="POST", path=f"{_TOPIC}/purge", summary="Drop what waits", tag="topics", verb="admin",
                cold=purge_topic, body=shapes.PurgeOrder, answer=shapes.Dropped,
            ),
            Route(
                method="GET", path=f"{_TOPIC}/offsets", summary="Where each partition begins and ends", tag="topics",
                verb="consume", cold=show_offsets, query=shapes.OffsetsQuery, answer=shapes.Offsets,
            ),
        ]
    ),
    Route(
        method="GET", path="/v1/namespaces", summary="All namespaces", tag="namespaces", verb="admin", everywhere=True,
        cold=list_namespaces, answer=shapes.NamespaceList,
    ),
    Route(
        method="GET", path=_NAMESPACE, summary="What a namespace may use, and uses", tag="namespaces", verb="admin",
        cold=show_namespace, answer=shapes.NamespaceInfo,
    ),
    *[
        Route(
            method=method, path=_NAMESPACE, summary="Change what a namespace may use", tag="namespaces", verb="admin",
            cold=change_namespace, body=shapes.SettingsOrder, answer=shapes.NamespaceInfo,
        )
        for method in ("PUT", "PATCH")
    ],
]  # fmt: skip
