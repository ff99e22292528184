"""What the server says of itself: GET /health, /slots and /metrics."""

from __future__ import annotations

from typing import Any

import falcon

from bloomery.server.errors import unavailable
from bloomery.server.metrics import Metric
from bloomery.server.render.json_text import CONTENT_TYPE, json_bytes
from bloomery.server.render.settings import slot_params
from bloomery.server.routes.service import Service
from bloomery.server.slot import SlotView


class Health:
    """Whether requests can be answered. Public, and never waits."""

    def __init__(self, service: Service) -> None:
        self._scheduler = service.scheduler

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """ok, or the reason why nothing can be answered any more."""
        failed = self._scheduler.failed
        resp.content_type = CONTENT_TYPE
        if failed is not None:
            resp.status = falcon.HTTP_503
        resp.data = json_bytes({"status": "ok"} if failed is None else {"status": "error", "reason": failed})


class Slots:
    """The slots and what runs in them."""

    def __init__(self, service: Service) -> None:
        self._scheduler = service.scheduler

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Every slot; with `fail_on_no_slot` in the query a 503 when none is idle."""
        views = self._scheduler.slots()
        if "fail_on_no_slot" in req.params and all(view.is_processing for view in views):
            raise unavailable("no slot available", retry_after=1)
        resp.content_type = CONTENT_TYPE
        resp.data = json_bytes([slot_json(view) for view in views])


def slot_json(view: SlotView) -> dict[str, Any]:
    """One slot in llama-server's shape, and `n_past`; its request is there once it had one."""
    slot = {
        "id": view.id,
        "n_ctx": view.n_ctx,
        "speculative": False,
        "is_processing": view.is_processing,
        "n_past": view.n_past,
    }
    if view.generation is None:
        return slot
    token = {
        "has_next_token": view.has_next_token,
        "has_new_line": view.has_new_line,
        "n_remain": view.n_remain,
        "n_decoded": view.n_decoded,
    }
    return slot | {
        "id_task": view.task_id,
        # llama-server's name for the ids in the slot's sequence, which a running request's own ids join.
        "n_prompt_tokens": view.n_past,
        "n_prompt_tokens_processed": view.n_evaluated,
        "n_prompt_tokens_cache": view.n_reused,
        "params": slot_params(view.generation),
        "next_token": [token],
    }


class Metrics:
    """Counters and gauges in Prometheus's text format."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Everything that is counted; a scrape resets nothing."""
        resp.content_type = "text/plain; version=0.0.4"
        resp.set_header("Process-Start-Time-Unix", str(self._service.started))
        resp.text = metrics_text(self._service.scheduler.metrics())


def metrics_text(metrics: tuple[Metric, ...]) -> str:
    """The exposition of metrics; those of one name stand together under one description."""
    lines: list[str] = []
    described = ""
    for metric in metrics:
        name = f"llamacpp:{metric.name}"
        if name != described:
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
            described = name
        labels = ",".join(f'{label}="{value}"' for label, value in metric.labels)
        lines.append(f"{name}{{{labels}}} {metric.value}" if labels else f"{name} {metric.value}")
    return "\n".join(lines) + "\n"
