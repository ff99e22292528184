"""The application: routes, and what every answer has in common whatever became of its request."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import falcon

from bloomery.server.chat.facts import read_facts
from bloomery.server.errors import ApiError, invalid_request, not_found, server_error
from bloomery.server.model import ServedModel
from bloomery.server.render.errors import error_body, error_headers
from bloomery.server.routes.chat import ApplyTemplate, ChatCompletion, ChatInputTokens
from bloomery.server.routes.completion import Completion
from bloomery.server.routes.following import ClientGoneError
from bloomery.server.routes.models import ModelLookup, Models, Props, Show
from bloomery.server.routes.openai_completion import TextCompletion
from bloomery.server.routes.service import Service
from bloomery.server.routes.status import Health, Metrics, Slots
from bloomery.server.routes.text import Detokenize, Tokenize
from bloomery.server.scheduler import Scheduler
from bloomery.server.settings import Settings

_LOG = logging.getLogger("bloomery.server")
_LONGEST_ECHO = 200


class Application(falcon.App):  # type: ignore[type-arg]
    """Falcon's WSGI application, which answers HEAD as GET without the body."""

    def __call__(self, env: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request."""
        if env["REQUEST_METHOD"] != "HEAD":
            return super().__call__(env, start_response)
        body = super().__call__({**env, "REQUEST_METHOD": "GET"}, start_response)
        if close := getattr(body, "close", None):
            close()
        return []


class CrossOrigin:
    """Lets pages of any origin call the server, as llama-server does; OPTIONS on any path is answered here."""

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer a preflight request."""
        resp.set_header("Access-Control-Allow-Origin", req.get_header("Origin", default=""))
        if req.method == "OPTIONS":
            resp.set_header("Access-Control-Allow-Credentials", "true")
            resp.set_header("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
            resp.set_header("Access-Control-Allow-Headers", "*")
            resp.content_type = "text/html"
            resp.text = ""
            resp.complete = True


def make_app(model: ServedModel, scheduler: Scheduler, settings: Settings) -> Application:
    """The application that serves a model through a started scheduler."""
    facts = read_facts(model.template, model.tokenizer)
    service = Service(model=model, facts=facts, scheduler=scheduler, queue_depth=settings.waiting(model.n_parallel))
    resources: dict[str, Any] = {
        "/health": (health := Health(service)),
        "/v1/health": health,
        "/models": (models := Models(service)),
        "/v1/models": models,
        "/models/{model:path}": (lookup := ModelLookup(service)),
        "/v1/models/{model:path}": lookup,
        "/api/tags": models,
        "/api/show": Show(service),
        "/slots": Slots(service),
        "/metrics": Metrics(service),
        "/tokenize": Tokenize(service),
        "/detokenize": Detokenize(service),
        "/apply-template": ApplyTemplate(service),
        "/completion": (completion := Completion(service)),
        "/completions": completion,
        "/v1/completions": TextCompletion(service),
        "/chat/completions": (chat := ChatCompletion(service)),
        "/v1/chat/completions": chat,
        "/chat/completions/input_tokens": (count := ChatInputTokens(service)),
        "/v1/chat/completions/input_tokens": count,
    }
    served = [path.replace(":path", "") for path in ("/props", *resources)]
    resources["/props"] = Props(service, served)
    app = Application(middleware=[CrossOrigin()])
    for path, resource in resources.items():
        app.add_route(path, resource)
    add_error_answers(app, served)
    return app


def add_error_answers(app: Application, served: Iterable[str]) -> None:
    """Answer everything that goes wrong with llama-server's error object."""
    routes = ", ".join(served)

    def on_api_error(_req: falcon.Request, resp: falcon.Response, error: ApiError, _params: Mapping[str, Any]) -> None:
        _answer(resp, error)

    def on_http_error(
        req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError, _params: Mapping[str, Any]
    ) -> None:
        # A method that a path does not have is as unknown to llama-server as the path.
        if error.status_code in {404, 405}:
            where = f"{req.method} {req.path[:_LONGEST_ECHO]}"
            _answer(resp, not_found(f"File Not Found: {where}; this server serves: {routes}"))
        else:
            _answer(resp, invalid_request(error.title or "the request is not valid"))

    def on_client_gone(
        _req: falcon.Request, resp: falcon.Response, _error: ClientGoneError, _params: Mapping[str, Any]
    ) -> None:
        resp.status = "499 Client Closed Request"

    def on_unexpected(req: falcon.Request, resp: falcon.Response, error: Exception, _params: Mapping[str, Any]) -> None:
        _LOG.error("%s %r ended in an unexpected error", req.method, req.path[:_LONGEST_ECHO], exc_info=error)
        _answer(resp, server_error("the server met an unexpected condition; its log has the details"))

    app.add_error_handler(Exception, on_unexpected)
    app.add_error_handler(falcon.HTTPError, on_http_error)
    app.add_error_handler(ApiError, on_api_error)
    app.add_error_handler(ClientGoneError, on_client_gone)


def _answer(resp: falcon.Response, error: ApiError) -> None:
    resp.status = falcon.code_to_http_status(error.code)
    resp.data = error_body(error)
    for name, value in error_headers(error).items():
        resp.set_header(name, value)
