"""ONNX Runtime's side of bench_core's rows of convolutions: the program starts it, by the interpreter $ORT_BENCH.

    conv_onnx.py THREADS

A line in, a number out, or "no WHY":
    conv IMAGES CHANNELS SIDE FILTERS KERNEL STRIDE GROUPS    what "time" times, padded to keep the side at stride 1
    resnet50                                                  the same, of one picture; norms are folded
    time N                                                    seconds that N runs take after some that are not counted;
                                                              with one thread the processor's
"""
import os
import sys
import time

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

THREADS = int(sys.argv[1])
RANDOM = np.random.default_rng(1)


class Model:
    def __init__(self):
        self.nodes, self.weights = [], []

    def weight(self, name, shape, scale):
        values = (RANDOM.random(shape, dtype=np.float32) * 2 - 1) * scale
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def add(self, op, inputs, **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def conv(self, x, channels, filters, kernel, stride=1, groups=1, bias=True, scale=1.0):
        n, terms = len(self.weights), channels // groups * kernel * kernel
        inputs = [x, self.weight(f"w{n}", (filters, channels // groups, kernel, kernel), scale * (6 / terms) ** 0.5)]
        if bias:
            inputs.append(self.weight(f"b{n}", (filters,), 0))
        return self.add("Conv", inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4,
                        group=groups)

    def runs(self, y, shape):
        """A function that runs it on one drawn input, which lies where it is read, as its result does."""
        graph = helper.make_graph(self.nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                                  [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = ort.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.inter_op_num_threads = 1
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        x = RANDOM.random(shape, dtype=np.float32) * 2 - 1
        bound = session.io_binding()
        bound.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
        shape = session.run(None, {"x": x})[0].shape
        bound.bind_ortvalue_output(y, ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32))
        return lambda: session.run_with_iobinding(bound)


def conv(images, channels, side, filters, kernel, stride, groups):
    m = Model()
    return m.runs(m.conv("x", channels, filters, kernel, stride, groups, bias=False), [images, channels, side, side])


def resnet50():
    m = Model()

    def relu(x):
        return m.add("Relu", [x])
    h, channels = relu(m.conv("x", 3, 64, 7, 2)), 64
    h = m.add("MaxPool", [h], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        thin = 64 << stage
        for b in range(blocks):
            stride = 2 if stage and not b else 1
            past = h if b else m.conv(h, channels, 4 * thin, 1, stride)
            t = relu(m.conv(h, channels, thin, 1))
            t = relu(m.conv(t, thin, thin, 3, stride))
            h = relu(m.add("Add", [m.conv(t, thin, 4 * thin, 1, scale=0.3), past]))
            channels = 4 * thin
    h = m.add("Flatten", [m.add("GlobalAveragePool", [h])])
    return m.runs(m.add("MatMul", [h, m.weight("head", (2048, 1000), 0.05)]), [1, 3, 224, 224])


WAKE = 0.005  # seconds, as SIDE_WAKE_US


def main():
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    clock = time.process_time if THREADS == 1 else time.perf_counter
    run = None
    for line in sys.stdin:
        word, *rest = line.split()
        try:
            if word == "time":
                end = time.perf_counter() + WAKE
                run()
                while time.perf_counter() < end:
                    run()
                start = clock()
                for _ in range(int(rest[0])):
                    run()
                out.write(f"{clock() - start:.9f}\n")
            else:
                run = {"conv": conv, "resnet50": resnet50}[word](*(int(r) for r in rest))
                out.write("0\n")
        except Exception as e:
            out.write("no " + " ".join(str(e).split())[:160] + "\n")


if __name__ == "__main__":
    main()
