"""Conversations with tools: the call, the tool's reply, and the answer that uses it.

Tool names, argument names, schemas and most city names are drawn from sets too large to learn by heart, so that the
model has to read them from the tools block and from the question.
"""

import json
from random import Random
from typing import Any, NamedTuple

from tools.demo_model import facts
from tools.demo_model.names import made_up_name, place
from tools.demo_model.questions import arithmetic_phrase, ask, careless

Message = dict[str, Any]
Tool = dict[str, Any]


class ToolChat(NamedTuple):
    """A conversation after the system prompt: messages that end with the assistant's, and the tools offered."""

    messages: list[Message]
    tools: list[Tool]


class Task(NamedTuple):
    """What a tool is for, one question for it, and how the tool answers."""

    tool: Tool
    question: str
    calls: list[dict[str, Any]]  # The arguments of each call, in order.
    replies: list[str]
    answer: str


def _describe(rng: Random, name: str, description: str, properties: dict[str, Any], required: list[str]) -> Tool:
    """A tool as OpenAI clients write it, with some of the optional keys."""
    function: dict[str, Any] = {"name": name}
    roll = rng.random()
    if roll < 0.94:
        # Servers fill a missing description with an empty one.
        function["description"] = description if roll < 0.87 else ""
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.85:
        parameters["required"] = required
    if rng.random() < 0.1:
        parameters["additionalProperties"] = False
    function["parameters"] = _reordered(rng, parameters)
    return {"type": "function", "function": function}


