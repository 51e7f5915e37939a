"""JAX, each step one jax.jit with its states donated. JAX_BENCH_CMD='python3 bench/adapters/jax_jit.py'"""
import math
import os

import adapter

os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
DTYPES = {'f32': 'float32', 'f16': 'float16', 'bf16': 'bfloat16', 'f64': 'float64'}


class Stack:
    def __init__(self, r):
        import jax
        import numpy_leaves
        number = adapter.gpu_number(r['device'])
        jax.config.update('jax_enable_x64', r['dtype'] == 'f64')
        if os.environ.get('GENIE_TF32') != '1':
            jax.config.update('jax_default_matmul_precision', 'highest')
        try:
            self.device = jax.devices('cpu' if number is None else 'gpu')[number or 0]
        except (RuntimeError, IndexError) as why:
            raise adapter.Unavailable(f'this JAX has no such device: {why}') from None
        self.jax, self.np, self.r, self.leaves = jax, jax.numpy, r, numpy_leaves
        self.dtype = getattr(self.np, DTYPES[r['dtype']])
        import workloads
        self.specs, self.model = workloads.inputs(r), workloads.is_model(r)
        self.slots = [i for i, spec in enumerate(self.specs) if spec.state]
        self.others = [i for i, spec in enumerate(self.specs) if not spec.state]
        self.step = jax.jit(self._step, donate_argnums=1)

    def _step(self, others, states, first):
        import workloads
        t = [None] * len(self.specs)
        for i, x in zip(self.others + self.slots, list(others) + list(states)):
            t[i] = x
        out, after = workloads.value(self, self.r, t, first)
        return out, after, self.np.argmax(out, axis=1, keepdims=True).astype(self.np.int32) if self.model else out

    # ---- what adapter.measure asks for ----

    def leaf(self, spec, place):
        if spec.below:
            host = self.leaves.integers(spec, self.r['seed'], place).astype('int32')
        else:
            host = self.leaves.floats(spec, self.r['seed'], place).astype(self.dtype)
        return self.jax.device_put(host, self.device)

    def call(self, t, first):
        out, states, self.next = self.step([t[i] for i in self.others], [t[i] for i in self.slots], first)
        return out, states

    def flat(self, out):
        import numpy
        return numpy.asarray(out).astype(numpy.float64).ravel()

    def tokens(self, logits):
        import numpy
        numpy.asarray(self.next)
        return self.next

    def item(self, out):
        return float(out[0])

    def wait(self, out):
        out.block_until_ready()

    def peak(self):
        stats = self.device.memory_stats()
        return stats['peak_bytes_in_use'] if stats else adapter.host_peak()

    # ---- operations ----

    def matmul(self, a, b):
        return a @ b

    def linear(self, x, w, b):
        return x @ w + b

    def by_rows(self, x, table):
        return x @ table.T

    def relu(self, x):
        return self.jax.nn.relu(x)

    def sigmoid(self, x):
        return self.jax.nn.sigmoid(x)

    def silu(self, x):
        return self.jax.nn.silu(x)

    def gelu(self, x):
        return self.jax.nn.gelu(x, approximate=False)

    def gelu_tanh(self, x):
        return self.jax.nn.gelu(x, approximate=True)

    def softmax(self, x):
        return self.jax.nn.softmax(x, axis=-1)

    def _wide(self, x):
        return x.astype(self.np.float32) if x.dtype.itemsize < 4 else x

    def layernorm(self, x, gain, bias):
        w = self._wide(x)
        c = w - w.mean(axis=-1, keepdims=True)
        return (c / self.np.sqrt((c * c).mean(axis=-1, keepdims=True) + 1e-5)).astype(x.dtype) * gain + bias

    def rmsnorm(self, x, gain):
        w = self._wide(x)
        return (w / self.np.sqrt((w * w).mean(axis=-1, keepdims=True) + 1e-5)).astype(x.dtype) * gain

    def row_sum(self, x):
        return x.sum(axis=-1)

    def reshape(self, x, shape):
        return x.reshape(shape)

    def swap(self, x):
        return x.swapaxes(1, 2)

    def rows(self, table, ids):
        return table[ids]

    def positions(self, first):
        return self.np.arange(self.r['new']) + first

    def put(self, cache, x, first):
        return self.jax.lax.dynamic_update_slice(cache, x, (0, 0, first, 0))

    def attention(self, q, k, v):
        return self._attend(q, k, v, self.np.tril(self.np.ones((q.shape[2], k.shape[2]), bool)))

    def attend_past(self, q, keys, values, first):
        return self._attend(q, keys, values, self.np.arange(self.r['room']) <= first)

    def _attend(self, q, k, v, seen):
        """By the stack's own attention, which takes (batch, tokens, heads, head)."""
        out = self.jax.nn.dot_product_attention(q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2),
                                                mask=self.np.broadcast_to(seen, (1, 1, q.shape[2], k.shape[2])))
        return out.swapaxes(1, 2)

    def rotary(self, x, positions, base):
        half = x.shape[3] // 2
        powers = self.np.array([base ** (-i / half) for i in range(half)], self.np.float32)
        angle = positions[:, None].astype(self.np.float32) * powers
        cos, sin = self.np.cos(angle), self.np.sin(angle)
        a, b = self._wide(x[..., :half]), self._wide(x[..., half:])
        return self.np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=3).astype(x.dtype)

    def train(self, t, rate):
        np, (x, targets, *params) = self.np, t

        def loss_of(params):
            h = self.relu(x @ params[0] + params[1]) @ params[2] + params[3]
            picked = np.take_along_axis(self.jax.nn.log_softmax(h), targets[:, None], axis=1)
            return -picked.mean()

        loss, grads = self.jax.value_and_grad(loss_of)(params)
        return loss.reshape(1), [p - np.asarray(rate, p.dtype) * g for p, g in zip(params, grads)]


def run(r):
    adapter.limit_threads(r, 'NPROC')  # of XLA's pool
    import jax
    import jaxlib
    return adapter.measure(r, Stack(r), {'jax': jax.__version__, 'jaxlib': jaxlib.__version__})


if __name__ == '__main__':
    adapter.main(run)
