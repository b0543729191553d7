"""Outputs of models with the calls that are meant: 24 shapes, each in ten languages with words and values of that language.

The expected calls are written beside the text; no parser computes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple


class Case(NamedTuple):
    """One output.

    Attributes:
        shape: form, or fault, of the output.
        language: ISO 639-1 code.
        text: the model's output.
        calls: name and arguments of each call that is meant, and that can be read without guessing.
        unreadable: calls that are meant and cannot be read: an error is right, a call is wrong.
        truncated: the text ends inside the call.
    """

    shape: str
    language: str
    text: str
    calls: list[tuple[str, dict[str, Any]]]
    unreadable: int = 0
    truncated: bool = False


class Words(NamedTuple):
    """What a model says in one language."""

    language: str
    intro: str
    objective: str
    query: str
    quote: str
    note: str
    answer: str


WORDS = (
    Words(
        "en",
        "I will look that up.",
        "Find the price",
        "cheap flights to Oslo",
        'She said "it\'s fine", twice',
        "Dear all,\nthe {draft} is ready, [see below].",
        "It costs 20 dollars.",
    ),
    Words(
        "de",
        "Ich schaue das nach.",
        "Preis ermitteln",
        "günstige Flüge nach Köln",
        "Er sagte: „Geht's?\" und ging",
        "Liebe Grüße,\nder {Entwurf} ist fertig, [siehe unten].",
        "Das kostet 20 Euro.",
    ),
    Words(
        "fr",
        "Je vais vérifier cela.",
        "Trouver le prix",
        "vols pas chers vers l'île",
        "Elle a dit \"c'est l'été\", non",
        "Bonjour,\nl'{ébauche} est prête, [voir ci-dessous].",
        "Cela coûte 20 euros.",
    ),
    Words(
        "es",
        "Voy a buscarlo.",
        "Buscar el precio",
        "vuelos baratos a Málaga",
        'Dijo "¿qué tal, señor?" y calló',
        "Hola:\nel {borrador} está listo, [ver abajo].",
        "Cuesta 20 euros.",
    ),
    Words(
        "pt",
        "Vou verificar isso.",
        "Achar o preço",
        "voos baratos para São Paulo",
        'Disse "não é nada" e saiu',
        "Olá,\no {rascunho} está pronto, [veja abaixo].",
        "Custa 20 reais.",
    ),
    Words(
        "ru",
        "Сейчас проверю.",
        "Узнать цену",
        "дешёвые билеты в Казань",
        'Он сказал "да, конечно" и ушёл',
        "Привет,\n{черновик} готов, [см. ниже].",
        "Это стоит 20 рублей.",
    ),
    Words(
        "zh",
        "我来查一下。",
        "查询价格",
        "飞往上海的便宜机票",
        '他说"没问题"，然后走了',
        "大家好，\n{草稿}已完成，[见下文]。",
        "价格是二十元。",
    ),
    Words(
        "ja",
        "調べてみます。",
        "価格を調べる",
        "大阪行きの格安航空券",
        '彼は"大丈夫"と言った',
        "皆様、\n{下書き}ができました。[下記参照]",
        "二十円です。",
    ),
    Words(
        "ar",
        "سأبحث عن ذلك.",
        "معرفة السعر",
        "رحلات رخيصة إلى دبي",
        'قال "لا بأس" ثم ذهب',
        "مرحبا،\n{المسودة} جاهزة، [انظر أدناه].",
        "السعر عشرون درهما.",
    ),
    Words(
        "hi",
        "मैं अभी देखता हूँ।",
        "दाम पता करना",
        "दिल्ली की सस्ती उड़ानें",
        'उसने कहा "ठीक है" और गया',
        "नमस्ते,\n{मसौदा} तैयार है, [नीचे देखें]।",
        "इसका दाम बीस रुपये है।",
    ),
)


def _json(value: object, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def _function_call(name: str, objective: str, args: str) -> str:
    return (
        f'<function_call>\n{{"name": "{name}", "call_objective": {_json(objective)}, "args": {args}}}\n</function_call>'
    )


def make_corpus() -> list[Case]:
    """Every case."""
    return [case for words in WORDS for case in (*_forms(words), *_faults(words), *_prose(words))]


def _forms(words: Words) -> Iterator[Case]:
    search = ("search_web", {"query": words.query, "limit": 5})
    quote = ("save_quote", {"text": words.quote, "tags": ["a", "b"]})
    search_json, quote_json = _json(search[1]), _json(quote[1])
    language = words.language
    one = _function_call("search_web", words.objective, search_json)
    yield Case("function_call", language, f"{words.intro}\n<action>\n{one}\n</action>", [search])
    two = _function_call("save_quote", words.objective, quote_json)
    yield Case("two on one line", language, f"{words.intro} {one} {two}", [search, quote])
    inline = _json({"name": "save_quote", "arguments": quote[1]})
    yield Case("tool_call", language, f"{words.intro}\n<tool_call>\n{inline}\n</tool_call>", [quote])
    thinking = f"<think>\n{words.intro} <tool_call>…\n</think>\n\n"
    yield Case("tool_call behind thinking", language, f"{thinking}<tool_call>{inline}</tool_call>", [quote])
    lines = f"Thought: {words.intro}\n{words.objective}\nAction: search_web\nArgs: {_json(search[1], indent=2)}\n"
    yield Case("react", language, lines, [search])
    invented = f"{lines}Observation: {words.answer}\nThought: {words.intro}\nAction: save_quote\nArgs: {quote_json}\n"
    yield Case("react with an invented observation", language, invented, [search])
    block = _json({"name": "search_web", "call_objective": words.objective, "args": search[1]}, indent=2)
    yield Case("json block", language, f"{words.intro}\n\n```json\n{block}\n```\n", [search])
    inner = one.replace("<function_call>\n", "<function_call>\n```json\n").replace("\n</f", "\n```\n</f")
    yield Case("json block inside a tag", language, f"{words.intro}\n{inner}\n", [search])
    code = f'# {words.intro}\nprint("</function_call>", {{"a": [1, 2,]}})\n{words.note}\n'
    payload = f'{{"code": __PAYLOAD_START__{code}__PAYLOAD_END__}}'
    yield Case("payload", language, _function_call("run", words.objective, payload), [("run", {"code": code})])
    chat = {"tool_calls": [{"id": "c1", "function": {"name": "save_quote", "arguments": quote_json}}]}
    yield Case("openai chat", language, _json(chat), [quote])
    anthropic = [
        {"type": "text", "text": words.intro},
        {"type": "tool_use", "id": "t1", "name": "search_web", "input": search[1]},
    ]
    yield Case("anthropic", language, _json({"content": anthropic}), [search])


def _faults(words: Words) -> Iterator[Case]:
    language = words.language
    args: dict[str, Any] = {"query": words.query, "items": [1, 2]}
    call = ("search_web", args)

    def make(text: str) -> str:
        return f"{words.intro}\n{_function_call('search_web', words.objective, text)}"

    clean = _json(args)
    code = {"query": words.query, "code": f"a = [1, 2,]  # {{'x': 1}} {words.intro}"}
    yield Case("code in a string", language, make(_json(code)), [("search_web", code)])
    yield Case("trailing commas", language, make(clean.replace("[1, 2]", "[1, 2,]")[:-1] + ",}"), [call])
    yield Case("comment", language, make(clean.replace(', "items"', f', // {words.objective}\n "items"')), [call])
    single = f"{{'query': {_json(words.query)}, 'items': [1, 2]}}"
    yield Case("single quotes", language, make(single), [call])
    raw = f'{{"text": "{words.note}"}}'
    yield Case("raw newline", language, make(raw), [("search_web", {"text": words.note})])
    yield Case("missing end bracket", language, make(clean).replace("}}", "}"), [call])
    yield Case("superfluous end bracket", language, make(clean).replace("}}", "}}}"), [call])
    cut = f'<function_call>{{"name": "remove", "args": {{"path": "/srv/{words.query}'
    yield Case("cut off", language, f"{words.intro}\n{cut}", [], 1, truncated=True)
    unquoted = make(f'{{"text": "{words.note} "quoted" here"}}')
    yield Case("unescaped quotes", language, unquoted, [], 1)
    early = make(clean).replace("}}\n", '}}, "dry_run": true}\n')
    yield Case("data behind the end", language, early, [], 1)


def _prose(words: Words) -> Iterator[Case]:
    language = words.language
    yield Case("answer", language, f"Thought: {words.intro}\nFinal Answer: {words.answer}", [])
    example = f'`<function_call>{{"name": "remove", "args": {{"path": {_json(words.query)}}}}}</function_call>`'
    yield Case("quoted example", language, f"{words.answer} {example}", [])
    data = _json({"name": words.query, "price": 20}, indent=2)
    yield Case("json that is data", language, f"{words.answer}\n```json\n{data}\n```", [])
