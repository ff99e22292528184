"""The tokenizer's routes: POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

import falcon

from bloomery.interface.tokenizer import piece_json
from bloomery.server.errors import invalid_request
from bloomery.server.field_types import kind
from bloomery.server.render.json_text import CONTENT_TYPE, json_bytes
from bloomery.server.routes.reading import flag, read_body
from bloomery.server.routes.service import Service


class Tokenize:
    """Text to ids."""

    def __init__(self, service: Service) -> None:
        self._tokenizer = service.model.tokenizer

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """`content` as ids; with `with_pieces` each with its text, or its bytes where they are no text alone."""
        body = read_body(req)
        content = body.get("content")
        if not isinstance(content, str):
            missing = "is required" if content is None else f"type must be string, but is {kind(content)}"
            raise invalid_request(f"Field 'content': {missing}", "content")
        ids = self._tokenizer.encode(
            content, add_special=flag(body, "add_special", False), parse_special=flag(body, "parse_special", True)
        )
        tokens: list[Any] = ids
        if flag(body, "with_pieces", False):
            tokens = [{"id": token, "piece": piece_json(self._tokenizer.token_to_piece(token))} for token in ids]
        resp.content_type = CONTENT_TYPE
        resp.data = json_bytes({"tokens": tokens})


class Detokenize:
    """Ids to text."""

    def __init__(self, service: Service) -> None:
        self._tokenizer = service.model.tokenizer

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """The text of `tokens`, which is empty when the field is missing."""
        tokens = read_body(req).get("tokens", [])
        if not isinstance(tokens, list):
            raise invalid_request(f"Field 'tokens': type must be array, but is {kind(tokens)}", "tokens")
        for token in tokens:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self._tokenizer.n_vocab:
                raise invalid_request(
                    f"Field 'tokens': {str(token)[:40]} is no token id;"
                    f" the vocabulary's are 0 to {self._tokenizer.n_vocab - 1}",
                    "tokens",
                )
        resp.content_type = CONTENT_TYPE
        resp.data = json_bytes({"content": self._tokenizer.detokenize(tokens)})