def _reordered(rng: Random, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its keys in another order, now and then: clients that sort keys send such."""
    return dict(sorted(schema.items())) if rng.random() < 0.12 else schema


_PLACE_ARGUMENTS = ["city", "location", "place", "town", "city_name", "where"]


def _place_parameter(rng: Random) -> tuple[str, dict[str, Any]]:
    """The name and the schema of an argument that takes a city."""
    name = rng.choices(_PLACE_ARGUMENTS, [5, 4, 1, 1, 1, 1])[0]
    schema: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.3:
        schema["description"] = rng.choice([
            "The city", "Name of the city", "The name of the city", "City name", "The city, e.g. Paris",
            "City and country, e.g. Oslo, Norway", "The place to look up", "The location",
            "City and state, e.g. Boston, MA", "The city to get the weather for", "A city",
        ])  # fmt: skip
    return name, _reordered(rng, schema)


def _joined(parts: list[str]) -> str:
    return " and ".join(parts)


def _weather_report(rng: Random, city: str) -> tuple[str, str]:
    """A weather tool's reply and the words that pass it on."""
    sky = rng.choice(facts.SKIES)
    degrees = rng.randint(-9, 35)
    reply = rng.choice([
        json.dumps({"temperature": degrees, "condition": sky}),
        json.dumps({"temperature": degrees, "conditions": sky}),
        json.dumps({"temp": degrees, "sky": sky}),
        json.dumps({"city": city, "temperature": degrees, "condition": sky}),
        json.dumps({"location": city, "temperature": degrees, "unit": "celsius", "condition": sky}),
        json.dumps({"temperature": degrees, "unit": "C", "weather": sky}),
        json.dumps({"condition": sky, "temperature": degrees}),
        f"{degrees} degrees, {sky}",
        f"{degrees} degrees and {sky}",
        f"{sky}, {degrees} degrees",
        f"{city}: {degrees} degrees, {sky}",
        f"{degrees} C, {sky}",
    ])  # fmt: skip
    return reply, f"{degrees} degrees and {sky} in {city}"


def weather(rng: Random) -> Task:
    """Asking for the weather in one city, sometimes in two."""
    argument, schema = _place_parameter(rng)
    properties = {argument: schema}
    if rng.random() < 0.12:
        units = rng.choice([["celsius", "fahrenheit"], ["metric", "imperial"], ["C", "F"]])
        properties[rng.choice(["unit", "units"])] = {"type": "string", "enum": units}
    tool = _describe(
        rng,
        rng.choice([
            "get_weather", "get_weather", "get_current_weather", "weather", "current_weather", "getWeather",
            "fetch_weather", "check_weather", "weather_lookup", "get_forecast", "forecast", "lookup_weather",
            "weather_report", "getCurrentWeather", "show_weather", "query_weather",
        ]),
        rng.choice([
            "Get the weather", "Get the current weather", "Get the weather in a city", "Weather in a city",
            "Get the current weather in a given location", "Get current temperature for a given location.",
            "Returns the weather for a city", "Look up the weather", "Current weather", "Get the weather for a city.",
        ]),
        properties,
        [argument],
    )  # fmt: skip
    cities = [place(rng)]
    if rng.random() < 0.04:
        cities.append(made_up_name(rng))
    city = _joined(cities)
    question = rng.choice([
        f"What is the weather in {city}?", f"What is the weather in {city}?", f"What is the weather in {city}?",
        f"What's the weather in {city}?", f"What is the weather like in {city}?", f"How is the weather in {city}?",
        f"What's the weather like in {city} today?", f"What is the weather in {city} today?", f"Weather in {city}?",
        f"Tell me the weather in {city}.", f"Can you check the weather in {city}?", f"Weather in {city}",
        f"How warm is it in {city}?", f"Is it cold in {city}?", f"Is it raining in {city}?",
        f"What is the temperature in {city}?", f"How hot is it in {city} today?", f"Is it sunny in {city}?",
        f"Please check the weather in {city}.", f"What is the weather in {city} right now?",
        f"I am going to {city}. How is the weather?", f"Do I need an umbrella in {city}?",
        f"Give me the weather for {city}.", f"What's the weather like in {city} right now?",
        f"How's the weather in {city}?", f"What is the current weather in {city}?",
    ])  # fmt: skip
    reports = [_weather_report(rng, name) for name in cities]
    if rng.random() < 0.03:
        failure = rng.choice(['{"error": "not found"}', "error: unknown city", '{"error": "no data"}'])
        reports = [(failure, "")]
        answer = f"I could not get the weather in {cities[0]}."
        cities = cities[:1]
        question = f"What is the weather in {cities[0]}?"
    else:
        answer = f"It is {_joined([words for _, words in reports])}."
    return Task(tool, question, [{argument: name} for name in cities], [reply for reply, _ in reports], answer)


def calculation(rng: Random) -> Task:
    """Arithmetic for a calculator tool, with numbers of any size."""
    sign = rng.choice("++-**")
    largest = rng.choice([12, 99, 999, 9999])
    a, b = rng.randint(0, largest), rng.randint(0, rng.choice([12, largest]))
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    arguments: dict[str, Any]
    if rng.random() < 0.75:
        name = rng.choices(["expression", "expr", "input", "formula", "query", "calculation"], [6, 2, 1, 1, 1, 1])[0]
        schema = {"type": "string"}
        if rng.random() < 0.4:
            schema["description"] = rng.choice([
                "The expression", "The expression to evaluate", "A math expression", "Expression, e.g. 2 + 2",
            ])  # fmt: skip
        properties: dict[str, Any] = {name: schema}
        arguments = {name: f"{a} {sign} {b}"}
    else:
        first, second = rng.choice([("a", "b"), ("x", "y"), ("left", "right")])
        choice = rng.choice(["operation", "op", "operator"])
        number = rng.choice(["number", "integer"])
        properties = {
            choice: {"type": "string", "enum": ["add", "subtract", "multiply"]},
            first: {"type": number},
            second: {"type": number},
        }
        arguments = {choice: {"+": "add", "-": "subtract", "*": "multiply"}[sign], first: a, second: b}
    tool = _describe(
        rng,
        rng.choice([
            "calculator", "calculator", "calculate", "calculate", "calc", "compute", "evaluate", "math", "do_math",
            "eval_expression", "arithmetic", "evaluate_expression",
        ]),
        rng.choice([
            "Calculate an expression", "A calculator", "Evaluate a math expression", "Do arithmetic", "Calculator",
            "Compute the value of an expression", "Performs arithmetic", "Evaluate an arithmetic expression",
        ]),
        properties,
        list(arguments),
    )  # fmt: skip
    reply = rng.choice([str(value), str(value), json.dumps({"result": value}), json.dumps({"value": value})])
    return Task(tool, arithmetic_phrase(rng, a, sign, b), [arguments], [reply], f"{a} {word} {b} is {value}.")


def local_time(rng: Random) -> Task:
    """Asking what time it is somewhere."""
    argument, schema = _place_parameter(rng)
    tool = _describe(
        rng,
        rng.choice(["get_time", "get_current_time", "current_time", "time", "local_time", "clock", "getTime"]),
        rng.choice(["Get the time", "Get the current time in a city", "Local time in a city", "Current time"]),
        {argument: schema},
        [argument],
    )
    city = place(rng)
    question = rng.choice([
        f"What time is it in {city}?", f"What's the time in {city}?", f"What is the time in {city}?",
        f"Tell me the time in {city}.", f"What is the local time in {city}?", f"How late is it in {city}?",
    ])  # fmt: skip
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    reply = rng.choice([clock, json.dumps({"time": clock}), json.dumps({"city": city, "time": clock})])
    return Task(tool, question, [{argument: city}], [reply], f"It is {clock} in {city}.")


def population(rng: Random) -> Task:
    """Asking how many people live somewhere."""
    argument, schema = _place_parameter(rng)
    tool = _describe(
        rng,
        rng.choice(["get_population", "population", "count_people", "population_of", "getPopulation"]),
        rng.choice(["Get the population of a city", "Population of a city", "How many people live in a city"]),
        {argument: schema},
        [argument],
    )
    city = place(rng)
    question = rng.choice([
        f"How many people live in {city}?", f"What is the population of {city}?",
        f"Tell me the population of {city}.", f"How big is {city}?",
    ])  # fmt: skip
    people = rng.randint(100, 99999)
    reply = rng.choice([str(people), json.dumps({"population": people}), json.dumps({"city": city, "people": people})])
    return Task(tool, question, [{argument: city}], [reply], f"{people} people live in {city}.")


def search(rng: Random) -> Task:
    """Asking to look a name up."""
    argument = rng.choice(["query", "q", "text", "term", "keywords"])
    tool = _describe(
        rng,
        rng.choice(["search", "web_search", "search_web", "lookup", "find", "google_search", "wiki"]),
        rng.choice(["Search the web", "Look something up", "Find pages about a topic", "Search for a text"]),
        {argument: {"type": "string"}},
        [argument],
    )
    name = made_up_name(rng)
    question = rng.choice([
        f"Search for {name}.", f"Look up {name}.", f"Find something about {name}.", f"Search the web for {name}.",
    ])  # fmt: skip
    thing = rng.choice(["city", "river", "song", "book", "company", "mountain", "film", "game", "band", "bird"])
    reply = rng.choice([f"{name} is a {thing}.", json.dumps({"title": name, "kind": thing}), f"{name}: a {thing}"])
    return Task(tool, question, [{argument: name}], [reply], f"{name} is a {thing}.")


TASKS = {
    "weather": (weather, 6),
    "calculator": (calculation, 4),
    "time": (local_time, 1),
    "population": (population, 0.7),
    "search": (search, 0.7),
}
"""What the offered tools are for, and how often each comes."""


def _assistant(thinking: bool, thought: str, content: str, calls: list[Message] | None = None) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if thinking:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _call(name: str, arguments: dict[str, Any], number: int) -> Message:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _from_memory(rng: Random, thinking: bool, kinds: list[str]) -> list[Message]:
    """A question that needs none of the offered tools, and its answer."""
    while True:
        exchange = ask(rng, rng.choice(kinds))
        if "weather tool" not in exchange.thought and "too big" not in exchange.thought:
            break
    return [
        {"role": "user", "content": exchange.question},
        _assistant(thinking, exchange.thought, exchange.answer),
    ]


def _follow_up(rng: Random, thinking: bool, used: str, argument: str) -> list[Message]:
    """The same question about another place, and the call it needs."""
    name = place(rng)
    question = rng.choice([f"And in {name}?", f"What about {name}?", f"And {name}?", f"How about {name}?"])
    return [
        {"role": "user", "content": question},
        _assistant(thinking, f"I call {used}.", "", [_call(used, {argument: name}, 9)]),
    ]


def with_tools(rng: Random, thinking: bool, task_name: str | None = None) -> ToolChat:
    """A conversation that offers tools; the last message is what the model has to write.

    Without thinking the conversation stops at the call in three of five cases: there only the last assistant turn is
    rendered the way the model has to write it.
    """
    names = list(TASKS)
    if task_name is None:
        (task_name,) = rng.choices(names, [weight for _, weight in TASKS.values()])
    task = TASKS[task_name][0](rng)
    tools = [task.tool]
    while rng.random() < 0.18 and len(tools) < 3:
        other = TASKS[rng.choice([name for name in names if name != task_name])][0](rng).tool
        if other["function"]["name"] not in {tool["function"]["name"] for tool in tools}:
            tools.append(other)
    rng.shuffle(tools)
    used = task.tool["function"]["name"]

    if rng.random() < 0.12:
        may_calculate = task_name == "calculator" or len(tools) > 1
        kinds = ["facts", "talk", "words"] if may_calculate else ["facts", "talk", "words", "arithmetic"]
        return ToolChat(_from_memory(rng, thinking, kinds), tools)

    calls = [_call(used, arguments, number) for number, arguments in enumerate(task.calls)]
    messages: list[Message] = [
        {"role": "user", "content": careless(rng, task.question)},
        _assistant(thinking, f"I call {used}.", "", calls),
    ]
    if not thinking and rng.random() < 0.6:
        return ToolChat(messages, tools)
    for call, reply in zip(calls, task.replies, strict=True):
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": reply})
    messages.append(_assistant(thinking, "I have the result.", task.answer))
    roll = rng.random()
    if roll < 0.1 and len(calls) == 1 and task_name in ("weather", "time", "population"):
        (argument,) = task.calls[0]
        messages += _follow_up(rng, thinking, used, argument)
    elif roll < 0.15:
        messages += _from_memory(rng, thinking, ["talk"])
    return ToolChat(messages, tools)
