"""PyTorch: as it is (eager), by torch.compile (compile), or captured as a CUDA graph (graph).
TORCH_EAGER_BENCH_CMD='python3 bench/adapters/pytorch.py eager', and so on"""
import os
import sys

import adapter

DTYPES = {'f32': 'float32', 'f16': 'float16', 'bf16': 'bfloat16', 'f64': 'float64'}


class Stack:
    """With `fixed`, positions are tensors and a step of decoding sees its whole cache through a mask, so that shapes stay."""

    def __init__(self, r, mode):
        import torch
        number = adapter.gpu_number(r['device'])
        if number is not None and not torch.cuda.is_available():
            raise adapter.Unavailable('this PyTorch sees no GPU')
        if mode == 'graph' and number is None:
            raise adapter.Unavailable('CUDA graphs need a GPU')
        self.torch, self.r, self.mode, self.fixed = torch, r, mode, mode != 'eager'
        self.gpu = number is not None
        self.device = torch.device('cuda', number) if self.gpu else torch.device('cpu')
        self.dtype = getattr(torch, DTYPES[r['dtype']])
        torch.set_float32_matmul_precision('high' if os.environ.get('GENIE_TF32') == '1' else 'highest')
        if r.get('threads'):
            torch.set_num_threads(r['threads'])
        if self.gpu:
            torch.cuda.set_device(self.device)
            torch.cuda.reset_peak_memory_stats()
        self.run = torch.compile(self._value) if mode == 'compile' else self._value
        self.graph = None

    # ---- what adapter.measure asks for ----

    def leaf(self, spec, place):
        torch = self.torch
        n = 1
        for d in spec.shape:
            n *= d
        out = torch.empty(n, dtype=torch.int64 if spec.below else self.dtype, device=self.device)
        key = adapter.key_of(self.r['seed'], place)
        for at in range(0, n, 1 << 24):
            i = torch.arange(at, min(n, at + (1 << 24)), device=self.device)
            h = adapter.mix((i & 0xFFFFFFFF) ^ key)
            if spec.below:
                out[at:at + len(i)] = h % spec.below
            else:
                u = (h >> 8).to(torch.float32) * 2.0 ** -23 - 1
                middle, spread = torch.tensor([spec.middle, spec.spread], dtype=torch.float32, device=self.device)
                out[at:at + len(i)] = (u * spread + middle).to(self.dtype)
        return out.reshape(spec.shape)

    def _value(self, t, first):
        import workloads
        out, states = workloads.value(self, self.r, t, first)
        return out, states, out.argmax(dim=1, keepdim=True) if workloads.is_model(self.r) else None

    def call(self, t, first):
        with self.torch.set_grad_enabled(self.r['workload'] == 'training'):
            return self._graph_call(t, first) if self.mode == 'graph' else self._plain_call(t, first)

    def _plain_call(self, t, first):
        at = self.torch.tensor(first, device=self.device) if self.fixed else first
        out, states, self.next = self.run(t, at)
        return out, states

    def _graph_call(self, t, first):
        """The first call runs as it is, the second is captured; later ones put tokens and position in place and replay."""
        torch = self.torch
        if self.graph is None:
            self.t, self.first = list(t), torch.tensor(first, device=self.device)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                out, states, self.next = self._value(self.t, self.first)
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out, self.states, self.next_in_graph = self._value(self.t, self.first)
            return out, states
        self.first.fill_(first)
        if t[0] is not self.t[0]:
            self.t[0].copy_(t[0])
        self.graph.replay()
        self.next = self.next_in_graph
        return self.out, self.states

    def flat(self, out):
        return out.detach().reshape(-1).double().cpu()

    def tokens(self, logits):
        self.next.cpu()
        return self.next

    def item(self, out):
        return out.item()

    def wait(self, out):
        if self.gpu:
            self.torch.cuda.synchronize()

    def peak(self):
        return self.torch.cuda.max_memory_allocated() if self.gpu else adapter.host_peak()

    # ---- operations ----

    def matmul(self, a, b):
        return a @ b

    def linear(self, x, w, b):
        return self.torch.addmm(b, x, w)

    def by_rows(self, x, table):
        return x @ table.T

    def relu(self, x):
        return self.torch.relu(x)

    def sigmoid(self, x):
        return self.torch.sigmoid(x)

    def silu(self, x):
        return self.torch.nn.functional.silu(x)

    def gelu(self, x):
        return self.torch.nn.functional.gelu(x)

    def gelu_tanh(self, x):
        return self.torch.nn.functional.gelu(x, approximate='tanh')

    def softmax(self, x):
        return self.torch.softmax(x, dim=-1)

    def layernorm(self, x, gain, bias):
        return self.torch.nn.functional.layer_norm(x, gain.shape, gain, bias, 1e-5)

    def rmsnorm(self, x, gain):
        return self.torch.nn.functional.rms_norm(x, gain.shape, gain, 1e-5)

    def row_sum(self, x):
        return x.sum(dim=-1)

    def reshape(self, x, shape):
        return x.reshape(shape)

    def swap(self, x):
        return x.transpose(1, 2)

    def rows(self, table, ids):
        return table[ids]

    def positions(self, first):
        return self.torch.arange(self.r['new'], device=self.device) + first

    def put(self, cache, x, first):
        if self.fixed:
            return cache.index_copy_(2, self.positions(first), x)
        cache[:, :, first:first + x.shape[2]] = x
        return cache

    def attention(self, q, k, v):
        return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                                     enable_gqa=q.shape[1] != k.shape[1])

    def attend_past(self, q, keys, values, first):
        attend = self.torch.nn.functional.scaled_dot_product_attention
        grouped = q.shape[1] != keys.shape[1]
        if not self.fixed:
            return attend(q, keys[:, :, :first + 1], values[:, :, :first + 1], enable_gqa=grouped)
        seen = self.torch.arange(self.r['room'], device=self.device) <= first
        return attend(q, keys, values, attn_mask=seen.reshape(1, 1, 1, -1), enable_gqa=grouped)

    def rotary(self, x, positions, base):
        torch, half = self.torch, x.shape[3] // 2
        powers = base ** (-torch.arange(half, dtype=torch.float64, device=self.device) / half)
        angle = positions[:, None].double() * powers
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x[..., :half].float(), x[..., half:].float()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=3).to(x.dtype)

    def train(self, t, rate):
        torch, (x, targets, *params) = self.torch, t

        def loss_of(params):
            h = self.linear(torch.relu(self.linear(x, params[0], params[1])), params[2], params[3])
            return torch.nn.functional.cross_entropy(h, targets)

        if self.mode == 'compile':
            grads, loss = torch.func.grad_and_value(loss_of)(params)
        else:
            leaves = [p.detach().requires_grad_() for p in params]
            loss = loss_of(leaves)
            grads = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            for p, g in zip(params, grads):
                p -= rate * g
        return loss.detach().reshape(1), list(params)


def run(r):
    mode = sys.argv[1] if len(sys.argv) == 2 else ''
    if mode not in ('eager', 'compile', 'graph'):
        raise SystemExit('pytorch.py eager, compile or graph')
    import torch
    versions = {'torch': torch.__version__, 'cuda': torch.version.cuda or 'none'}
    return adapter.measure(r, Stack(r, mode), versions)


if __name__ == '__main__':
    adapter.main(run)
