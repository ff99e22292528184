"""Faults in the server: stops, reasons, usage, probabilities, streams, errors, markup, slots, fields."""

from __future__ import annotations

from tools.planted_faults.fault import Fault


def _fault(name: str, file: str, recorded: str, old: str, new: str) -> Fault:
    """A fault that recorded exchanges of a real llama-server show."""
    return Fault(
        name=name,
        area="server",
        file=f"server/{file}.py",
        old=old,
        new=new,
        run=("-k", f'"http-{recorded} exchanges"'),
        caught_by=f"http-{recorded}: exchanges",
    )


def _law(name: str, file: str, law: str, old: str, new: str) -> Fault:
    """A fault that breaks a law of serving."""
    return Fault(
        name=name,
        area="server",
        file=f"server/{file}.py",
        old=old,
        new=new,
        run=("-k", f'"laws {law}"'),
        caught_by=f"laws: {law}",
    )


FAULTS = (
    _fault(
        "text that could become a stop is released",
        "stops",
        "text",
        'return "" if any(matcher.matched for matcher in self._matchers) else self.flush()',
        "return self.flush()",
    ),
    _fault(
        "a stop takes the character before it along",
        "stops",
        "text",
        "released = self._held[: at + 1 - len(self.found)]",
        "released = self._held[: at - len(self.found)]",
    ),
    _law(
        "a stop that repeats its own beginning is missed",
        "stops",
        "stops end the text",
        "self._border.append(border + (self.word[border] == last))",
        "self._border.append(0)",
    ),
    _fault(
        "an answer at its limit says that it stopped", "render/openai", "text", '"limit": "length"}', '"limit": "stop"}'
    ),
    _fault(
        "a called tool is an ordinary stop",
        "render/chat",
        "calls",
        '"tool_calls" if self._called and reason == "stop" else reason',
        "reason",
    ),
    _fault(
        "the prompt is missing in the total",
        "render/openai",
        "text",
        '"total_tokens": first.n_prompt + completion',
        '"total_tokens": completion',
    ),
    _fault(
        "cached ids are those that were computed",
        "render/openai",
        "text",
        '{"cached_tokens": first.timings.cache_n}',
        '{"cached_tokens": first.timings.prompt_n}',
    ),
    _fault(
        "log-probabilities come a chunk early",
        "render/chat",
        "text",
        "self._take_logprobs(chunks[-1])\n        return chunks\n\n    def _finish",
        "self._take_logprobs(chunks[0])\n        return chunks\n\n    def _finish",
    ),
    _fault(
        "an event ends with one line break",
        "sse",
        "text",
        'json_bytes(payload) + b"\\n\\n"',
        'json_bytes(payload) + b"\\n"',
    ),
    _fault(
        "a chat's stream does not say that it is done",
        "routes/chat",
        "text",
        "answer_streamed(resp, objects, done=True)",
        "answer_streamed(resp, objects, done=False)",
    ),
    _fault(
        "an unknown page is an invalid request",
        "errors",
        "refusals",
        'ApiError(404, "not_found_error", message)',
        'ApiError(404, "invalid_request_error", message)',
    ),
    _fault(
        "a prompt may fill the context to its last cell",
        "scheduler",
        "refusals",
        "if n_prompt >= self._n_ctx:",
        "if n_prompt > self._n_ctx:",
    ),
    _fault(
        "an answer is one id too long",
        "answer",
        "text",
        "elif 0 <= n_predict <= self.n_decoded:",
        "elif 0 <= n_predict < self.n_decoded:",
    ),
    _fault(
        "a prompt that is wholly cached has nothing left to compute",
        "slot",
        "text",
        "common_prefix(self.sequence.ids, prompt), len(prompt) - 1)",
        "common_prefix(self.sequence.ids, prompt), len(prompt))",
    ),
    _fault(
        "the prompt cache cannot be turned off",
        "slot",
        "text",
        "        if running.generation.cache_prompt:\n",
        "        if True:\n",
    ),
    _law(
        "a cached prefix is taken to be one id longer",
        "slot",
        "a cached prefix changes nothing",
        "    at = min(at, shorter)\n",
        "    at = min(at + 1, shorter)\n",
    ),
    _fault(
        "max_completion_tokens is not read",
        "fields",
        "text",
        'also=("max_completion_tokens", "max_tokens"),',
        'also=("max_tokens",),',
    ),
    _fault("logprobs come with 5 alternatives", "fields", "text", "ALTERNATIVES = 20", "ALTERNATIVES = 5"),
    _fault(
        "a temperature that is left out is the default one",
        "fields",
        "probabilities",
        '"temperature": {"temperature": 1.0},',
        '"temperature": {"temperature": 0.8},',
    ),
    _law(
        "the prompt's ids carry no penalty",
        "answer",
        "penalties see the prompt",
        "        self._sampler.accept_all(generation.prompt)\n",
        "",
    ),
    _fault(
        "post_sampling_probs reports the model's own",
        "answer",
        "probabilities",
        "if after_sampling:\n            own",
        "if after_sampling and False:\n            own",
    ),
    _fault(
        "a thought is content",
        "chat/think",
        "think",
        "return [ReasoningDelta(spaces + text)]",
        "return [ContentDelta(spaces + text)]",
    ),
    _fault(
        "the line ends behind a thought stay in the content",
        "chat/think",
        "think",
        "self._layout = _Layout(self._tags.after_close, all_space=self._all_space)",
        'self._layout = _Layout("", all_space=False)',
    ),
    _fault(
        "the second call has the first one's number",
        "chat/hermes",
        "calls",
        "        self._count += 1\n        return [CallEnd(self._count - 1)]",
        "        return [CallEnd(self._count)]",
    ),
    _fault(
        "parts of a content run together",
        "chat/messages",
        "tokenizer",
        'return "\\n".join(dropwhile(operator.not_, texts))',
        'return "".join(dropwhile(operator.not_, texts))',
    ),
    _fault(
        "a developer's message keeps a role that the template does not know",
        "chat/messages",
        "tokenizer",
        '"role": "system" if role == "developer" and not self._facts.keeps_developer else role,',
        '"role": role,',
    ),
    _fault(
        "a client can write the marks of a turn", "chat/guard", "refusals", "not run[0].startswith(CLIENT))", "True)"
    ),
    _fault(
        "X-Api-Key is not looked at",
        "auth",
        "keys",
        'headers.get("AUTHORIZATION") or headers.get("X_API_KEY") or ""',
        'headers.get("AUTHORIZATION") or ""',
    ),
    _fault(
        "every page is public",
        "auth",
        "keys",
        'method == "OPTIONS" or path in PUBLIC_PATHS',
        'method in {"OPTIONS", "GET"} or path in PUBLIC_PATHS',
    ),
    _fault(
        "an id without its character's end is an event",
        "render/characters",
        "text",
        "return bool(token.text)",
        "return True",
    ),
    _fault(
        "a piece shows half a character",
        "render/probabilities",
        "text",
        'piece[: complete_length(piece)].decode("utf-8", "replace")',
        'piece.decode("utf-8", "replace")',
    ),
    _fault(
        "/slots counts the prompt where the sequence is meant",
        "routes/status",
        "status",
        '"n_prompt_tokens": view.n_past,',
        '"n_prompt_tokens": view.n_evaluated,',
    ),
    _fault(
        "tokenize does not parse special tokens unless asked",
        "routes/text",
        "tokenizer",
        '"parse_special", True)',
        '"parse_special", False)',
    ),
    _law(
        "a client that went away is generated for to the end",
        "routes/following",
        "a left stream frees its slot",
        "            stream.cancel()\n",
        "            del stream\n",
    ),
    _fault(
        "a thought comes under another key",
        "render/chat",
        "think",
        'chunks.append(self._chunk({"reasoning_content": delta.text}))',
        'chunks.append(self._chunk({"reasoning": delta.text}))',
    ),
    _law(
        "every choice draws with the same seed",
        "routes/generations",
        "choices of a seed",
        "seed=sampling.seed + choice)",
        "seed=sampling.seed)",
    ),
    _law(
        "usage counts one choice of several",
        "render/openai",
        "choices of a seed",
        "completion = sum(finish.n_decoded for finish in finishes.values())",
        "completion = first.n_decoded",
    ),
)
