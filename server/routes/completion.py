"""POST /completion and /completions: llama-server's own completion."""

from __future__ import annotations

from functools import partial

import falcon

from bloomery.server import fields
from bloomery.server.fields import Route
from bloomery.server.render.completion import CompletionFacts, CompletionRenderer, whole
from bloomery.server.routes.following import answer_streamed, answer_whole, client_of, rendered, start
from bloomery.server.routes.generations import generations
from bloomery.server.routes.prompts import read_prompt
from bloomery.server.routes.reading import read_body
from bloomery.server.routes.service import Service


class Completion:
    """One text after a prompt, with everything this server knows about it."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer a completion, whole or streamed."""
        model = self._service.model
        body = read_body(req)
        options = fields.read(body, Route.COMPLETION, self._service.limits)
        prompt = read_prompt(body, model.tokenizer)
        streams = start(req, self._service.scheduler, generations(options, prompt, req.path))
        facts = CompletionFacts(
            model=model.name,
            options=options,
            prompt=model.tokenizer.detokenize(prompt),
            n_prompt=len(prompt),
            banned=tuple(sorted(model.tokenizer.eog_ids)) if options.asked.ignore_eos else (),
        )
        renderer = CompletionRenderer(facts, model.tokenizer)
        objects = rendered(streams, client_of(req), lambda _choice, event: renderer.render(event))
        if options.stream:
            answer_streamed(resp, objects, done=False)
        else:
            answer_whole(resp, objects, partial(whole, options=options))
