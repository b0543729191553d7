"""Reads a raw tool-service item as a :class:`ServiceDescriptor`."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dispatch._internal.suggestions import excerpt
from dispatch.catalog.descriptors import ConfigParam, Instance, ServiceDescriptor
from dispatch.catalog.errors import Report
from dispatch.catalog.readers.field_validation import MAX_NAME_CHARS, ObjectReader
from dispatch.catalog.readers.item_key import ItemKey
from dispatch.catalog.readers.policy_check import check_policy
from dispatch.policy import DEFAULT_POLICY, Policy

SERVICE_KEYS: Final = (
    "id",
    "request-queue",
    "response-queue",
    "config-params",
    "instances",
    "version",
    "policy",
    "permissions",
)
"""Keys of a service's descriptor."""
_NOTES: Final = ("description",)  # a note for people
_PARAM_KEYS: Final = ("name", "required")
_INSTANCE_KEYS: Final = ("id", "request-queue", "response-queue", "weight", "version")

_REQUEST: Final = "non-persistent://tg/request/joke"
_RESPONSE: Final = "non-persistent://tg/response/joke"


def read_service(
    raw: dict[str, Any], item_key: str, report: Report, namespace: str = "", base: Policy = DEFAULT_POLICY
) -> ServiceDescriptor:
    """Return the descriptor in ``raw``; ``item_key`` has the defaults of its id and version, ``namespace`` is the prefix of
    its id, ``base`` the defaults under its policy. After an error in ``report`` only its id may be used."""
    key = ItemKey.parse(item_key)
    reader = ObjectReader(raw, report, (*SERVICE_KEYS, "requires"))
    own_id = reader.read_name("id", "joke-service", default=key.name)
    request_queue = reader.read_topic("request-queue", _REQUEST)
    response_queue = reader.read_topic("response-queue", _RESPONSE)
    service = ServiceDescriptor(
        id=reader.add_namespace("id", own_id, namespace, MAX_NAME_CHARS),
        request_queue=request_queue,
        response_queue=response_queue,
        config_params=_config_params(reader),
        instances=_instances(reader, response_queue),
        version=reader.read_version(key),
        policy=check_policy(reader.read_object("policy", {"timeout": 10}), report, base),
        permissions=reader.read_permissions(),
    )
    if service.version is not None and service.instances:
        instances = tuple(
            msgspec.structs.replace(each, version=each.version or service.version) for each in service.instances
        )
        service = msgspec.structs.replace(service, instances=instances)
    _refuse_requires(reader)
    _check_queues(reader, service)
    if key.name and own_id and own_id != key.name:
        report.add_info(
            "id",
            f"the id '{excerpt(own_id)}' differs from the item's key '{excerpt(key.name)}'; tools refer to the id",
            "name the file after the id",
        )
    reader.warn_of_unknown_keys(_NOTES)
    return service


def _refuse_requires(reader: ObjectReader) -> None:
    if reader.raw.get("requires") is not None:
        reader.add_error(
            "requires",
            "'requires' belongs to a tool, and a service depends on no other one",
            "move 'requires' to the tools of the service, or remove it",
        )


def _config_params(reader: ObjectReader) -> tuple[ConfigParam, ...]:
    params: dict[str, ConfigParam] = {}
    for param in reader.read_objects("config-params", _PARAM_KEYS, {"name": "style", "required": False}):
        name = param.read_name("name", "style")
        if name and name in params:
            param.add_error("name", f"the config param '{excerpt(name)}' is declared twice", "remove one of them")
        params[name] = ConfigParam(name, bool(param.read_flag("required")))
        param.warn_of_unknown_keys()
    return tuple(params.values())


def _instances(reader: ObjectReader, response_queue: str) -> tuple[Instance, ...]:
    instances: dict[str, Instance] = {}
    queues: dict[str, str] = {}
    example = {"id": "joke-1", "request-queue": f"{_REQUEST}-1", "response-queue": f"{_RESPONSE}-1"}
    for entry in reader.read_objects("instances", _INSTANCE_KEYS, example):
        instance = Instance(
            id=entry.read_name("id", "joke-1"),
            request_queue=entry.read_topic("request-queue", f"{_REQUEST}-1"),
            response_queue=entry.read_topic("response-queue", f"{_RESPONSE}-1", default=response_queue),
            weight=entry.read_positive_number("weight", 1),
            version=entry.read_version(ItemKey("", None)),
        )
        if instance.id and instance.id in instances:
            entry.add_error(
                "id", f"the instance id '{excerpt(instance.id)}' is not unique", "give each instance its own id"
            )
        if instance.request_queue and instance.request_queue in queues:
            entry.report.add_warning(
                entry.path_of("request-queue"),
                f"the same topic as instance '{excerpt(queues[instance.request_queue])}', so the broker and not "
                "dispatch decides which of the two answers",
                "give each instance a topic of its own",
            )
        queues.setdefault(instance.request_queue, instance.id)
        instances[instance.id] = instance
        entry.warn_of_unknown_keys()
    return tuple(instances.values())


def _check_queues(reader: ObjectReader, service: ServiceDescriptor) -> None:
    # A service with one topic for both would receive its own replies as requests.
    answers = {service.response_queue, *(instance.response_queue for instance in service.instances)} - {""}
    requests = [("request-queue", service.request_queue)]
    requests += [(f"instances[{i}].request-queue", one.request_queue) for i, one in enumerate(service.instances)]
    for path, queue in requests:
        if queue in answers:
            reader.report.add_error(
                path,
                "requests and replies would use the same topic",
                f"use two topics, for example {_REQUEST!r} and {_RESPONSE!r}",
            )
