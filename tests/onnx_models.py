#!/usr/bin/env python3
"""The models of examples/ as ONNX graphs, of the weights that the programs write, by the packages onnx and onnxruntime.

    python3 tests/onnx_models.py resnet18 build/examples FOLDER      any of MODELS

The program runs; what it computed is compared with onnxruntime's result for a graph that is written here op by op, and so is
what examples/onnx_run computes of that graph. The graph takes every tensor of the weights, or it is an error. FOLDER is
for files. Numbers are parts of the largest of onnxruntime's.
"""
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

PICTURE, SIDE = (77, 100), 64   # rows and columns; pixels a side that networks see
F32, I32, U8 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT8


class Graph:
    """Ops one after the other; a value is its name."""

    def __init__(self, weights):
        self.weights, self.used, self.nodes, self.tensors, self.inputs = weights, set(), [], {}, []

    def input(self, name, kind, shape):
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def op(self, op, *inputs, n=1, **attributes):
        out = [f"{op}_{len(self.nodes)}_{i}" for i in range(n)]
        names = [x if isinstance(x, str) else self.const(x) for x in inputs]
        self.nodes.append(helper.make_node(op, names, out, **attributes))
        return out[0] if n == 1 else out

    def const(self, value, what="const"):
        name = f"{what}_{len(self.tensors)}"
        self.tensors[name] = np.asarray(value)
        return name

    def weight(self, name):
        self.used.add(name)
        value = self.weights[name]
        return self.const(value, "weight")

    def model(self, name, value, like, version=21):
        left = set(self.weights) - self.used
        assert not left, f"not in the graph: {sorted(left)}"
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        result, tensors = helper.make_tensor_value_info(name, F32, like.shape), [numpy_helper.from_array(v, k) for k, v in self.tensors.items()]
        graph = helper.make_graph(self.nodes, "graph", self.inputs, [result], tensors)
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", version)])

    # ---- layers

    def f32(self, value):
        return self.const(np.float32(value))

    def shape(self, x, *sizes):
        return self.op("Reshape", x, np.array(sizes, np.int64))

    def mean(self, x, *axes, keep=False):
        return self.op("ReduceMean", x, np.array(axes, np.int64), keepdims=int(keep))

    def linear(self, x, name, turned=True):
        """turned: the weight is (out, in), as PyTorch has it."""
        w = self.weight(name + ".weight")
        return self.op("Add", self.op("MatMul", x, self.op("Transpose", w, perm=[1, 0]) if turned else w), self.weight(name + ".bias"))

    def conv(self, x, name, stride=1, pad=0, groups=1):
        shape = self.weights[name + ".weight"].shape
        inputs = [x, self.weight(name + ".weight")] + ([self.weight(name + ".bias")] if name + ".bias" in self.weights else [])
        rank = len(shape) - 2
        return self.op("Conv", *inputs, strides=[stride] * rank, pads=[pad] * 2 * rank, group=groups)

    def batch_norm(self, x, name, epsilon=1e-5):
        parts = [self.weight(f"{name}.{part}") for part in ("weight", "bias", "running_mean", "running_var")]
        return self.op("BatchNormalization", x, *parts, epsilon=epsilon)

    def layer_norm(self, x, name, epsilon=1e-5):
        return self.op("LayerNormalization", x, self.weight(name + ".weight"), self.weight(name + ".bias"), axis=-1, epsilon=epsilon)

    def group_norm(self, x, name):
        return self.op("GroupNormalization", x, self.weight(name + ".weight"), self.weight(name + ".bias"), num_groups=8, epsilon=1e-5)

    def silu(self, x):
        return self.op("Mul", x, self.op("Sigmoid", x))

    def attention(self, q, k, v, heads, size):
        """q (N,T,heads*size), k and v (N,S,heads*size)"""
        q, k, v = (self.op("Transpose", self.shape(x, 0, 0, heads, size), perm=[0, 2, 1, 3]) for x in (q, k, v))
        scores = self.op("Mul", self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2])), self.f32(size ** -0.5))
        y = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        return self.shape(self.op("Transpose", y, perm=[0, 2, 1, 3]), 0, 0, heads * size)


# ---- pictures, as torchvision has them


