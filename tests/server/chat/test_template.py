"""Templates: transformers' environment, its bounds, and what a hostile file cannot do."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bloomery.server.chat.template import CHATML, LONGEST_SOURCE, ChatTemplate, ChatTemplateError
from bloomery.server.errors import ApiError
from tests.server.chat.templates import HERMES

_HELLO = [{"role": "user", "content": "hello"}]


def _render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    template = ChatTemplate(source, now=lambda: datetime(2024, 2, 29, 13, 5))
    return template.render(_HELLO if messages is None else messages, None, True, **variables).text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  a\n{% endif %}\n  b", "  a\n  b"),
        ("{% for i in range(9) %}{% if i==1 %}{% continue %}{% elif i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
         "02"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "ahellob"),
        ("{{ {'a': '<é>', 'b': [1, 2.5, true, none]} | tojson }}", '{"a": "<é>", "b": [1, 2.5, true, null]}'),
        ("{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, sort_keys=true) }}", '{"a": "\\u00e9", "b": 1}'),
        ("{{ [1, {}] | tojson(separators=(',', ':')) }}{{ [] | tojson(indent=2) }}", "[1,{}][]"),
        ("{{ {'a': [1, 2]} | tojson(indent=2) }}", '{\n  "a": [\n    1,\n    2\n  ]\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "29 Feb 2024"),
        ("{{ datetime }}|{{ date_string }}", "Feb 29 2024|29 Feb 2024"),
        ("{{ messages[0]['content'][1:3] }}{{ messages[-1].content.split('l') | join('-') }}", "elhe--o"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('a') ~ m(1) }}", "[a][1]"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{{ nothing.at.all }}{{ nothing is defined }}", "False"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is not number else x }}{% endfor %}", "123"),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '{:>4}|{b}'.format('x', b=2) }}", "a-007   x|2"),
        ("{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{% endfor %}",
         "TrueTrue11"),
    ],
)  # fmt: skip
def test_transformers_environment(source: str, expected: str) -> None:
    assert _render(source) == expected


def test_a_template_refuses_a_conversation_with_its_own_message() -> None:
    with pytest.raises(ApiError) as caught:
        _render("{{ raise_exception('roles must alternate: ' ~ messages[0].role) }}")
    assert (caught.value.code, caught.value.type, caught.value.param) == (400, "invalid_request_error", "messages")
    assert "roles must alternate: user" in caught.value.message


@pytest.mark.parametrize("source", ["{% if %}", "{{ x | nofilter }}", "{% for x in y %}", "{{ " + "(" * 9000])
def test_a_source_that_is_no_template_is_refused_at_load(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="--chat-template-file"):
        ChatTemplate(source)


def test_a_source_that_is_too_long_is_refused_at_load() -> None:
    with pytest.raises(ChatTemplateError, match=str(LONGEST_SOURCE)):
        ChatTemplate("a" * (LONGEST_SOURCE + 1))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "too many steps"),
        ("{{ 'a' * 300000000 }}", "too much text"),
        ("{{ [1] * 999999999 }}", "too much text"),
        ("{% set ns = namespace(x='aaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
         "too much text"),
        ("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
         "too much text"),
        ("{{ ('a' * 99999).replace('a', 'b' * 99999) }}", "too much text"),
        ("{{ ('a' * 9000000) | list | length }}", "too much text"),
        ("{{ 9 ** 999999999 }}", "bits"),
        ("{% set ns = namespace(x=3) %}{% for i in range(999) %}{% set ns.x = ns.x * ns.x %}{% endfor %}", "bits"),
        ("{{ '%999999999d' % 1 }}", "digits"),
        ("{{ '%*d' % (999999999, 1) }}", "digits"),
        ("{{ '{:>999999999}'.format('a') }}", "digits"),
        ("{{ 'a' | indent(999999999) }}", "indents"),
        ("{{ [1] | tojson(indent=999999999) }}", "indents"),
        ("{{ 1.5 | round(999999999, 'ceil') }}", "digits"),
        ("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "too deep"),
        ("{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}", "too deep"),
        ("{% set n = namespace(x=[1]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson }}",
         "too deep"),
        ("{{ range(99999999) | length }}", "OverflowError"),
        ("{{ 'a'.ljust(999999999) }}", "SecurityError"),
        ("{{ (5).to_bytes(999999999, 'big') }}", "SecurityError"),
        ("{{ dict.fromkeys(range(9)) }}", "no attribute"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ messages[0].update(role='system') }}", "SecurityError"),
        ("{{ messages[0].content.encode('utf-8') }}", "SecurityError"),
        ("{{ [1]['copy'].__self__.clear() }}", "SecurityError"),
        ("{% include 'other' %}", "loader"),
    ],
)  # fmt: skip
def test_a_render_is_bounded(source: str, reason: str) -> None:
    with pytest.raises(ApiError, match=reason) as caught:
        _render(source)
    assert caught.value.code == 400


_ESCAPES = [
    "{{ cycler.__init__.__globals__.os.system('touch ' ~ path) }}",
    "{{ joiner.__init__.__globals__['__builtins__'].open(path, 'w') }}",
    "{{ namespace.__init__.__globals__.os.system('touch ' ~ path) }}",
    "{{ self.__init__.__globals__.__builtins__.open(path, 'w') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__mro__'][1]['__subclasses__']() }}",
    "{{ messages | map(attribute='__class__') | list | first }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{{ '{0.__class__}'.format_map({'0': messages}) }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__[0].cell_contents }}",
    "{{ (messages | attr('__class__')) }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "{% set x = messages.__class__ %}{{ x.__init__.__globals__ }}",
    "{{ range.__self__ }}{{ loop.__class__ }}{{ dict.mro() }}",
    "{% for m in messages %}{{ loop._iterable.__class__ }}{{ loop.__init__.__globals__.os }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m._environment.from_string }}{{ m.__call__.__globals__ }}",
]


@pytest.mark.parametrize("source", _ESCAPES)
def test_a_template_reaches_nothing_outside(source: str, tmp_path: Path) -> None:
    canary = tmp_path / "touched"
    try:
        shown = _render(source, path=str(canary))
    except (ApiError, ChatTemplateError) as error:
        shown = str(error)
    assert not canary.exists()
    assert "<class" not in shown and "__builtins__" not in shown and "object at" not in shown


def test_the_text_that_a_tokenizer_adds_is_left_out() -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"

    def text(content: str = "x", **adds: bool) -> str:
        template = ChatTemplate(source, bos_token="<s>", eos_token="</s>", **adds)
        return template.render([{"role": "user", "content": content}]).text

    assert text() == "<s>x</s>"
    assert text(add_bos=True, add_eos=True) == "x"
    # Once, and only what the template wrote.
    assert text("<s>", add_bos=True) == "<s></s>"
    plain = ChatTemplate("{{ messages[0].content }}", bos_token="<s>", add_bos=True)
    assert plain.render([{"role": "user", "content": "<s>x"}]).text == "<s>x"


def test_variables_win_over_the_conversation() -> None:
    assert _render("{{ bos_token }}{{ messages[0].content }}", bos_token="B", messages=[{"content": "m"}]) == "Bm"


def test_one_template_renders_on_many_threads() -> None:
    template = ChatTemplate(HERMES)
    wanted = {text: template.render([{"role": "user", "content": text}]).text for text in map(str, range(8))}
    found: dict[str, set[str]] = {text: set() for text in wanted}

    def render(text: str) -> None:
        found[text] = {template.render([{"role": "user", "content": text}]).text for _ in range(20)}

    threads = [threading.Thread(target=render, args=(text,)) for text in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {text: {prompt} for text, prompt in wanted.items()}


def test_a_file_without_a_template_speaks_chatml() -> None:
    assert _render(CHATML) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


_NEST = (
    "{% set ns = namespace(a=[1], b=[1]) %}"
    "{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
)
_NESTED_TUPLE = "{% set ns = namespace(a=(1,)) %}{% for i in range(40) %}{% set ns.a = (ns.a, ns.a) %}{% endfor %}"
_HOSTILE = [
    "{{ [1] | batch(1000000000, 0) | list | length }}",
    "{{ [1] | slice(1000000000) | list | length }}",
    "{{ ('a ' * 10000000) | title }}",
    "{{ ('a ' * 10000000) | wordcount }}",
    "{{ ('\\n' * 20000000).splitlines() | length }}",
    "{{ ('a ' * 10000000).split() | length }}",
    "{{ 'a' * 9999999 ~ 'b' * 9999999 }}",
    "{{ ('a' * 1000000).split('a') | unique | list }}",
    "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = (ns.x, ["
    + "0," * 1000
    + "]) %}{% endfor %}",
    "{% set s = 'a' * 1000000 %}{{ ([s] * 99999) | sort | length }}",
    "{% set s = 'a' * 1000000 %}{{ ([s] * 99999) | tojson | length }}",
    "{{ ('a' * 1000000).rfind('b' + 'a' * 500000) }}",
    "{{ ('a' * 1000000).strip('b' * 1000000 + 'c') }}",
    "{% set s = 'a' * 1000000 %}{{ s ~ 'b' in [s ~ 'c'] * 99999 }}",
    "{{ '%999d' * 9999 % ((1,) * 9999) }}{{ '%999d' * 30000 % ((1,) * 30000) }}",
    "{% macro f() %}{% for i in range(99999) %}"
    + "a{% if 1 %}b{% endif %}" * 1000
    + "{% endfor %}{% endmacro %}{{ f() }}",
    _NESTED_TUPLE + "{{ {ns.a: 1} | length }}",
    _NESTED_TUPLE + "{{ {}.get(ns.a) }}{{ dict([(ns.a, 1)]) }}",
    _NESTED_TUPLE + "{{ {}[ns.a] }}",
    _NESTED_TUPLE + "{{ [ns.a] | unique }}",
    _NEST + "{{ ns.a == ns.b }}",
    _NEST + "{{ ns.a < ns.b < ns.a }}",
    _NEST + "{{ ns.a is eq ns.b }}",
    _NEST + "{{ ns.a in [ns.b] }}",
    _NEST + "{{ [ns.b].index(ns.a) }}",
    _NEST + "{{ [ns.a, ns.b] | sort }}",
    _NEST + "{{ [ns.a, ns.b] | max }}",
    _NEST + "{{ [ns.a] | map('upper') | list }}",
    _NEST + "{% for x in [ns.a, ns.b] %}{{ loop.changed(x) }}{% endfor %}",
    _NEST + "{{ ns.a | string }}",
    _NEST + "{{ ns }}",
    _NEST + "{{ '%r' % (ns.a,) }}",
    _NEST + "{{ '{!r}'.format(ns.a) }}",
    _NEST + "{{ ns.a is lower }}",
    _NEST + "{{ raise_exception(ns.a) }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ messages.items() - messages.items() }}{{ {'a': 1}.keys() - [] }}",
]
_RUN = """
import pathlib, re, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1536 << 20, 1536 << 20))
from bloomery.server.chat.facts import read_facts
from bloomery.server.chat.template import ChatTemplate, ChatTemplateError
from bloomery.server.errors import ApiError

def peak():
    # In KiB. Unlike `ru_maxrss`, this does not begin with what the process that started this one had.
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])

class Words:
    def special_id(self, text):
        return None

for at, source in enumerate(sys.stdin.read().split("\\0")):
    before = peak()
    template = ChatTemplate(source)
    try:
        template.render([{"role": "user", "content": "hello"}])
        print("RENDERED", source[:200])
    except ApiError as error:
        if "MemoryError" in error.message:
            print(error.message, source[:200])
    try:
        if at % 5 == 0:
            read_facts(template, Words())
    except ChatTemplateError as error:
        assert "--chat-template-file" in str(error)
    if peak() > 512 << 10:
        print("LARGE", before, source[:200])
        break
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the bound on memory is Linux's")
def test_hostile_templates_end_in_little_memory() -> None:
    """Each is refused by name, in a process that could not hold what it would make; a start with it ends too."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input="\0".join(_HOSTILE),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_probes_share_one_budget() -> None:
    template = ChatTemplate("{% for i in range(30000) %}{% endfor %}")
    for _ in range(4):
        assert template.try_raw({}) == ""
    with pytest.raises(ChatTemplateError, match=r"too many steps.*--chat-template-file"):
        for _ in range(9):
            template.try_raw({})
