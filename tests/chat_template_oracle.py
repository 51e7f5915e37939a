"""Chat templates rendered by the package `jinja2`, with the settings of `transformers`, beside examples/formats/chat_template.h.

    python3 chat_template_oracle.py RENDERER COUNT [SEED]

RENDERER is the program that chat_template_oracle_test.sh compiles; COUNT random templates are tried besides those below. A template
that jinja2 renders is rendered to the same bytes, or refused when it is opened; one that jinja2 fails on is not rendered."""
import json
import random
import re
import struct
import subprocess
import sys
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDERER, COUNT = sys.argv[1], int(sys.argv[2])
DRAW = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 7)


class Generation(Extension):
    tags = {'generation'}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(['name:endgeneration'], drop_needle=True)
        return nodes.CallBlock(self.call_method('_keep'), [], [], body).set_lineno(line)

    def _keep(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError(message)
    e = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    e.filters['tojson'] = tojson
    e.globals['raise_exception'] = raise_exception
    e.globals['strftime_now'] = lambda form: __import__('datetime').datetime.now().strftime(form)
    return e


ENVIRONMENT = environment()

# ---- conversations, and templates in the manner of the families

CALL = {'type': 'function', 'function': {'name': 'weather', 'arguments': {'city': 'Köln', 'days': 3, 'exact': True, 'near': [1.5, None]}}}
TOOL = {'type': 'function', 'function': {'name': 'weather', 'description': 'Says "how" it is.\n', 'parameters': {
    'type': 'object', 'properties': {'city': {'type': 'string'}, 'days': {'type': 'integer', 'default': -1}}, 'required': ['city']}}}
USER = [{'role': 'user', 'content': '  Hello,\n\tworld! '}]
TALK = [{'role': 'system', 'content': 'Be brief.'}, *USER, {'role': 'assistant', 'content': 'Hi. \u3000'},
        {'role': 'user', 'content': 'Was heißt "Straße" \\ ‹é›? 😀'}, {'role': 'assistant', 'content': '<think>\nhm\n</think>\n\nstreet'},
        {'role': 'user', 'content': ''}]
TOOLS = [USER[0], {'role': 'assistant', 'content': None, 'tool_calls': [CALL, CALL]}, {'role': 'tool', 'name': 'weather', 'content': '{"t": 1}'},
         {'role': 'assistant', 'content': 'It is fine.'}]
PARTS = [{'role': 'user', 'content': [{'type': 'text', 'text': ' a '}, {'type': 'image'}, {'type': 'text', 'text': 'b'}]}]
BASE = {'bos_token': '<s>', 'eos_token': '</s>', 'unk_token': None}
INPUTS = [dict(BASE, messages=m, add_generation_prompt=g, **more)
          for m in (USER, TALK, TOOLS, PARTS, []) for g in (False, True) for more in ({}, {'tools': [TOOL], 'enable_thinking': False})]

TEMPLATES = [
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
    "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + "
    "' ' + eos_token }}{% endif %}{% endfor %}",
    "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- set date_string = \"26 Jul 2024\" %}\n{%- endif %}\n"
    "{%- if messages and messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n"
    "    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system_message = \"\" %}\n{%- endif %}\n"
    "{{- \"<|start|>system<|end|>\\n\\n\" }}\n{%- if tools is not none and tools is defined %}\n    {%- for t in tools %}\n"
    "        {{- t | tojson(indent=4) }}\n        {{- \"\\n\\n\" }}\n    {%- endfor %}\n{%- endif %}\n{{- system_message }}\n"
    "{%- for message in messages %}\n    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}\n"
    "        {{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}\n"
    "    {%- elif 'tool_calls' in message %}\n        {%- for call in message.tool_calls %}\n            {%- set f = call.function %}\n"
    "            {{- '{\"name\": \"' + f.name + '\", ' }}\n            {{- f.arguments | tojson }}\n            {{- \"}\" }}\n"
    "        {%- endfor %}\n    {%- else %}\n        {{- message.content | tojson }}\n    {%- endif %}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|start|>assistant<|end|>\\n\\n' }}\n{%- endif %}\n",
    "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {%- for tool in tools %}\n        {{- \"\\n\" }}\n        {{- tool | tojson }}\n"
    "    {%- endfor %}\n{%- endif %}\n{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}\n"
    "{%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n"
    "    {%- if ns.multi_step_tool and message.role == \"user\" and message.content is string %}\n        {%- set ns.multi_step_tool = false %}\n"
    "        {%- set ns.last_query_index = index %}\n    {%- endif %}\n{%- endfor %}\n{%- for message in messages %}\n"
    "    {%- if message.content is string %}\n        {%- set content = message.content %}\n    {%- else %}\n        {%- set content = '' %}\n"
    "    {%- endif %}\n    {%- if message.role == \"assistant\" %}\n        {%- set reasoning_content = '' %}\n"
    "        {%- if '</think>' in content %}\n            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n"
    "            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n        {%- endif %}\n"
    "        {%- if loop.index0 > ns.last_query_index %}\n            {{- reasoning_content.strip('\\n') + content.lstrip('\\n') }}\n"
    "        {%- else %}\n            {{- content }}\n        {%- endif %}\n        {%- if message.tool_calls %}\n"
    "            {%- for tool_call in message.tool_calls %}\n                {%- if (loop.first and content) or (not loop.first) %}\n"
    "                    {{- '\\n' }}\n                {%- endif %}\n                {{- tool_call.function.name ~ loop.index }}\n"
    "            {%- endfor %}\n        {%- endif %}\n    {%- elif message.role == \"tool\" %}\n"
    "        {%- if loop.first or (messages[loop.index0 - 1].role != \"tool\") %}\n            {{- '<|im_start|>user' }}\n        {%- endif %}\n"
    "        {{- content }}\n    {%- else %}{{ message.role }}: {{ content }}\n    {%- endif %}\n{%- endfor %}\n"
    "{%- if enable_thinking is defined and enable_thinking is false %}\n    {{- '<think>\\n\\n</think>\\n\\n' }}\n{%- endif %}\n",
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' }}{% if message['content'] is string %}"
    "{{ message['content'] | trim }}{% elif message['content'] is iterable %}{% for item in message['content'] %}"
    "{% if item['type'] == 'image' %}{{ '<image>' }}{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}"
    "{% else %}{{ raise_exception('Invalid content type') }}{% endif %}{{ '<end_of_turn>\n' }}{% endfor %}",
    "{% for m in messages if m.role != 'system' %}\n  {% generation %}\n  {{ m.role|upper }} {{ loop.index }}/{{ loop.length }}\n  {% endgeneration %}\n"
    "{% else %}\nnobody\n{% endfor %}\n\n",
    "{% for m in messages %}{% if loop.index == 3 %}{% break %}{% endif %}{% if m.role == 'system' %}{% continue %}{% endif %}"
    "{{ loop.previtem.role if loop.previtem is defined else 'none' }}-{{ loop.revindex0 }} {% endfor %}{% set x %} a {{ bos_token }}{% endset %}[{{ x }}]",
    "{# a comment #}\n  {# another -#}\n\n  {% if true %}\n yes\n  {% endif %}\n{{ 1 }}\n\n{%+ if true %} kept {%+ endif +%}\nend\n\n",
    "{{ tools | map(attribute='function.name') | join(', ') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    "{{ (messages | rejectattr('content') | list) == [] }}{{ (messages|first).role }}{{ (messages|last)['role'] }}",
    "{% for k, v in (messages[0] if messages else {'a': 1}).items() %}{{ k }}={{ v|tojson }};{% endfor %}{{ {'a': [1, 2.0, 'x'], 'b': none}|tojson }}",
]

# ---- random templates

ATOMS = ["1", "0", "-3", "7", "2.5", "1e3", "1e16", "1e-7", "true", "false", "none", "'a b'", "''", "\" x\\n\"", "'é\\u00e9'", "'Aa-bB'", "[]", "[1, 'b', 2]",
         "{'a': 1, 'b': [1]}", "messages", "messages[0]", "bos_token", "missing", "x", "(1, 2)", "'a,b,,c'", "9223372036854775807", "unk_token",
         "messages[0].content", "messages[0]['role']", "tools", "'  \u3000t \\t'", "add_generation_prompt", "0.1", "100.0", "123456789.125"]
FILTERS = ["trim", "length", "tojson", "upper", "lower", "first", "last", "list", "string", "int", "default('d')", "default('d', true)", "join('-')",
           "replace('a', 'bb')", "capitalize", "title", "items | list", "tojson(indent=2)", "count", "trim('a ')", "reverse | list", "d"]
METHODS = ["strip()", "lstrip()", "rstrip('b ')", "split()", "split(',')", "split(',', 1)", "split(none, 1)", "startswith('a')", "endswith('b')",
           "upper()", "replace('a', '')", "find('b')", "items() | list", "keys() | list", "get('a')", "get('z', 5)", "strip('\\n')", "join(['x', 'y'])"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "true", "false", "integer", "float",
         "equalto(1)", "eq 'a'", "ne 2", "in ['a', 1]", "odd", "even", "divisibleby 3", "not none", "not defined"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]


def expression(depth):
    kind = DRAW.random()
    if depth <= 0 or kind < 0.2:
        return DRAW.choice(ATOMS)
    if kind < 0.35:
        return f'{expression(depth - 1)} | {DRAW.choice(FILTERS)}'
    if kind < 0.45:
        return f'({expression(depth - 1)}).{DRAW.choice(METHODS)}'
    if kind < 0.55:
        return f'({expression(depth - 1)}) is {DRAW.choice(TESTS)}'
    if kind < 0.8:
        left, right = expression(depth - 1), expression(depth - 1)
        op = DRAW.choice(BINARY)
        return DRAW.choice([f'({left}) {op} ({right})', f'{left} {op} {right}'])
    if kind < 0.81: # jinja2 itself computes powers of any size
        return f'({expression(depth - 1)}) ** {DRAW.choice(["0", "2", "0.5"])}'
    if kind < 0.86:
        return f'({expression(depth - 1)})[{DRAW.choice(["0", "-1", "1:", ":-1", "::2", "::-1", "9", "1:3", repr("role"), "5:1:-2"])}]'
    if kind < 0.92:
        return f'{expression(depth - 1)} if {expression(depth - 1)}' + DRAW.choice(['', f' else {expression(depth - 1)}'])
    return DRAW.choice(['(not ({}))', '-({})', '({})']).format(expression(depth - 1))


def mark(text, block=True):
    return DRAW.choice(['', '', '', '-'] + ['+'] * block) + ' ' + text + ' ' + DRAW.choice(['', '', '', '-'] + ['+'] * block)


def text():
    return ''.join(DRAW.choices(['a', ' ', '\n', '  ', '\t', 'b\n', '{', '}', '%', '\n\n  ', '\u3000', 'é'], k=DRAW.randint(0, 4))).replace('{{', '{').replace('{%', '{')


def template(depth):
    out = text()
    for _ in range(DRAW.randint(1, 3)):
        kind = DRAW.random()
        inner = template(depth - 1) if depth > 0 else text()
        if kind < 0.45:
            out += '{{' + mark(expression(2), False) + '}}'
        elif kind < 0.6:
            out += '{%' + mark('if ' + expression(2)) + '%}' + inner
            out += ('{%' + mark('elif ' + expression(1)) + '%}' + text()) * DRAW.randint(0, 1) + ('{%' + mark('else') + '%}' + text()) * DRAW.randint(0, 1)
            out += '{%' + mark('endif') + '%}'
        elif kind < 0.78:
            names = DRAW.choice(['m', 'x', 'k, v'])
            over = DRAW.choice(['messages', '[1, 2, 3]', '{"a": 1, "b": 2}.items()', 'range(3)', 'missing', "'aé'", expression(1)])
            over += DRAW.choice(['', '', ' if ' + expression(1)])
            body = inner + DRAW.choice(['', '{{ loop.index }}', '{{ m.role }}{{ x }}{{ v }}', '{% if loop.last %}{% break %}{% endif %}', '{{ loop.first }}'])
            out += '{%' + mark(f'for {names} in {over}') + '%}' + body + ('{%' + mark('else') + '%}' + text()) * DRAW.randint(0, 1) + '{%' + mark('endfor') + '%}'
        elif kind < 0.88:
            out += '{%' + mark(f'set {DRAW.choice("xyk")} = {expression(2)}') + '%}'
        elif kind < 0.93:
            out += '{#' + DRAW.choice(['', '-', '+']) + text() + DRAW.choice(['', '-', '+']) + '#}'
        else:
            out += '{%' + mark('set x') + '%}' + inner + '{%' + mark('endset') + '%}'
        out += text()
    return out


# ---- the comparison: records of a template and its variables to the renderer, a status and a text back

def expected(source, variables):
    try:
        return ENVIRONMENT.from_string(source).render(**variables)
    except RecursionError:
        raise
    except Exception as e:
        return e


def main():
    cases = [(t, i) for t in TEMPLATES for i in INPUTS] + [(template(2), DRAW.choice(INPUTS)) for _ in range(COUNT)]
    data = b''.join(struct.pack('<II', len(t), len(v)) + t + v for t, v in ((t.encode(), json.dumps(v).encode()) for t, v in cases))
    out = subprocess.run([RENDERER], input=data, capture_output=True)
    if out.returncode:
        sys.exit(out.stderr.decode()[:3000] + f'status {out.returncode}')
    at, counts, reasons = 0, {'equal': 0, 'refused': 0, 'both fail': 0}, {}
    for number, (source, variables) in enumerate(cases):
        status, n = struct.unpack_from('<II', out.stdout, at)
        got = out.stdout[at + 8:at + 8 + n].decode()
        at += 8 + n
        want = expected(source, variables)
        fails = isinstance(want, Exception)
        own = re.search('only tojson prints|64 bits|beyond ASCII|is not read|has no slices|no bound of a slice', got) if status else None
        if number < len(TEMPLATES) * len(INPUTS) and status == 3:
            sys.exit(f'template {number // len(INPUTS)} is refused: {got}')
        if status == 0 and not fails and got == want:
            counts['equal'] += 1
        elif status and fails:
            counts['both fail'] += 1
        elif status == 3 and 'not read' in got or own:
            counts['refused'] += 1
            reasons[got.split(': ')[1][:50]] = reasons.get(got.split(': ')[1][:50], 0) + 1
        else:
            sys.exit(f'{source!r}\nwith {json.dumps(variables)[:300]}\nstatus {status}: {got!r}\nnot {want!r}')
    print(counts, sorted(reasons.items(), key=lambda r: -r[1])[:8])


main()
