"""The workloads of genie_bench for any stack: which inputs, in the order of bench/suite_work.h and suite_models.h, and what a
step computes of them, by the operations `o` of the stack. Tensors named `state` are handed to each step and come back changed."""
import math


class Input:
    def __init__(self, name, shape, middle=0.0, spread=0.0, below=0, state=False):
        self.name, self.shape, self.middle, self.spread, self.below, self.state = name, tuple(shape), middle, spread, below, state


def fair(rows):
    return math.sqrt(3.0 / rows)


def is_model(r):
    return r['workload'] in ('gpt2', 'llama')


def inputs(r):
    return globals()['inputs_' + r['workload']](r)


def value(o, r, t, first):
    """Values of the inputs in `t` to (value, the states after the step). `first`: the position of the first new token."""
    return globals()['value_' + r['workload']](o, r, t, first)


def inputs_mlp(r):
    sides = [784, r['hidden'], r['hidden'], 10]
    out = [Input('x', (r['batch'], 784), 0, 1)]
    for a, b in zip(sides, sides[1:]):
        out += [Input('w', (a, b), 0, fair(a)), Input('b', (b,), 0, 0.1)]
    return out


def value_mlp(o, r, t, first):
    x = o.relu(o.linear(t[0], t[1], t[2]))
    return o.softmax(o.linear(o.relu(o.linear(x, t[3], t[4])), t[5], t[6])), []


def inputs_matmul(r):
    n = r['hidden']
    return [Input('a', (n, n), 0, 1), Input('b', (n, n), 0, fair(n))]


def value_matmul(o, r, t, first):
    return o.matmul(t[0], t[1]), []


def inputs_elementwise(r):
    return [Input('x', (r['rows'], r['hidden']), 0, 2), Input('y', (r['rows'], r['hidden']), 0, 2)]


def value_elementwise(o, r, t, first):
    return o.gelu(t[0] * 1.5 + 0.25) * o.sigmoid(t[1]), []


def inputs_rows(r):
    n = r['hidden']
    return [Input('x', (r['rows'], n), 0, 2), Input('gain', (n,), 1, 0.1), Input('bias', (n,), 0, 0.1)]


def value_rows(o, r, t, first):
    case = r['case']
    if case == 'softmax':
        return o.softmax(t[0]), []
    if case == 'layernorm':
        return o.layernorm(t[0], t[1], t[2]), []
    return (o.rmsnorm(t[0], t[1]) if case == 'rmsnorm' else o.row_sum(t[0])), []


def inputs_attention(r):
    return [Input(n, (r['batch'], r['heads'], r['tokens'], r['head']), 0, 1.7) for n in 'qkv']


def value_attention(o, r, t, first):
    return o.attention(t[0], t[1], t[2]), []


def inputs_training(r):
    h = r['hidden']
    return [Input('x', (r['batch'], 784), 0, 1), Input('targets', (r['batch'],), below=10),
            Input('w', (784, h), 0, fair(784), state=True), Input('b', (h,), 0, 0.1, state=True),
            Input('w', (h, 10), 0, fair(h), state=True), Input('b', (10,), 0, 0.1, state=True)]


def value_training(o, r, t, first):
    return o.train(t, 0.0625)


# ---- models ----

def caches(r):
    shape = (r['batch'], r['kv_heads'], r['room'], r['head'])
    return [Input('keys', shape, 0, 1.7, state=True), Input('values', shape, 0, 1.7, state=True)]


def to_heads(o, r, x, heads):
    return o.swap(o.reshape(x, (r['batch'], r['new'], heads, r['head'])))


def from_heads(o, r, x):
    return o.reshape(o.swap(x), (r['batch'] * r['new'], r['heads'] * r['head']))


def attend(o, r, q, k, v, keys, values, first, states):
    """Keys and values go into the caches; a prefill sees its own alone."""
    keys, values = o.put(keys, k, first), o.put(values, v, first)
    states += [keys, values]
    return o.attention(q, k, v) if r['new'] > 1 else o.attend_past(q, keys, values, first)


