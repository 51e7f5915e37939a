"""ONNX Runtime: the workload as one graph, its states bound to memory of the device.
ONNXRUNTIME_BENCH_CMD='python3 bench/adapters/onnxruntime_session.py'"""
import math

import adapter

DTYPES = {'f32': 'FLOAT', 'f16': 'FLOAT16', 'f64': 'DOUBLE'}


class Tensor:
    """A name of a value in the graph, with the operators that workloads.py uses."""

    def __init__(self, stack, name, shape=None):
        self.stack, self.name, self.shape = stack, name, shape

    def __add__(self, other):
        return self.stack.op('Add', self, self.stack.tensor(other))

    def __mul__(self, other):
        return self.stack.op('Mul', self, self.stack.tensor(other))

    def __getitem__(self, where):
        """[:, a:b] and [:, -1]"""
        s, (_, at) = self.stack, where
        if isinstance(at, slice):
            return s.op('Slice', self, s.ints([at.start]), s.ints([at.stop]), s.ints([1]))
        return s.op('Gather', self, s.ints(at), axis=1)


class Stack:
    def __init__(self, r):
        import numpy as np
        import onnx
        import onnxruntime
        import numpy_leaves
        if r['dtype'] not in DTYPES:
            raise adapter.Unavailable(f"ONNX Runtime has few kernels for {r['dtype']}")
        if r['workload'] == 'training':
            raise adapter.Unavailable('ONNX Runtime runs graphs, and this workload trains')
        number = adapter.gpu_number(r['device'])
        provider = 'CPUExecutionProvider' if number is None else 'CUDAExecutionProvider'
        if provider not in onnxruntime.get_available_providers():
            raise adapter.Unavailable(f'this ONNX Runtime has no {provider}')
        self.provider = provider if number is None else (provider, {'device_id': number})
        self.place = ('cpu', 0) if number is None else ('cuda', number)
        self.np, self.onnx, self.ort, self.r, self.leaves = np, onnx, onnxruntime, r, numpy_leaves
        self.dtype = {'f32': np.float32, 'f16': np.float16, 'f64': np.float64}[r['dtype']]
        self.kind = getattr(onnx.TensorProto, DTYPES[r['dtype']])
        self.nodes, self.constants, self.n, self.session = [], [], 0, None

    # ---- the graph ----

    def op(self, kind, *inputs, **attributes):
        self.n += 1
        name = f'v{self.n}'
        self.nodes.append(self.onnx.helper.make_node(kind, [x.name for x in inputs], [name], **attributes))
        return Tensor(self, name)

    def constant(self, array):
        self.n += 1
        self.constants.append(self.onnx.numpy_helper.from_array(array, f'c{self.n}'))
        return Tensor(self, f'c{self.n}')

    def tensor(self, x):
        return x if isinstance(x, Tensor) else self.constant(self.np.array(x, self.dtype))

    def ints(self, x):
        return self.constant(self.np.array(x, self.np.int64))

    def build(self, t):
        """Weights are a part of the graph; ids, position and states go in and come out."""
        import workloads
        make, specs = self.onnx.helper, workloads.inputs(self.r)
        model = workloads.is_model(self.r)
        if sum(x.nbytes for x, s in zip(t, specs) if not s.state) > 1.9e9:
            raise adapter.Unavailable('the weights are more than one ONNX file holds (2 GB)')
        self.fed = [i for i, s in enumerate(specs) if s.state or s.name == 'ids' or not model and s.name in 'xyabqkv']
        names, inputs = [], []
        for i, (x, s) in enumerate(zip(t, specs)):
            names.append(Tensor(self, f't{i}'))
            if i in self.fed:
                kind = self.onnx.TensorProto.INT64 if s.below else self.kind
                inputs.append(make.make_tensor_value_info(f't{i}', kind, s.shape))
            else:
                self.constants.append(self.onnx.numpy_helper.from_array(x, f't{i}'))
        inputs.append(make.make_tensor_value_info('first', self.onnx.TensorProto.INT64, []))
        out, states = workloads.value(self, self.r, names, Tensor(self, 'first'))
        results = [out] + states
        if model:
            results.append(self.op('ArgMax', out, axis=1, keepdims=1))
        if not model or not any(n for n in self.nodes if 'first' in n.input):
            inputs.pop()
        outputs = [make.make_empty_tensor_value_info(x.name) for x in results]
        for o, x in zip(outputs, results):
            o.type.tensor_type.elem_type = self.onnx.TensorProto.INT64 if model and x is results[-1] else self.kind
        graph = make.make_graph(self.nodes, 'workload', inputs, outputs, self.constants)
        made = make.make_model(graph, opset_imports=[make.make_opsetid('', 20)], ir_version=10)
        options = self.ort.SessionOptions()
        if self.r.get('threads'):
            options.intra_op_num_threads = self.r['threads']
        self.session = self.ort.InferenceSession(made.SerializeToString(), options, providers=[self.provider])
        self.outputs, self.takes_first = [x.name for x in results], len(inputs) > len(self.fed)
        self.bound = {i: self.ort.OrtValue.ortvalue_from_numpy(t[i], *self.place) for i in self.fed}
        self.slots = [i for i, s in enumerate(specs) if s.state]

    # ---- what adapter.measure asks for ----

    def leaf(self, spec, place):
        if spec.below:
            return self.leaves.integers(spec, self.r['seed'], place)
        return self.leaves.floats(spec, self.r['seed'], place).astype(self.dtype)

    def call(self, t, first):
        if self.session is None:
            self.build(t)
            self.ids = t[0]
        if t[0] is not self.ids:
            self.bound[0] = self.ort.OrtValue.ortvalue_from_numpy(t[0], *self.place)
            self.ids = t[0]
        binding = self.session.io_binding()
        for i, value in self.bound.items():
            binding.bind_ortvalue_input(f't{i}', value)
        if self.takes_first:
            binding.bind_cpu_input('first', self.np.array(first, self.np.int64))
        for name in self.outputs:
            binding.bind_output(name, *self.place)
        self.session.run_with_iobinding(binding)
        out = binding.get_outputs()
        for i, value in zip(self.slots, out[1:]):
            self.bound[i] = value
        self.last = out[-1]
        return out[0], [t[i] for i in self.slots]

    def flat(self, out):
        return out.numpy().astype('float64').ravel()

    def tokens(self, logits):
        return self.last.numpy()

    def wait(self, out):
        pass  # a run ends when its outputs are there

    def peak(self):
        return adapter.host_peak() if self.place[0] == 'cpu' else None

    # ---- operations ----

    def matmul(self, a, b):
        return self.op('MatMul', a, b)

    def linear(self, x, w, b):
        return self.op('Gemm', x, w, b)

    def by_rows(self, x, table):
        return self.op('Gemm', x, table, transB=1)

    def relu(self, x):
        return self.op('Relu', x)

    def sigmoid(self, x):
        return self.op('Sigmoid', x)

    def silu(self, x):
        return x * self.sigmoid(x)

    def gelu(self, x):
        return self.op('Gelu', x)

    def gelu_tanh(self, x):
        return self.op('Gelu', x, approximate='tanh')

    def softmax(self, x):
        return self.op('Softmax', x, axis=-1)

    def layernorm(self, x, gain, bias):
        return self.op('LayerNormalization', x, gain, bias, axis=-1, epsilon=1e-5)

    def rmsnorm(self, x, gain):
        mean = self.op('ReduceMean', x * x, self.ints([-1]), keepdims=1)
        return self.op('Div', x, self.op('Sqrt', mean + 1e-5)) * gain

    def row_sum(self, x):
        return self.op('ReduceSum', x, self.ints([-1]), keepdims=0)

    def reshape(self, x, shape):
        return self.op('Reshape', x, self.ints(shape))

    def swap(self, x):
        return self.op('Transpose', x, perm=[0, 2, 1, 3])

    def rows(self, table, ids):
        return self.op('Gather', table, ids, axis=0)

    def positions(self, first):
        return self.op('Add', self.ints(range(self.r['new'])), first)

    def put(self, cache, x, first):
        r = self.r
        where = self.op('Reshape', self.positions(first), self.ints((1, 1, r['new'], 1)))
        where = self.op('Expand', where, self.ints((r['batch'], r['kv_heads'], r['new'], r['head'])))
        return self.op('ScatterElements', cache, where, x, axis=2)

    def attention(self, q, k, v):
        n, big = self.r['tokens'], self.np.finfo(self.dtype).min
        mask = self.np.triu(self.np.full((n, n), big, self.dtype), 1)
        return self._attend(q, k, v, self.constant(mask))

    def attend_past(self, q, keys, values, first):
        none = self.constant(self.np.array(self.np.finfo(self.dtype).min, self.dtype))
        seen = self.op('LessOrEqual', self.ints(range(self.r['room'])), first)
        return self._attend(q, keys, values, self.op('Where', seen, self.tensor(0.0), none))

    def _spread(self, x, group):
        """(batch, kv_heads, room, head) to (batch, heads, room, head)"""
        r = self.r
        wide = self.op('Unsqueeze', x, self.ints([2]))
        wide = self.op('Expand', wide, self.ints((1, 1, group, 1, 1)))
        return self.op('Reshape', wide, self.ints((r['batch'], r['heads'], -1, r['head'])))

    def _attend(self, q, k, v, mask):
        group = self.r['heads'] // (self.r['kv_heads'] or self.r['heads'])
        if group > 1:
            k, v = self._spread(k, group), self._spread(v, group)
        scores = self.matmul(q, self.op('Transpose', k, perm=[0, 1, 3, 2])) * (1 / math.sqrt(self.r['head']))
        return self.matmul(self.softmax(scores + mask), v)

    def rotary(self, x, positions, base):
        half = self.r['head'] // 2
        powers = self.constant(self.np.array([[base ** (-i / half) for i in range(half)]], self.np.float32))
        angle = self.op('MatMul', self.op('Cast', self.reshape(positions, (-1, 1)), to=self.onnx.TensorProto.FLOAT), powers)
        cos, sin = (self.op('Cast', self.op(f, angle), to=self.kind) for f in ('Cos', 'Sin'))
        a = self.op('Slice', x, self.ints([0]), self.ints([half]), self.ints([3]))
        b = self.op('Slice', x, self.ints([half]), self.ints([2 * half]), self.ints([3]))
        left = self.op('Sub', a * cos, b * sin)
        return self.op('Concat', left, b * cos + a * sin, axis=3)


def run(r):
    import onnx
    import onnxruntime
    return adapter.measure(r, Stack(r), {'onnxruntime': onnxruntime.__version__, 'onnx': onnx.__version__})


if __name__ == '__main__':
    adapter.main(run)