def prepared(g, resize):
    """uint8 (rows, columns, 3) to (1, 3, SIDE, SIDE)"""
    short = min(PICTURE)
    to = [side * resize // short for side in PICTURE]
    x = g.op("Cast", g.input("picture", U8, [*PICTURE, 3]), to=F32)
    x = g.op("Unsqueeze", g.op("Transpose", x, perm=[2, 0, 1]), np.array([0], np.int64))
    x = g.op("Resize", x, "", "", np.array([1, 3, *to], np.int64), mode="linear", antialias=1)
    begin = [int(np.rint((side - SIDE) / 2)) for side in to]
    x = g.op("Slice", x, np.array(begin, np.int64), np.array([b + SIDE for b in begin], np.int64), np.array([2, 3], np.int64))
    of = [np.array(v, np.float32).reshape(3, 1, 1) * np.float32(255) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    return g.op("Div", g.op("Sub", x, of[0]), of[1])


def resnet(g, x, depths, convs):
    """convs of a block: 2 of 3x3, or 3 of which the middle one is"""
    x = g.op("Relu", g.batch_norm(g.conv(x, "conv1", 2, 3), "bn1"))
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for stage, depth in enumerate(depths, 1):
        for block in range(depth):
            name, stride, y = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1, x
            for i in range(1, convs + 1):
                wide = convs == 2 or i == 2
                y = g.conv(y, f"{name}.conv{i}", stride if i == convs - 1 else 1, int(wide))
                y = g.batch_norm(y, f"{name}.bn{i}")
                y = g.op("Relu", y) if i < convs else y
            if f"{name}.downsample.0.weight" in g.weights:
                x = g.batch_norm(g.conv(x, f"{name}.downsample.0", stride), f"{name}.downsample.1")
            x = g.op("Relu", g.op("Add", y, x))
    return g.linear(g.mean(x, 2, 3), "fc")


def mobilenet(g, x, strides, relus):
    """strides of the blocks; how many of them have ReLU (Howard et al. 2019, tables 1 and 2)"""
    def unit(x, name, act, stride=1, groups=1):
        k = g.weights[name + ".0.weight"].shape[2]
        x = g.batch_norm(g.conv(x, name + ".0", stride, k // 2, groups), name + ".1", 1e-3)
        return g.op(act, x) if act else x
    x, channels = unit(x, "features.0", "HardSwish", 2), 16
    for i, stride in enumerate(strides, 1):
        act, part, y, inner = "Relu" if i <= relus else "HardSwish", 0, x, channels
        name = f"features.{i}.block."
        if g.weights[name + "0.0.weight"].shape[1] != 1:
            inner, part = g.weights[name + "0.0.weight"].shape[0], 1
            y = unit(y, name + "0", act)
        y, part = unit(y, f"{name}{part}", act, stride, inner), part + 1
        if f"{name}{part}.fc1.weight" in g.weights:
            gate = g.op("Relu", g.conv(g.mean(y, 2, 3, keep=True), f"{name}{part}.fc1"))
            y = g.op("Mul", y, g.op("HardSigmoid", g.conv(gate, f"{name}{part}.fc2"), alpha=1 / 6, beta=0.5))
            part += 1
        y, out = unit(y, f"{name}{part}", None), g.weights[f"{name}{part}.0.weight"].shape[0]
        x = g.op("Add", x, y) if stride == 1 and out == channels else y
        channels = out
    x = g.mean(unit(x, f"features.{len(strides) + 1}", "HardSwish"), 2, 3)
    return g.linear(g.op("HardSwish", g.linear(x, "classifier.0")), "classifier.3")


def convnext(g, x, depths):
    def last(x):
        return g.op("Transpose", x, perm=[0, 2, 3, 1])

    def first(x):
        return g.op("Transpose", x, perm=[0, 3, 1, 2])
    x = first(g.layer_norm(last(g.conv(x, "features.0.0", 4)), "features.0.1", 1e-6))
    for stage, depth in enumerate(depths):
        if stage:
            x = g.conv(first(g.layer_norm(last(x), f"features.{2 * stage}.0", 1e-6)), f"features.{2 * stage}.1", 2)
        for block in range(depth):
            name = f"features.{2 * stage + 1}.{block}"
            y = last(g.conv(x, name + ".block.0", 1, 3, g.weights[name + ".block.0.weight"].shape[0]))
            y = g.op("Gelu", g.linear(g.layer_norm(y, name + ".block.2", 1e-6), name + ".block.3"))
            x = g.op("Add", x, g.op("Mul", first(g.linear(y, name + ".block.5")), g.weight(name + ".layer_scale")))
    return g.linear(g.layer_norm(g.mean(x, 2, 3), "classifier.0", 1e-6), "classifier.2")


def vit(g, x, layers, heads, dim):
    x = g.op("Transpose", g.shape(g.conv(x, "conv_proj", 16), 0, dim, -1), perm=[0, 2, 1])
    x = g.op("Add", g.op("Concat", g.weight("class_token"), x, axis=1), g.weight("encoder.pos_embedding"))
    for i in range(layers):
        name = f"encoder.layers.encoder_layer_{i}."
        y = g.layer_norm(x, name + "ln_1", 1e-6)
        w, b = g.weight(name + "self_attention.in_proj_weight"), g.weight(name + "self_attention.in_proj_bias")
        y = g.op("Split", g.op("Add", g.op("MatMul", y, g.op("Transpose", w, perm=[1, 0])), b), n=3, axis=-1, num_outputs=3)
        x = g.op("Add", x, g.linear(g.attention(*y, heads, dim // heads), name + "self_attention.out_proj"))
        y = g.op("Gelu", g.linear(g.layer_norm(x, name + "ln_2", 1e-6), name + "mlp.0"))
        x = g.op("Add", x, g.linear(y, name + "mlp.3"))
    x = g.op("Gather", g.layer_norm(x, "encoder.ln", 1e-6), np.array(0, np.int64), axis=1)
    return g.linear(x, "heads.head")


VISION = {
    "resnet18": lambda g, x: resnet(g, x, (2, 2, 2, 2), 2),
    "resnet50": lambda g, x: resnet(g, x, (3, 4, 6, 3), 3),
    "mobilenet_v3_large": lambda g, x: mobilenet(g, x, (1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1), 6),
    "mobilenet_v3_small": lambda g, x: mobilenet(g, x, (2, 2, 1, 2, 1, 1, 1, 1, 2, 1, 1), 3),
    "convnext_tiny": lambda g, x: convnext(g, x, (3, 3, 9, 3)),
    "vit_b_16": lambda g, x: vit(g, x, 12, 12, 768),
}


def vision(arch, run, folder):
    n = PICTURE[0] * PICTURE[1] * 3
    picture = np.array([(i * i * 7 + i * 13 + i // 11) % 256 for i in range(n)], np.uint8).reshape(*PICTURE, 3)
    with open(folder + "/picture.ppm", "wb") as f:
        f.write(b"P6\n%d %d\n255\n" % (PICTURE[1], PICTURE[0]) + picture.tobytes())
    run("vision", "--random", arch, "--seed", "7", "--size", SIDE, "--classes", 10, "--save", folder, "--image", folder + "/picture.ppm",
        "--out", folder + "/logits")
    g = Graph(load_file(folder + "/model.safetensors"))
    x = prepared(g, SIDE * (236 if arch.startswith("convnext") else 256) // 224)
    logits = load_file(folder + "/logits")["logits"]
    return g.model("logits", VISION[arch](g, x), logits), [{"picture": picture}], {"logits": logits}


# ---- the programs that learn: a few steps, so that no weight is what it was at first


def take(folder, *names):
    """The named tensors, and the rest, which are parameters."""
    tensors = load_file(folder + "/answers")
    return *[tensors.pop(name) for name in names], tensors


def vqa(_, run, folder):
    run("vqa", "--connect", "cpu", "--steps", 12, "--min-accuracy", 0, "--answers", folder + "/answers")
    pixels, question, logits, weights = take(folder, "pixels", "question", "logits")
    g, order = Graph(weights), sorted(weights)   # 000.image.patch, 001.image.patch: as the program's graph has them

    def get():
        return g.weight(order.pop(0))

    def linear(x):
        return g.op("Add", g.op("MatMul", x, get()), get())

    def norm(x):
        return g.op("LayerNormalization", x, get(), get(), axis=-1, epsilon=1e-5)

    def layer(x, over=None):
        a = norm(x)
        q, k, v = linear(a), linear(over or a), linear(over or a)
        x = g.op("Add", x, linear(g.attention(q, k, v, 4, 12)))
        return g.op("Add", x, linear(g.op("Gelu", linear(norm(x)))))

    image = g.op("Conv", g.input("pixels", F32, pixels.shape), get(), get(), strides=[8, 8])
    image = g.op("Add", g.op("Transpose", g.shape(image, 0, 48, -1), perm=[0, 2, 1]), get())
    image = norm(layer(layer(image)))
    text = g.op("Add", g.op("Gather", get(), g.input("question", I32, question.shape)), get())
    text = norm(layer(layer(text)))
    text = layer(layer(text, image), image)
    y = linear(norm(g.mean(text, 1)))
    return g.model("logits", y, logits), [{"pixels": pixels, "question": question}], {"logits": logits}


FIELDS = ("item", "visitor", "seen_before", "words", "city", "tags", "device")


def recommend(_, run, folder):
    run("recommend", "--connect", "cpu", "--steps", 12, "--batch", 64, "--held-out", 300, "--min-auc", 0, "--answers", folder + "/answers")
    names = [f"{kind}.{field}" for field in FIELDS for kind in ("ids", "lengths")]
    *values, weights = take(folder, "dense", *names, "odds")
    given = dict(zip(["dense", *names], values))
    g = Graph(weights)
    name = {k: g.input(k, F32 if k == "dense" else I32, v.shape) for k, v in given.items()}

    def relu(x, layer):
        return g.op("Relu", g.linear(x, layer, turned=False))

    def bag(field):
        """Of each visit the mean of its rows: a matrix of which ids are in which bag, times all rows."""
        size = g.op("Cast", name["lengths." + field], to=F32)
        end = g.shape(g.op("CumSum", size, np.array(0, np.int64)), -1, 1)
        begin = g.op("Sub", end, g.shape(size, -1, 1))
        at = np.arange(len(given["ids." + field]), dtype=np.float32)
        inside = g.op("And", g.op("GreaterOrEqual", at, begin), g.op("Less", at, end))
        rows = g.op("Gather", g.weight("table." + field), name["ids." + field])
        total = g.op("MatMul", g.op("Cast", inside, to=F32), rows)
        return g.op("Div", total, g.op("Max", g.shape(size, -1, 1), g.f32(1)))

    x = relu(relu(name["dense"], "bottom.0"), "bottom.1")
    all_of = [g.op("Unsqueeze", v, np.array([1], np.int64)) for v in [bag(field) for field in FIELDS] + [x]]
    stack, n = g.op("Concat", *all_of, axis=1), len(all_of)
    dots = g.shape(g.op("MatMul", stack, g.op("Transpose", stack, perm=[0, 2, 1])), 0, n * n)
    below = np.array([i * n + j for i in range(1, n) for j in range(i)], np.int64)
    x = g.op("Concat", x, g.op("Gather", dots, below, axis=1), axis=1)
    y = g.linear(relu(relu(x, "top.0"), "top.1"), "top.2", turned=False)
    return g.model("odds", g.shape(y, -1), values[-1]), [given], {"odds": values[-1]}


def unet(g, x, waves, kinds):
    def residual(x, time, name):
        shape = g.weights[name + ".conv1.weight"].shape
        h = g.conv(g.silu(g.group_norm(x, name + ".norm1")), name + ".conv1", 1, 1)
        h = g.op("Add", h, g.shape(g.linear(g.silu(time), name + ".time", turned=False), -1, shape[0], 1, 1))
        h = g.conv(g.silu(g.group_norm(h, name + ".norm2")), name + ".conv2", 1, 1)
        return g.op("Add", x if shape[0] == shape[1] else g.conv(x, name + ".skip"), h)

    time = g.linear(g.silu(g.linear(waves, "time.0", turned=False)), "time.1", turned=False)
    time = g.op("Add", time, g.op("Gather", g.weight("kind"), kinds))
    # 2x2 pixels become channels: colour, row, column
    x = g.op("Transpose", g.shape(x, 0, 3, 8, 2, 8, 2), perm=[0, 1, 3, 5, 2, 4])
    x = g.conv(g.shape(x, 0, 12, 8, 8), "in", 1, 1)
    skips = [residual(x, time, "down.0")]
    skips.append(residual(skips[0], time, "down.1"))
    x = residual(g.conv(skips[1], "half", 2, 1), time, "middle.0")
    h = g.op("Transpose", g.shape(g.group_norm(x, "attention.norm"), 0, 64, 16), perm=[0, 2, 1])
    qkv = g.op("Split", g.linear(h, "attention.qkv", turned=False), n=3, axis=-1, num_outputs=3)
    h = g.linear(g.attention(*qkv, 2, 32), "attention.out", turned=False)
    x = residual(g.op("Add", x, g.shape(g.op("Transpose", h, perm=[0, 2, 1]), 0, 64, 4, 4)), time, "middle.1")
    x = g.op("Resize", x, "", np.array([1, 1, 2, 2], np.float32), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    x = residual(g.op("Concat", x, skips[1], axis=1), time, "up.1")
    x = residual(g.op("Concat", x, skips[0], axis=1), time, "up.0")
    x = g.conv(g.silu(g.group_norm(x, "out.norm")), "out", 1, 1)
    x = g.op("Transpose", g.shape(x, 0, 3, 2, 2, 8, 8), perm=[0, 1, 4, 2, 5, 3])
    return g.shape(x, 0, 3, 16, 16)


def diffusion(_, run, folder):
    steps = 4
    run("diffusion", "--connect", "cpu", "--steps", 40, "--batch", 8, "--max-loss", 9, "--samples", 8, "--sampling-steps", steps,
        "--answers", folder + "/answers", "--out", folder + "/shapes.ppm")
    noise, kinds, pictures, weights = take(folder, "noise", "kinds", "pictures")
    g = Graph(weights)
    x, kind = g.input("x", F32, noise.shape), g.input("kinds", I32, kinds.shape)
    waves = g.input("waves", F32, [len(noise), 16])
    c, s, c2, s2 = (g.input(name, F32, [1]) for name in ("c", "s", "c2", "s2"))
    v = unet(g, x, waves, kind)
    picture = g.op("Clip", g.op("Sub", g.op("Mul", c, x), g.op("Mul", s, v)), g.f32(-1), g.f32(1))
    left = g.op("Div", g.op("Sub", x, g.op("Mul", c, picture)), s)
    given = []
    for i in range(steps):
        u, after = 0.999 * (steps - i) / steps, 0.999 * (steps - i - 1) / steps
        angle = u * np.pi * 1.6 ** np.arange(8)
        row = np.concatenate([np.cos(angle), np.sin(angle)]).astype(np.float32)
        mix = {"c": np.cos(u * np.pi / 2), "s": np.sin(u * np.pi / 2), "c2": np.cos(after * np.pi / 2), "s2": np.sin(after * np.pi / 2)}
        given.append({"kinds": kinds, "waves": np.tile(row, (len(noise), 1))} | {k: np.array([a], np.float32) for k, a in mix.items()})
    given[0]["x"] = noise
    return g.model("next", g.op("Add", g.op("Mul", c2, picture), g.op("Mul", s2, left)), pictures), given, {"next": pictures}


def speech(_, run, folder):
    run("speech", "--connect", "cpu", "--steps", 12, "--batch", 8, "--held-out", 50, "--min-accuracy", 0, "--answers", folder + "/answers")
    waves, scores, weights = take(folder, "waves", "scores")
    g = Graph(weights)
    x = g.op("Unsqueeze", g.input("waves", F32, waves.shape), np.array([2], np.int64))
    window = g.op("HannWindow", np.array(256, np.int64), periodic=1)
    x = g.op("STFT", x, np.array(128, np.int64), window, np.array(256, np.int64), onesided=1)
    x = g.op("Transpose", g.op("ReduceSumSquare", x, np.array([3], np.int64), keepdims=0), perm=[0, 2, 1])
    mel = 2595 * np.log10(1 + np.arange(129) * 8000 / 256 / 700)
    at = mel / mel[-1] * 33 - np.arange(32)[:, None]
    x = g.op("MatMul", np.maximum(0, 1 - np.abs(at - 1)).astype(np.float32), x)
    x = g.op("Log", g.op("Add", x, g.f32(1e-3)))
    x = g.op("Mul", g.op("Sub", x, g.mean(x, 1, 2, keep=True)), g.f32(0.5))
    x = g.op("Transpose", g.op("Gelu", g.conv(x, "conv", 2, 1)), perm=[0, 2, 1])
    x = g.op("Add", x, g.weight("places"))
    for i in range(2):
        name = f"layer.{i}."
        qkv = g.op("Split", g.linear(g.layer_norm(x, name + "norm1"), name + "qkv", turned=False), n=3, axis=-1, num_outputs=3)
        x = g.op("Add", x, g.linear(g.attention(*qkv, 4, 12), name + "out", turned=False))
        y = g.op("Gelu", g.linear(g.layer_norm(x, name + "norm2"), name + "up", turned=False))
        x = g.op("Add", x, g.linear(y, name + "down", turned=False))
    y = g.linear(g.mean(g.layer_norm(x, "norm"), 1), "words", turned=False)
    return g.model("scores", y, scores), [{"waves": waves}], {"scores": scores}


def scan_of_batches(_, run, folder):
    """Scan as version 8 has it, of a batch of three sequences, one input backwards: ONNX's node tests have batches of one."""
    random = np.random.default_rng(5)
    first, a, b = (random.standard_normal(shape, np.float32) for shape in ((3, 2), (3, 4, 2), (3, 4, 2)))
    g = Graph({"w": random.standard_normal(2, np.float32)})
    row = [helper.make_tensor_value_info(name, F32, [2]) for name in ("state", "x", "y", "next", "seen")]
    body = [helper.make_node("Mul", ["state", "x"], ["p"]), helper.make_node("Add", ["p", "y"], ["next"]), helper.make_node("Neg", ["next"], ["seen"])]
    inputs = ["", g.op("Mul", g.input("first", F32, first.shape), g.weight("w")), g.input("a", F32, a.shape), g.input("b", F32, b.shape)]
    last, seen = g.op("Scan", *inputs, n=2, body=helper.make_graph(body, "body", row[:3], row[3:]), num_scan_inputs=2, directions=[0, 1])
    want, state = np.zeros((3, 4, 2), np.float32), first * g.weights["w"]
    for t in range(4):
        state = state * a[:, t] + b[:, 3 - t]
        want[:, t] = -state
    all_of = np.concatenate([want, state[:, None]], axis=1)
    y = g.op("Concat", seen, g.op("Unsqueeze", last, axes=[1]), axis=1)
    return g.model("y", y, all_of, 8), [{"first": first, "a": a, "b": b}], {"y": all_of}


def forest(random, trees, levels, features, targets):
    """Attributes of a TreeEnsemble of random trees: all ways of comparing, sets of values, rows that lack a value."""
    nodes, leaves, sets, roots = [], [], [], []

    def grow(level):
        if level == levels or (level and random.random() < 0.2):
            leaves.append((int(random.integers(targets)), float(np.float32(random.standard_normal()))))
            return len(leaves) - 1, 1
        nodes.append({})
        at, node = len(nodes) - 1, nodes[-1]
        node |= dict(mode=int(random.integers(7)), feature=int(random.integers(features)), split=float(random.integers(-3, 4)), missing=int(random.integers(2)))
        node["yes"], node["no"] = grow(level + 1), grow(level + 1)
        return at, 0

    for _ in range(trees):
        roots.append(grow(0)[0])
    for node in nodes:
        if node["mode"] == 6:
            sets += [float(v) for v in random.choice(np.arange(-3, 4), int(random.integers(1, 4)), False) + 0.0] + [float("nan")]
    numbers = lambda name, kind, values: helper.make_tensor(name, kind, [len(values)], values)
    return dict(tree_roots=roots, nodes_modes=numbers("m", U8, [n["mode"] for n in nodes]), nodes_featureids=[n["feature"] for n in nodes],
                nodes_splits=numbers("s", F32, [n["split"] for n in nodes]), nodes_missing_value_tracks_true=[n["missing"] for n in nodes],
                nodes_truenodeids=[n["yes"][0] for n in nodes], nodes_trueleafs=[n["yes"][1] for n in nodes], nodes_falsenodeids=[n["no"][0] for n in nodes],
                nodes_falseleafs=[n["no"][1] for n in nodes], leaf_targetids=[t for t, _ in leaves], leaf_weights=numbers("w", F32, [w for _, w in leaves]),
                membership_values=numbers("v", F32, sets), n_targets=targets)


def fallen(tree, x, sets):
    """Which leaf each tree of a forest leads a row to."""
    compare = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
    modes, splits = (numpy_helper.to_array(tree[name]) for name in ("nodes_modes", "nodes_splits"))
    for at in tree["tree_roots"]:
        leaf = 0
        while not leaf:
            value, mode = x[tree["nodes_featureids"][at]], modes[at]
            yes = value in sets[at] if mode == 6 else compare[mode](value, splits[at])
            side = "true" if yes or (np.isnan(value) and tree["nodes_missing_value_tracks_true"][at]) else "false"
            at, leaf = tree[f"nodes_{side}nodeids"][at], tree[f"nodes_{side}leafs"][at]
        yield at


def said(tree, x, aggregate):
    modes, weights = numpy_helper.to_array(tree["nodes_modes"]), numpy_helper.to_array(tree["leaf_weights"])
    members, sets, out = numpy_helper.to_array(tree["membership_values"]).tolist(), {}, np.zeros((len(x), tree["n_targets"]), np.float32)
    for at in np.flatnonzero(modes == 6):
        end = next(i for i, v in enumerate(members) if np.isnan(v))
        sets[at], members = members[:end], members[end + 1:]
    for row, values in zip(out, x):
        leaves = list(fallen(tree, values, sets))
        for target in range(tree["n_targets"]):
            found = [weights[leaf] if tree["leaf_targetids"][leaf] == target else 0 for leaf in leaves]
            row[target] = (np.mean, np.sum, np.min, np.max)[aggregate](found)
    return out


def trees(_, run, folder):
    """Ensembles of trees by each aggregate; of the least and the most there is one target. Their results as they are:
    onnxruntime 1.32 takes softmax's number for logistic's, and the other way round."""
    random = np.random.default_rng(7)
    x = random.integers(-3, 4, (50, 6)).astype(np.float32)
    x[random.random(x.shape) < 0.1] = np.nan
    g = Graph({"w": np.ones(6, np.float32)})
    seen, parts, want = g.op("Mul", g.input("x", F32, x.shape), g.weight("w")), [], []
    for aggregate in range(4):
        tree = forest(random, 5, 4, 6, 3 if aggregate < 2 else 1)
        parts.append(g.op("TreeEnsemble", seen, domain="ai.onnx.ml", aggregate_function=aggregate, **tree))
        want.append(said(tree, x, aggregate))
    want = np.concatenate(want, axis=1)
    m = g.model("y", g.op("Concat", *parts, axis=1), want)
    m.opset_import.append(helper.make_opsetid("ai.onnx.ml", 5))
    return m, [{"x": x}], {"y": want}


def operators(name, run, folder):
    """Operators of an old set: ONNX's node tests have the newest form alone. What became an input at some version is an attribute before."""
    version, random = int(name.rsplit("_", 1)[1]), np.random.default_rng(11)
    x = random.standard_normal((2, 3, 4, 4), np.float32)
    g = Graph({"w": np.float32([2])})
    a, d, parts = g.op("Mul", g.input("x", F32, x.shape), g.weight("w")), 2 * x, []

    def made(since, op, of, *more, n=1, **moved):
        """`moved`: attributes that are inputs from `since` on, in this order; more: attributes of any version."""
        rest = more[0] if more else {}
        if version < since:
            return g.op(op, of, n=n, **{k: float(v) if isinstance(v, np.float32) else v for k, v in moved.items()}, **rest)
        return g.op(op, of, *[np.asarray(v if isinstance(v, np.float32) else np.array(v, np.int64)) for v in moved.values()], n=n, **rest)

    def add(value, want):
        parts.append((g.op("Reshape", value, np.array([-1], np.int64)), np.asarray(want, np.float32).ravel()))

    low, most, fill = np.float32(-0.5), np.float32(0.75), np.float32(0.25)
    add(made(11, "Clip", a, min=low, max=most), d.clip(low, most))
    add(made(11, "Pad", a, {"mode": "constant"}, pads=[0, 0, 1, 0, 0, 0, 0, 2], value=fill), np.pad(d, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=fill))
    add(made(10, "Slice", a, starts=[1, -3], ends=[9, -1], axes=[1, 3]), d[:, 1:, :, -3:-1])
    wide = made(13, "Unsqueeze", a, axes=[0, 2])
    add(made(13, "Squeeze", g.op("Neg", wide), axes=[2]), -d)
    first, second = made(13, "Split", a, {"axis": 1}, split=[1, 2], n=2)
    add(first, d[:, :1]), add(second, d[:, 1:])
    add(made(13, "ReduceSum", a, {"keepdims": 0}, axes=[1, 3]), d.sum((1, 3)))
    order = np.argsort(-d, 3, "stable")[..., :2]
    values, places = g.op("TopK", a, n=2, axis=3, k=2) if version < 10 else g.op("TopK", a, np.array([2], np.int64), n=2, axis=3)
    add(values, np.take_along_axis(d, order, 3)), add(g.op("Cast", places, to=F32), order)
    scales, larger = np.array([1, 1, 2, 3], np.float32), d.repeat(2, 2).repeat(3, 3)
    if version < 10:
        add(g.op("Upsample", a, mode="nearest", scales=scales.tolist()) if version < 9 else g.op("Upsample", a, scales, mode="nearest"), larger)
    else:
        how = {} if version < 11 else {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        add(g.op("Resize", a, *([] if version < 11 else [np.zeros(0, np.float32)]), scales, mode="nearest", **how), larger)
    flat = np.exp(d.reshape(2, 48) - d.max((1, 2, 3))[:, None])
    along = np.exp(d - d.max(1, keepdims=True))
    add(g.op("Softmax", a, axis=1), flat / flat.sum(1, keepdims=True) if version < 13 else along / along.sum(1, keepdims=True))
    gain, shift, mean, var = (random.uniform(0.5, 2, 3).astype(np.float32) for _ in range(4))
    by = [v.reshape(3, 1, 1) for v in (gain, shift, mean, var)]
    add(g.op("BatchNormalization", a, gain, shift, mean, var, epsilon=1e-3), (d - by[2]) / np.sqrt(by[3] + np.float32(1e-3)) * by[0] + by[1])
    add(g.op("Dropout", a, ratio=0.4) if version < 12 else g.op("Dropout", a, np.float32(0.4)), d)
    want = np.concatenate([w for _, w in parts])
    return g.model("y", g.op("Concat", *[p for p, _ in parts], axis=0), want, version), [{"x": x}], {"y": want}


MODELS = {"scan_of_batches": scan_of_batches, "trees": trees} | {f"operators_of_{v}": operators for v in (7, 8, 9, 10, 11, 12, 13)} | {name: vision for name in VISION} | {"vqa": vqa, "recommend": recommend, "diffusion": diffusion, "speech": speech}
TOLERANCE = 2e-5   # sums in another order, exp and erf of another library


def steps_of(given, step):
    """The result of the last step; what one gives is `x` of the next."""
    x = None
    for values in given:
        x = step(values if x is None else values | {"x": x})
    return x


def onnxruntime_of(path, given, out):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return steps_of(given, lambda values: session.run([out], values)[0])


def onnx_run_of(path, given, out, run, folder):
    def step(values):
        arguments = []
        for name, value in values.items():
            np.save(f"{folder}/{name}.npy", value)
            arguments += ["--input", f"{name}={folder}/{name}.npy"]
        run("onnx_run", path, *arguments, "--connect", "cpu", "--out", folder + "/out")
        return np.load(f"{folder}/out/{out}.npy")
    return steps_of(given, step)


def changed(path, folder):
    """The graph with each number of its weights a little different."""
    model, random = onnx.load(path), np.random.default_rng(1)
    for t in model.graph.initializer:
        if t.name.startswith("weight"):
            value = numpy_helper.to_array(t)
            t.CopyFrom(numpy_helper.from_array(value * (1 + 1e-3 * random.standard_normal(value.shape, np.float32)), t.name))
    onnx.save(model, folder + "/changed.onnx")
    return folder + "/changed.onnx"


def difference(what, got, want):
    assert got.shape == want.shape and want.std() > 0 and np.isfinite(want).all(), (what, got.shape, want.shape)
    error = np.abs(got - want).max() / np.abs(want).max()
    print(f"{what}: the largest difference is {error:.1e} of the largest number")
    return error


def main():
    name, programs, folder = sys.argv[1:]

    def run(program, *arguments):
        subprocess.run([f"{programs}/{program}", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    model, given, answers = MODELS[name](name, run, folder)
    path = folder + "/model.onnx"
    onnx.checker.check_model(model)
    onnx.save(model, path)
    (out, ours), = answers.items()
    theirs = onnxruntime_of(path, given, out)
    good = difference(f"{name} and onnxruntime {onnxruntime.__version__}", ours, theirs) <= TOLERANCE
    good &= difference(f"onnx_run and onnxruntime, {name}", onnx_run_of(path, given, out, run, folder), theirs) <= TOLERANCE
    good &= difference(f"{name} and weights that differ by a thousandth", ours, onnxruntime_of(changed(path, folder), given, out)) > 2 * TOLERANCE
    print(f"at most {TOLERANCE:.0e} is allowed, and more than twice that where weights differ")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
