"""The models this server serves: GET /v1/models, /v1/models/{model}, /api/tags and /props, and POST /api/show."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_to_bytes

import falcon

from bloomery.interface.tokenizer import Tokenizer
from bloomery.server.chat.caps import template_caps
from bloomery.server.errors import ApiError, invalid_request, not_found
from bloomery.server.field_types import kind
from bloomery.server.render.json_text import CONTENT_TYPE, json_bytes
from bloomery.server.render.settings import default_params
from bloomery.server.routes.reading import read_body
from bloomery.server.routes.service import BUILD, Service

_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


def capabilities(service: Service) -> list[str]:
    """What a model can do, in Ollama's words."""
    return ["completion", "tools"] if service.facts.parses_calls else ["completion"]


def model_entry(service: Service) -> dict[str, Any]:
    """OpenAI's entry of the model, with llama-server's keys."""
    model = service.model
    return {
        "id": model.name,
        "aliases": [model.name],
        "tags": [],
        "object": "model",
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "created": service.started,
        "owned_by": "bloomery",
        "meta": dict(model.meta),
    }


def ollama_entry(service: Service) -> dict[str, Any]:
    """Ollama's entry of the model, whose clients read a time and a number of bytes."""
    model = service.model
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _modified_at(service),
        "size": model.meta["size"],
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": capabilities(service),
        "parameters": "",
        "details": _details(service),
    }


def ollama_facts(service: Service) -> dict[str, Any]:
    """What Ollama's clients are shown of the model: its template, its file, its context and what it can do."""
    model = service.model
    architecture = model.description.spec.architecture
    return {
        "template": model.template.source.removesuffix("\n"),
        "details": _details(service),
        "model_info": {
            "general.architecture": architecture,
            "general.parameter_count": model.meta["n_params"],
            f"{architecture}.context_length": model.n_ctx,
        },
        "capabilities": capabilities(service),
        "modified_at": _modified_at(service),
    }


def _details(service: Service) -> dict[str, Any]:
    architecture = service.model.description.spec.architecture
    return {
        "parent_model": "",
        "format": "gguf",
        "family": architecture,
        "families": [architecture],
        "parameter_size": "",
        "quantization_level": service.model.file_type,
    }


def _modified_at(service: Service) -> str:
    # As `created` of OpenAI's entry: the start of the server, in RFC 3339's form.
    return datetime.fromtimestamp(service.started, UTC).isoformat().replace("+00:00", "Z")


class Models:
    """The list of models."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Every model, once in Ollama's shape and once in OpenAI's."""
        document = {
            "models": [ollama_entry(self._service)],
            "object": "list",
            "data": [model_entry(self._service)],
        }
        resp.content_type = CONTENT_TYPE
        resp.data = json_bytes(document)


class ModelLookup:
    """One model by its name."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def on_get(self, req: falcon.Request, resp: falcon.Response, model: str) -> None:
        """The entry of the model named in the path."""
        name = name_in_path(req) or model
        if name != self._service.model.name:
            raise _unserved(name, self._service)
        resp.content_type = CONTENT_TYPE
        resp.data = json_bytes(model_entry(self._service))


class Show:
    """One model by its name, for Ollama's clients."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """The facts of the model named in `model`, letter for letter."""
        name = read_body(req).get("model")
        if not isinstance(name, str):
            missing = "is required" if name is None else f"type must be string, but is {kind(name)}"
            raise invalid_request(f"Field 'model': {missing}", "model")
        if name != self._service.model.name:
            raise _unserved(name, self._service)
        resp.content_type = CONTENT_TYPE
        resp.data = json_bytes(ollama_facts(self._service))


def _unserved(name: str, service: Service) -> ApiError:
    return not_found(f'model "{name[:200]}" not found; this server serves: {service.model.name}')


def name_in_path(req: falcon.Request) -> str:
    """The model's name as the client spelled it in the path, percent-decoded once; a `+` is a plus.

    Read from the request line, as a decoded path no longer tells a slash from `%2F`. Raises a 400 for an escape that is
    none and for bytes that are no UTF-8.
    """
    line = req.env.get("REQUEST_URI") or req.env.get("RAW_URI") or ""
    spelled = line.partition("?")[0].partition("/models/")[2]
    if _BAD_ESCAPE.search(spelled):
        raise invalid_request("the model's name in the path has an invalid percent-encoding")
    try:
        return unquote_to_bytes(spelled.encode("latin-1")).decode()
    except UnicodeError:
        raise invalid_request("the model's name in the path is not UTF-8") from None


class Props:
    """What the server runs, and with which settings."""

    def __init__(self, service: Service, routes: Sequence[str]) -> None:
        self._service = service
        self._routes = list(routes)
        self._caps = template_caps(service.model.template, service.facts)

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """llama-server's properties and this server's own."""
        resp.content_type = CONTENT_TYPE
        resp.data = json_bytes(self._document())

    def _document(self) -> dict[str, Any]:
        model = self._service.model
        tokenizer, template, facts = model.tokenizer, model.template, self._service.facts
        return {
            "default_generation_settings": {"params": default_params(), "n_ctx": model.n_ctx},
            "total_slots": model.n_parallel,
            "model_alias": model.name,
            "model_ftype": model.file_type,
            "model_path": model.path,
            "modalities": {"vision": False, "video": False, "audio": False},
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "ui": False,
            "ui_settings": {},
            # A template's last line end is none of its text, in Jinja as in llama-server.
            "chat_template": template.source.removesuffix("\n"),
            "chat_template_caps": self._caps,
            "thinking_off": facts.thinking_off,
            "bos_token": _text_of(tokenizer, tokenizer.bos_id),
            "eos_token": _text_of(tokenizer, tokenizer.eos_id),
            "build_info": BUILD,
            "is_sleeping": False,
            "cors_proxy_enabled": False,
            "n_ctx": model.n_ctx,
            "routes": self._routes,
            "engine": self._engine(),
        }

    def _engine(self) -> dict[str, Any]:
        model = self._service.model
        spec = model.description.spec
        return {
            "name": "bloomery",
            "engine": model.engine.name,
            "numerics": model.engine.options.numerics,
            "version": BUILD.partition("-")[2],
            "model": {
                "format": "gguf",
                "arch": spec.architecture,
                "quant": model.file_type,
                "bytes": model.file.tensor_bytes,
                "files": len(model.file.paths),
                "n_layers": len(spec.layers),
                "ctx_train": spec.n_ctx_train,
            },
            "server_pid": os.getpid(),
        }


def _text_of(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.detokenize([token])
