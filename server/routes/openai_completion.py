"""POST /v1/completions: OpenAI's text completion."""

from __future__ import annotations

import falcon

from bloomery.server import fields
from bloomery.server.fields import Route
from bloomery.server.render.openai import Frame, new_id
from bloomery.server.render.openai_completion import TextCompletionRenderer, whole
from bloomery.server.routes.following import answer_streamed, answer_whole, client_of, rendered, start
from bloomery.server.routes.generations import generations
from bloomery.server.routes.prompts import read_prompt
from bloomery.server.routes.reading import read_body
from bloomery.server.routes.service import BUILD, Service


class TextCompletion:
    """Texts after a prompt, in OpenAI's shape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer a completion of one or several choices, whole or streamed."""
        model = self._service.model
        body = read_body(req)
        options = fields.read(body, Route.COMPLETIONS, self._service.limits)
        prompt = read_prompt(body, model.tokenizer)
        streams = start(req, self._service.scheduler, generations(options, prompt, req.path))
        frame = Frame(id=new_id("cmpl"), model=model.name, fingerprint=BUILD, options=options)
        objects = rendered(streams, client_of(req), TextCompletionRenderer(frame, model.tokenizer).render)
        if options.stream:
            answer_streamed(resp, objects, done=True)
        else:
            answer_whole(resp, objects, whole)
