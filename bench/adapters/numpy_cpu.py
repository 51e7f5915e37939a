"""NumPy on the CPU. NUMPY_BENCH_CMD='python3 bench/adapters/numpy_cpu.py'"""
import math

import adapter


class Stack:
    def __init__(self, r):
        import numpy as np
        import numpy_leaves
        if r['device'] != 'cpu':
            raise adapter.Unavailable('NumPy has no GPU')
        if r['dtype'] not in ('f32', 'f64'):
            raise adapter.Unavailable(f"NumPy has no arithmetic in {r['dtype']}")
        self.np, self.r, self.leaves = np, r, numpy_leaves
        self.dtype = np.float32 if r['dtype'] == 'f32' else np.float64

    # ---- what adapter.measure asks for ----

    def leaf(self, spec, place):
        if spec.below:
            return self.leaves.integers(spec, self.r['seed'], place)
        return self.leaves.floats(spec, self.r['seed'], place).astype(self.dtype)

    def call(self, t, first):
        import workloads
        return workloads.value(self, self.r, t, first)

    def flat(self, out):
        return self.np.ravel(out)

    def tokens(self, logits):
        return self.np.argmax(logits, axis=1).reshape(-1, 1)

    def item(self, out):
        return float(out[0])

    def wait(self, out):
        pass

    def peak(self):
        return adapter.host_peak()

    # ---- operations ----

    def matmul(self, a, b):
        return a @ b

    def linear(self, x, w, b):
        return x @ w + b

    def by_rows(self, x, table):
        return x @ table.T

    def relu(self, x):
        return self.np.maximum(x, 0)

    def sigmoid(self, x):
        return 1 / (1 + self.np.exp(-x))

    def silu(self, x):
        return x * self.sigmoid(x)

    def gelu(self, x):
        try:
            from scipy.special import erf
        except ImportError:
            raise adapter.Unavailable('NumPy has no erf, and SciPy is not here') from None
        return (0.5 * x * (1 + erf(x * self.dtype(1 / math.sqrt(2))))).astype(x.dtype)

    def gelu_tanh(self, x):
        c = self.dtype(math.sqrt(2 / math.pi))
        return 0.5 * x * (1 + self.np.tanh(c * (x + 0.044715 * x * x * x)))

    def softmax(self, x):
        e = self.np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def layernorm(self, x, gain, bias):
        c = x - x.mean(axis=-1, keepdims=True)
        return c / self.np.sqrt((c * c).mean(axis=-1, keepdims=True) + 1e-5) * gain + bias

    def rmsnorm(self, x, gain):
        return x / self.np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * gain

    def row_sum(self, x):
        return x.sum(axis=-1)

    def reshape(self, x, shape):
        return x.reshape(shape)

    def swap(self, x):
        return x.swapaxes(1, 2)

    def rows(self, table, ids):
        return table[ids]

    def positions(self, first):
        return self.np.arange(first, first + self.r['new'])

    def put(self, cache, x, first):
        cache[:, :, first:first + x.shape[2]] = x
        return cache

    def attention(self, q, k, v):
        hidden = self.np.triu(self.np.ones((q.shape[2], k.shape[2]), bool), 1)
        return self._attend(q, k, v, hidden)

    def attend_past(self, q, keys, values, first):
        return self._attend(q, keys[:, :, :first + 1], values[:, :, :first + 1], None)

    def _attend(self, q, k, v, hidden):
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
        scores = q @ k.swapaxes(2, 3) * self.dtype(1 / math.sqrt(q.shape[3]))
        if hidden is not None:
            scores = self.np.where(hidden, -self.np.inf, scores)
        return self.softmax(scores) @ v

    def rotary(self, x, positions, base):
        half = x.shape[3] // 2
        angle = positions[:, None] * base ** (-self.np.arange(half) / half)
        cos, sin = self.np.cos(angle).astype(x.dtype), self.np.sin(angle).astype(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return self.np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=3)

    def train(self, t, rate):
        np, (x, targets, w1, b1, w2, b2) = self.np, t
        n = x.shape[0]
        h = np.maximum(x @ w1 + b1, 0)
        p = self.softmax(h @ w2 + b2)
        loss = -np.log(p[np.arange(n), targets]).mean()
        p[np.arange(n), targets] -= 1
        p /= n
        gh = (p @ w2.T) * (h > 0)
        grads = [x.T @ gh, gh.sum(axis=0), h.T @ p, p.sum(axis=0)]
        return loss.reshape(1), [w - self.dtype(rate) * g for w, g in zip((w1, b1, w2, b2), grads)]


def run(r):
    adapter.limit_threads(r, 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS', 'OMP_NUM_THREADS')
    import numpy
    return adapter.measure(r, Stack(r), {'numpy': numpy.__version__})


if __name__ == '__main__':
    adapter.main(run)