def last_rows(o, r, x):
    return o.reshape(o.reshape(x, (r['batch'], r['new'], r['hidden']))[:, -1], (r['batch'], r['hidden']))


def inputs_gpt2(r):
    d = r['hidden']
    out = [Input('ids', (r['batch'], r['new']), below=r['vocab']), Input('tokens', (r['vocab'], d), 0, 0.05),
           Input('places', (r['room'], d), 0, 0.5), Input('gain', (d,), 1, 0.1), Input('bias', (d,), 0, 0.1)]
    for _ in range(r['layers']):
        for _ in range(2):
            out += [Input('gain', (d,), 1, 0.1), Input('bias', (d,), 0, 0.1)]
        for a, b in ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)):
            out += [Input('w', (a, b), 0, fair(a)), Input('b', (b,), 0, 0.1)]
        out += caches(r)
    return out


def value_gpt2(o, r, t, first):
    """Logits (batch, vocab); t[0] holds the ids of this step."""
    d, states = r['hidden'], []
    x = o.reshape(o.rows(t[1], o.reshape(t[0], (r['batch'] * r['new'],))), (r['batch'], r['new'], d))
    x = o.reshape(x + o.rows(t[2], o.positions(first)), (r['batch'] * r['new'], d))
    for l in range(r['layers']):
        w = t[5 + 14 * l:19 + 14 * l]
        qkv = o.linear(o.layernorm(x, w[0], w[1]), w[4], w[5])
        q, k, v = (to_heads(o, r, qkv[:, i * d:(i + 1) * d], r['heads']) for i in range(3))
        x = x + o.linear(from_heads(o, r, attend(o, r, q, k, v, w[12], w[13], first, states)), w[6], w[7])
        x = x + o.linear(o.gelu_tanh(o.linear(o.layernorm(x, w[2], w[3]), w[8], w[9])), w[10], w[11])
    return o.by_rows(o.layernorm(last_rows(o, r, x), t[3], t[4]), t[1]), states


def inputs_llama(r):
    d, kv, f = r['hidden'], r['kv_heads'] * r['head'], r['feed_forward']
    out = [Input('ids', (r['batch'], r['new']), below=r['vocab']), Input('tokens', (r['vocab'], d), 0, 0.05),
           Input('gain', (d,), 1, 0.1)]
    for _ in range(r['layers']):
        out += [Input('gain', (d,), 1, 0.1)] * 2
        out += [Input('w', s, 0, fair(s[0])) for s in ((d, d), (d, kv), (d, kv), (d, d), (d, f), (d, f), (f, d))]
        out += caches(r)
    return out


def value_llama(o, r, t, first):
    """Logits (batch, vocab); t[0] holds the ids of this step."""
    states, places = [], o.positions(first)
    x = o.rows(t[1], o.reshape(t[0], (r['batch'] * r['new'],)))
    for l in range(r['layers']):
        w = t[3 + 11 * l:14 + 11 * l]
        h = o.rmsnorm(x, w[0])
        q = o.rotary(to_heads(o, r, o.matmul(h, w[2]), r['heads']), places, 500000.0)
        k = o.rotary(to_heads(o, r, o.matmul(h, w[3]), r['kv_heads']), places, 500000.0)
        v = to_heads(o, r, o.matmul(h, w[4]), r['kv_heads'])
        x = x + o.matmul(from_heads(o, r, attend(o, r, q, k, v, w[9], w[10], first, states)), w[5])
        h = o.rmsnorm(x, w[1])
        x = x + o.matmul(o.silu(o.matmul(h, w[6])) * o.matmul(h, w[7]), w[8])
    return o.by_rows(o.rmsnorm(last_rows(o, r, x), t[2]), t[1]), states


def first_position(r, step):
    return 0 if r['new'] > 1 else r['tokens'] + step % r['positions']
