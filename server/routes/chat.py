"""POST /v1/chat/completions, and what shows the prompt it would answer: /apply-template and the count of its ids."""

from __future__ import annotations

from typing import Any

import falcon

from bloomery.server import fields
from bloomery.server.chat.request import ChatRequest, read_chat_request
from bloomery.server.chat.template import Rendered
from bloomery.server.fields import Route
from bloomery.server.render.chat import ChatRenderer, Continued
from bloomery.server.render.json_text import CONTENT_TYPE, json_bytes
from bloomery.server.render.openai import Frame, new_id
from bloomery.server.routes.following import answer_streamed, answer_whole, client_of, rendered, start
from bloomery.server.routes.generations import generations
from bloomery.server.routes.reading import flag, read_body
from bloomery.server.routes.service import BUILD, Service


class ChatCompletion:
    """The next message of a conversation."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer a conversation with one or several choices, whole or streamed."""
        model, facts = self._service.model, self._service.facts
        body = read_body(req)
        options = fields.read(body, Route.CHAT, self._service.limits)
        request, prompt = read_conversation(body, self._service)
        ids = tuple(prompt_ids(prompt, self._service))
        preserved = facts.preserved_ids(model.tokenizer)
        streams = start(req, self._service.scheduler, generations(options, ids, req.path, preserved))
        frame = Frame(id=new_id("chatcmpl"), model=model.name, fingerprint=BUILD, options=options)
        parsers = [request.parser(prompt, whole=not options.stream) for _ in range(options.n)]
        renderer = ChatRenderer(frame, parsers, _continued(request))
        objects = rendered(streams, client_of(req), renderer.render)
        if options.stream:
            answer_streamed(resp, objects, done=True)
        else:
            answer_whole(resp, objects, renderer.whole)


class ApplyTemplate:
    """The prompt of a conversation."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """The prompt as text, and as ids when `return_prompt_ids` asks for them."""
        body = read_body(req)
        with_ids = flag(body, "return_prompt_ids", False)
        _, prompt = read_conversation(body, self._service)
        answer: dict[str, Any] = {"prompt": prompt.text}
        if with_ids:
            answer["prompt_ids"] = prompt_ids(prompt, self._service)
        resp.content_type = CONTENT_TYPE
        resp.data = json_bytes(answer)


class ChatInputTokens:
    """How long the prompt of a conversation is."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """The number of the prompt's ids. As in llama-server, fields that do not shape the prompt are not read."""
        _, prompt = read_conversation(read_body(req), self._service)
        n_ids = len(prompt_ids(prompt, self._service))
        resp.content_type = CONTENT_TYPE
        resp.data = json_bytes({"input_tokens": n_ids, "object": "response.input_tokens"})


def read_conversation(body: dict[str, Any], service: Service) -> tuple[ChatRequest, Rendered]:
    """A chat request and its prompt.  Raises a named 400."""
    request = read_chat_request(body, service.facts)
    return request, request.render(service.model.template)


def prompt_ids(prompt: Rendered, service: Service) -> list[int]:
    """The ids of a rendered prompt, in which a client's text has no special token."""
    return service.model.tokenizer.encode_spans(prompt.spans, add_special=True)


def _continued(request: ChatRequest) -> Continued:
    message = request.continued
    if message is None:
        return Continued()
    reasoning = message.get("reasoning_content", "")
    if reasoning and message["content"] and request.facts.think is not None:
        # The prompt closes the span before the content, in the template's layout.
        reasoning += request.facts.think.before_close
    return Continued(content=message["content"], reasoning=reasoning)
