"""Writes the corpora of the readers of models and pictures: small files of each kind of field, and malformed ones.

    python3 tests/fuzz/make_corpus.py FOLDER        FOLDER/onnx and FOLDER/picture

Needs onnx and pillow of tests/oracles.txt. It wrote the files under tests/fuzz/corpus, except those that a fuzzer found.
The same versions of the packages give the same bytes. External data lies in weights.bin, 64 bytes, which the target puts beside the model.
"""

import io
import os
import struct
import sys

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h
from PIL import Image

F32 = T.FLOAT


def value(name, kind, shape):
    return h.make_tensor_value_info(name, kind, shape)


def ints(name, values):
    return h.make_tensor(name, T.INT64, [len(values)], values)


def floats(name, shape):
    count = int(np.prod(shape))
    return h.make_tensor(name, F32, shape, [((i * 7) % 11 - 5) / 4 for i in range(count)])


def graph(nodes, inputs, outputs, weights=(), **more):
    return h.make_graph(nodes, "g", inputs, outputs, list(weights), **more)


def model(g, opset=21, **more):
    return h.make_model(g, opset_imports=[h.make_opsetid("", opset)], ir_version=10, producer_name="", **more)


def chain(nodes, weights=(), shape=(2, 3), opset=21, out=None, kind=F32):
    """A model from x of the shape to y."""
    return model(graph(nodes, [value("x", kind, list(shape))], [value("y", out or kind, None)], weights), opset)


def one(op, inputs, weights=(), shape=(2, 3), opset=21, out=None, kind=F32, **attributes):
    return chain([h.make_node(op, inputs, ["y"], **attributes)], weights, shape, opset, out, kind)


def held(tensor):
    """A model whose result is one tensor of the file, as floats."""
    return model(graph([h.make_node("Cast", ["w"], ["y"], to=F32)], [], [value("y", F32, None)], [tensor]))


def bare(kind, dims, **fields):
    t = T(name="w", data_type=kind, dims=dims)
    for name, v in fields.items():
        if name == "raw_data":
            t.raw_data = v
        else:
            getattr(t, name).extend(v)
    return t


def outside(location, offset=None, length=None, dims=(4,)):
    t = T(name="w", data_type=F32, dims=dims, data_location=T.EXTERNAL)
    for key, v in (("location", location), ("offset", offset), ("length", length)):
        if v is not None:
            t.external_data.add(key=key, value=str(v))
    return held(t)


def tensors():
    yield "floats-packed", held(bare(F32, [3], float_data=[1, -2, 0.5]))
    yield "floats-raw", held(bare(F32, [2], raw_data=struct.pack("<2f", 1, 2)))
    yield "f16-in-int32-data", held(bare(T.FLOAT16, [2], int32_data=[0x3C00, 0xFC00]))
    yield "bf16-in-int32-data", held(bare(T.BFLOAT16, [2], int32_data=[0x3F80, 0x7FC0]))
    yield "int8-in-int32-data", held(bare(T.INT8, [3], int32_data=[-128, 127, 0]))
    yield "int8-in-int32-data-too-large", held(bare(T.INT8, [1], int32_data=[300]))
    yield "bools-in-int32-data", held(bare(T.BOOL, [3], int32_data=[0, 1, 1]))
    yield "int4-odd-in-int32-data", held(bare(T.INT4, [3], int32_data=[0x8F, 0x07]))
    yield "uint4-raw", held(bare(T.UINT4, [2, 2], raw_data=b"\x21\xf3"))
    yield "uint4-raw-too-long", held(bare(T.UINT4, [3], raw_data=b"\x21\xf3\x00"))
    yield "float4-raw", held(bare(T.FLOAT4E2M1, [5], raw_data=b"\x10\x32\x07"))
    for kind in (T.FLOAT8E4M3FN, T.FLOAT8E4M3FNUZ, T.FLOAT8E5M2, T.FLOAT8E5M2FNUZ):
        yield f"{T.DataType.Name(kind).lower()}-raw", held(bare(kind, [3], raw_data=b"\x00\x7f\x80"))
    yield "int64-data", held(bare(T.INT64, [2], int64_data=[-1, 1 << 62]))
    yield "uint64-data", held(bare(T.UINT64, [2], uint64_data=[0, (1 << 64) - 1]))
    yield "uint32-in-uint64-data", held(bare(T.UINT32, [1], uint64_data=[1 << 33]))
    yield "double-data", held(bare(T.DOUBLE, [2], double_data=[1e300, -0.0]))
    yield "complex-in-float-data", held(bare(T.COMPLEX64, [1], float_data=[1, 2]))
    yield "strings", held(bare(T.STRING, [2], string_data=[b"a", b"\xff\xfe"]))
    yield "tensor-of-size-zero", held(bare(F32, [0, 3]))
    yield "tensor-of-no-axes", held(bare(F32, [], float_data=[2]))
    yield "tensor-in-two-fields", held(bare(F32, [1], float_data=[2], raw_data=b"\0\0\0\0"))
    yield "tensor-of-unknown-type", held(bare(99, [1], raw_data=b"\0"))
    yield "tensor-of-negative-size", held(bare(F32, [-1], float_data=[2]))
    yield "tensor-with-too-few-floats", held(bare(F32, [4], float_data=[2]))
    yield "tensor-of-65-axes", held(bare(F32, [1] * 65, float_data=[2]))


def external():
    yield "external", outside("weights.bin", 16, 16)
    yield "external-without-length", outside("./weights.bin", 48)
    yield "external-behind-the-end", outside("weights.bin", 60, 16)
    yield "external-of-another-length", outside("weights.bin", 0, 12)
    yield "external-offset-that-overflows", outside("weights.bin", (1 << 64) - 8, 16)
    yield "external-offset-that-is-no-number", outside("weights.bin", "-4", 16)
    yield "external-out-of-the-folder", outside("../weights.bin", 0, 16)
    yield "external-out-and-back", outside("a/../../weights.bin")
    yield "external-absolute", outside("/etc/hostname")
    yield "external-nowhere", outside("absent.bin")
    yield "external-folder", outside(".")
    yield "external-without-location", outside(None)
    yield "external-location-with-a-zero", outside("weights.bin\0x")


def branch(op, name="b"):
    return graph([h.make_node(op, ["x"], [name])], [], [value(name, F32, None)])


def counted(count, condition=True):
    body = graph(
        [h.make_node("Add", ["v", "x"], ["w"]), h.make_node("Identity", ["c"], ["d"])],
        [value("i", T.INT64, []), value("c", T.BOOL, []), value("v", F32, [2, 3])],
        [value("d", T.BOOL, []), value("w", F32, [2, 3])],
    )
    return chain(
        [h.make_node("Loop", ["n", "t", "x"], ["y"], body=body)],
        [h.make_tensor("n", T.INT64, [], [count]), h.make_tensor("t", T.BOOL, [], [condition])],
    )


def subgraphs():
    yes = h.make_tensor("c", T.BOOL, [], [True])
    yield "if", chain([h.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))], [yes])
    inner = graph(
        [h.make_node("If", ["c"], ["b"], then_branch=branch("Exp", "e"), else_branch=branch("Neg", "e"))],
        [],
        [value("b", F32, None)],
    )
    yield "if-in-if", chain([h.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=branch("Neg"))], [yes])
    yield "if-of-an-input", model(
        graph(
            [h.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))],
            [value("x", F32, [2]), value("c", T.BOOL, [])],
            [value("y", F32, None)],
        )
    )
    yield "if-without-else", chain([h.make_node("If", ["c"], ["y"], then_branch=branch("Relu"))], [yes])
    yield "loop", counted(3)
    yield "loop-of-no-turn", counted(0)
    yield "loop-of-many-turns", counted((1 << 63) - 1)
    yield "loop-whose-condition-is-false", counted(3, False)
    body = graph(
        [h.make_node("Add", ["s", "r"], ["t"]), h.make_node("Identity", ["t"], ["o"])],
        [value("s", F32, [3]), value("r", F32, [3])],
        [value("t", F32, [3]), value("o", F32, [3])],
    )
    yield "scan", chain([h.make_node("Scan", ["w", "x"], ["z", "y"], body=body, num_scan_inputs=1)], [floats("w", [3])])
    yield "scan-of-more-inputs-than-there-are", chain(
        [h.make_node("Scan", ["w", "x"], ["z", "y"], body=body, num_scan_inputs=7)], [floats("w", [3])]
    )
    deep = branch("Relu", "b")
    for _ in range(25):
        deep = graph(
            [h.make_node("If", ["c"], ["b"], then_branch=deep, else_branch=branch("Neg"))], [], [value("b", F32, None)]
        )
    yield "if-25-deep", chain([h.make_node("If", ["c"], ["y"], then_branch=deep, else_branch=branch("Neg"))], [yes])


def called(nodes, name="f", attributes=("alpha",)):
    f = h.make_function(
        "own", name, ["a"], ["b"], nodes, [h.make_opsetid("", 21), h.make_opsetid("own", 1)], list(attributes)
    )
    m = chain([h.make_node("f", ["x"], ["y"], domain="own", alpha=0.5)])
    m.functions.append(f)
    m.opset_import.append(h.make_opsetid("own", 1))
    return m


def functions():
    leaky = h.make_node("LeakyRelu", ["a"], ["b"])
    a = leaky.attribute.add(name="alpha", ref_attr_name="alpha", type=1)
    yield "function", called([leaky])
    yield "function-that-calls-itself", called([h.make_node("f", ["a"], ["b"], domain="own")])
    yield "function-that-is-absent", called([h.make_node("g", ["a"], ["b"], domain="own")])
    a.ref_attr_name = "beta"
    yield "function-of-an-absent-attribute", called([leaky])
    yield "function-without-its-result", called([h.make_node("Neg", ["a"], ["c"])])


def kinds_of_values():
    sparse = h.make_sparse_tensor(h.make_tensor("w", F32, [2], [1, 2]), ints("w_indices", [0, 4]), [2, 3])
    m = one("Add", ["x", "w"])
    m.graph.sparse_initializer.append(sparse)
    yield "sparse-initialiser", m
    yield "sparse-constant", chain(
        [h.make_node("Constant", [], ["k"], sparse_value=sparse), h.make_node("Add", ["x", "k"], ["y"])]
    )
    yield "constants", chain(
        [
            h.make_node("Constant", [], ["a"], value_float=2.0),
            h.make_node("Constant", [], ["b"], value_ints=[1, 2, 3]),
            h.make_node("Cast", ["b"], ["c"], to=F32),
            h.make_node("Mul", ["x", "a"], ["d"]),
            h.make_node("Add", ["d", "c"], ["y"]),
        ]
    )
    yield "constant-string", chain(
        [h.make_node("Constant", [], ["a"], value_string="s"), h.make_node("Identity", ["x"], ["y"])]
    )
    yield "sequence", chain(
        [
            h.make_node("SequenceConstruct", ["x", "x"], ["s"]),
            h.make_node("SequenceAt", ["s", "i"], ["a"]),
            h.make_node("ConcatFromSequence", ["s"], ["b"], axis=0),
            h.make_node("Concat", ["a", "b"], ["y"], axis=0),
        ],
        [h.make_tensor("i", T.INT64, [], [-1])],
    )
    yield "sequence-place-that-is-absent", chain(
        [h.make_node("SequenceConstruct", ["x"], ["s"]), h.make_node("SequenceAt", ["s", "i"], ["y"])],
        [h.make_tensor("i", T.INT64, [], [1 << 40])],
    )
    yield "split-to-sequence", chain(
        [h.make_node("SplitToSequence", ["x"], ["s"], axis=1), h.make_node("SequenceLength", ["s"], ["y"])], out=T.INT64
    )
    of = h.make_tensor_type_proto(F32, [2, 3])
    yield "optional", model(
        graph(
            [h.make_node("OptionalGetElement", ["o"], ["y"])],
            [h.make_value_info("o", h.make_optional_type_proto(of))],
            [value("y", F32, None)],
        )
    )
    yield "sequence-input", model(
        graph(
            [h.make_node("SequenceAt", ["s", "i"], ["y"])],
            [h.make_value_info("s", h.make_sequence_type_proto(of))],
            [value("y", F32, None)],
            [h.make_tensor("i", T.INT64, [], [0])],
        )
    )
    yield "symbolic-sizes", model(
        graph(
            [h.make_node("Shape", ["x"], ["s"]), h.make_node("Reshape", ["z", "s"], ["y"])],
            [value("x", F32, ["n", None]), value("z", F32, ["n", "m"])],
            [value("y", F32, None)],
        )
    )
    yield "initialiser-that-is-an-input", model(
        graph(
            [h.make_node("Add", ["x", "w"], ["y"])],
            [value("x", F32, [3]), value("w", F32, [3])],
            [value("y", F32, None)],
            [floats("w", [3])],
        )
    )


def blocks():
    box = (1, 4, 5, 5)
    yield "conv-norm-relu", chain(
        [
            h.make_node("Conv", ["x", "w"], ["a"], pads=[1, 0, 1, 0], group=2),
            h.make_node("BatchNormalization", ["a", "s", "s", "s", "v"], ["b"]),
            h.make_node("Relu", ["b"], ["y"]),
        ],
        [floats("w", [4, 2, 3, 3]), floats("s", [4]), h.make_tensor("v", F32, [4], [1] * 4)],
        box,
    )
    yield "conv-same-lower", one(
        "Conv", ["x", "w"], [floats("w", [2, 4, 2, 2])], box, auto_pad="SAME_LOWER", strides=[2, 2]
    )
    yield "conv-transpose", one(
        "ConvTranspose", ["x", "w"], [floats("w", [4, 2, 3, 3])], box, strides=[2, 2], output_padding=[1, 1]
    )
    yield "max-pool-ceil", chain(
        [h.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)], shape=box
    )
    yield "lstm-without-bias", chain(
        [h.make_node("LSTM", ["x", "w", "r", "", "", "h"], ["y", "", "c"], hidden_size=2, direction="bidirectional")],
        [floats("w", [2, 8, 3]), floats("r", [2, 8, 2]), floats("h", [2, 1, 2])],
        (4, 1, 3),
    )
    yield "resize-by-sizes", one(
        "Resize", ["x", "", "", "n"], [ints("n", [1, 4, 7, 3])], box, mode="cubic", antialias=1
    )
    yield "softmax-of-11", one("Softmax", ["x"], opset=11, axis=-1)
    yield "reshape-by-zero-and-rest", one("Reshape", ["x", "s"], [ints("s", [0, -1])])
    yield "einsum", one("Einsum", ["x", "w"], [floats("w", [3, 4])], equation="ij,jk->ik")
    yield "top-k", chain([h.make_node("TopK", ["x", "k"], ["y", "i"])], [ints("k", [2])])
    yield "attention", model(
        graph(
            [h.make_node("Attention", ["x", "x", "x"], ["y"], is_causal=1)],
            [value("x", F32, [1, 2, 3, 4])],
            [value("y", F32, None)],
        ),
        23,
    )
    yield "quantised", chain(
        [
            h.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            h.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
        [h.make_tensor("s", F32, [], [0.5]), h.make_tensor("z", T.INT4, [], [1])],
    )
    yield "slice-to-the-ends", one(
        "Slice",
        ["x", "a", "b", "c", "d"],
        [ints("a", [(1 << 63) - 1]), ints("b", [-(1 << 63)]), ints("c", [1]), ints("d", [-1])],
    )
    yield "non-zero", one("NonZero", ["x"], out=T.INT64)


def opsets_of(m, domain, version):
    m.opset_import.append(h.make_opsetid(domain, version))
    return m


def tree(roots=(0,), members=(1.0, float("nan")), yes=(1, 0), target=0, **more):
    numbers = lambda kind, values: h.make_tensor("t", kind, [len(values)], values)
    return opsets_of(
        one(
            "TreeEnsemble",
            ["x"],
            domain="ai.onnx.ml",
            tree_roots=roots,
            nodes_modes=numbers(T.UINT8, [0, 6]),
            nodes_featureids=[0, 2],
            nodes_splits=numbers(F32, [0.5, 0]),
            nodes_truenodeids=yes,
            nodes_trueleafs=[0, 1],
            nodes_falsenodeids=[1, 2],
            nodes_falseleafs=[1, 1],
            nodes_missing_value_tracks_true=[0, 1],
            leaf_targetids=[0, 1, target],
            leaf_weights=numbers(F32, [1, 2, 3]),
            membership_values=numbers(F32, members),
            n_targets=2,
            **more,
        ),
        "ai.onnx.ml",
        5,
    )


def flex(op="Neg"):
    return opsets_of(
        model(
            graph(
                [
                    h.make_node(
                        "FlexAttention",
                        ["x", "x", "x"],
                        ["y"],
                        domain="ai.onnx.preview",
                        scale=0.5,
                        score_mod=graph(
                            [h.make_node(op, ["s"], ["t"])], [value("s", F32, None)], [value("t", F32, None)]
                        ),
                    )
                ],
                [value("x", F32, [1, 2, 3, 4])],
                [value("y", F32, None)],
            ),
            26,
        ),
        "ai.onnx.preview",
        1,
    )


def ensembles():
    yield "trees", tree()
    yield "trees-least-logistic", tree(aggregate_function=2, post_transform=2)
    yield "trees-that-lead-back", tree(yes=(0, 0))
    yield "trees-of-an-absent-node", tree(yes=(7, 0))
    yield "trees-of-an-absent-root", tree(roots=(1 << 40,))
    yield "trees-of-an-absent-target", tree(target=2)
    yield "trees-of-too-few-sets", tree(members=(1.0,))
    yield "trees-of-too-many-sets", tree(members=(1.0, float("nan"), float("nan")))
    yield "flex-attention", flex()
    yield "flex-attention-of-another-shape", flex("Shape")


def lies():
    yield "node-that-reads-itself", chain([h.make_node("Add", ["x", "y"], ["y"])])
    yield "nodes-in-a-circle", chain(
        [h.make_node("Neg", ["b"], ["a"]), h.make_node("Neg", ["a"], ["b"]), h.make_node("Add", ["x", "b"], ["y"])]
    )
    yield "name-that-is-made-twice", chain([h.make_node("Neg", ["x"], ["y"]), h.make_node("Exp", ["x"], ["y"])])
    yield "input-that-is-nowhere", one("Add", ["x", "q"])
    yield "output-that-is-nowhere", chain([h.make_node("Neg", ["x"], ["z"])])
    yield "op-that-is-unknown", one("Frobnicate", ["x"])
    yield "op-of-no-inputs", one("Add", [])
    yield "opset-of-the-future", one("Neg", ["x"], opset=1000)
    yield "reshape-to-another-size", one("Reshape", ["x", "s"], [ints("s", [5, -1])])
    yield "reshape-to-two-rests", one("Reshape", ["x", "s"], [ints("s", [-1, -1])])
    yield "reshape-to-overflow", one("Reshape", ["x", "s"], [ints("s", [1 << 62, 1 << 62])])
    yield "transpose-twice-the-same", one("Transpose", ["x"], perm=[0, 0])
    yield "transpose-out-of-range", one("Transpose", ["x"], perm=[0, 1 << 40])
    yield "axis-out-of-range", one("Softmax", ["x"], axis=-(1 << 63))
    yield "tile-without-end", one("Tile", ["x", "n"], [ints("n", [1 << 40, 1 << 40])])
    yield "expand-without-end", one("Expand", ["x", "n"], [ints("n", [1 << 45, 2, 3])])
    yield "constant-of-shape-without-end", chain(
        [h.make_node("ConstantOfShape", ["n"], ["k"]), h.make_node("ReduceSum", ["k"], ["y"])],
        [ints("n", [1 << 20, 1 << 20])],
    )
    yield "pad-without-end", one("Pad", ["x", "n"], [ints("n", [0, 1 << 62, 0, 1 << 62])])
    yield "pad-below-nothing", one("Pad", ["x", "n"], [ints("n", [-3, 0, 0, 0])])
    yield "range-without-step", chain(
        [h.make_node("Range", ["a", "b", "a"], ["r"]), h.make_node("Add", ["x", "r"], ["y"])],
        [h.make_tensor("a", F32, [], [0]), h.make_tensor("b", F32, [], [1])],
    )
    yield "gather-out-of-range", one("Gather", ["x", "i"], [ints("i", [2])])
    yield "one-hot-without-end", chain(
        [h.make_node("OneHot", ["i", "n", "v"], ["y"])],
        [ints("i", [1]), h.make_tensor("n", T.INT64, [], [1 << 50]), floats("v", [2])],
    )
    yield "split-into-more", chain([h.make_node("Split", ["x", "n"], ["y", "z"])], [ints("n", [1 << 62, 1 << 62])])
    yield "conv-of-negative-pads", one("Conv", ["x", "w"], [floats("w", [1, 1, 3])], (1, 1, 4), pads=[-9, -9])
    yield "conv-of-stride-zero", one("Conv", ["x", "w"], [floats("w", [1, 1, 3])], (1, 1, 4), strides=[0])
    yield "conv-of-other-channels", one("Conv", ["x", "w"], [floats("w", [1, 5, 3])], (1, 1, 4))
    yield "pool-of-a-huge-kernel", one("MaxPool", ["x"], shape=(1, 1, 4), kernel_shape=[1 << 40])
    yield "einsum-without-letters", one("Einsum", ["x"], equation="->->,,")
    yield "cast-to-nothing", one("Cast", ["x"], to=77)
    yield "attribute-of-another-type", one("Softmax", ["x"], axis="one")
    yield "input-of-no-shape", model(
        graph([h.make_node("Neg", ["x"], ["y"])], [value("x", F32, None)], [value("y", F32, None)])
    )


def field(number, wire, body):
    """A field of the wire format, whatever it says."""
    key, out = number << 3 | wire, b""
    while key > 127:
        out, key = out + bytes([key & 127 | 128]), key >> 7
    return out + bytes([key]) + body


def lengths(number, body):
    n, out = len(body), b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return field(number, 2, out + bytes([n]) + body)


def bytes_alone():
    good = one("Add", ["x", "w"], [floats("w", [3])]).SerializeToString()
    yield "nothing", b"\0"
    yield "cut-in-the-middle", good[: len(good) // 2]
    yield "cut-by-one", good[:-1]
    yield "no-graph", field(1, 0, b"\x08") + lengths(8, field(2, 0, b"\x15"))
    yield "no-operator-set", field(1, 0, b"\x08") + lengths(7, b"")
    yield "graph-twice", good + lengths(7, b"")
    yield "number-of-11-bytes", good + field(1000, 0, b"\xff" * 10 + b"\1")
    yield "group", good + field(1000, 3, b"") + field(1000, 4, b"")
    yield "field-number-zero", good + b"\0\0"
    yield "unknown-fields", field(1000, 5, b"abcd") + field(1001, 1, b"12345678") + lengths(1002, b"abc") + good
    yield "wire-type-of-another-field", field(7, 0, b"\1") + good
    yield "longer-than-the-file", good + field(1000, 2, b"\xff\xff\xff\xff\x0f")
    unpacked = (
        b"".join(field(4, 5, struct.pack("<f", v)) for v in (1, 2))
        + field(1, 0, b"\2")
        + field(2, 0, b"\1")
        + lengths(8, b"w")
    )
    packed_in_pieces = (
        lengths(4, struct.pack("<f", 1))
        + lengths(4, struct.pack("<f", 2))
        + lengths(1, b"\2")
        + field(2, 0, b"\1")
        + lengths(8, b"w")
    )
    for name, tensor in (
        ("floats-unpacked", unpacked),
        ("floats-in-pieces", packed_in_pieces),
        ("floats-cut", lengths(4, b"\0\0\0") + unpacked),
    ):
        g = (
            lengths(1, lengths(1, b"w") + lengths(2, b"y") + lengths(4, b"Neg"))
            + lengths(5, tensor)
            + lengths(12, lengths(1, b"y"))
        )
        yield name, field(1, 0, b"\x08") + lengths(8, field(2, 0, b"\x15")) + lengths(7, g)
    deep = b""
    for _ in range(200):
        deep = lengths(1, lengths(5, lengths(6, deep)))
    yield "graphs-200-deep", field(1, 0, b"\x08") + lengths(8, field(2, 0, b"\x15")) + lengths(7, deep)


def png(image, **options):
    out = io.BytesIO()
    image.save(out, "PNG", **options)
    return out.getvalue()


def jpeg(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def picture(mode, size=(5, 3)):
    wide = {"I;16": 2, "RGB": 3, "RGBA": 4, "LA": 2, "CMYK": 4}.get(mode, 1)
    count = size[0] * size[1] * wide
    return Image.frombytes(
        mode, size, bytes((i * 37) % 256 for i in range(count if mode != "1" else (size[0] + 7) // 8 * size[1]))
    )


def pictures():
    for mode in ("1", "L", "LA", "I;16", "RGB", "RGBA"):
        yield f"png-{mode.replace(';', '')}", png(picture(mode))
    palette = picture("RGB").quantize(4)
    yield "png-palette-with-transparency", png(palette, transparency=1)
    good = png(picture("RGB"))
    yield "png-cut", good[:-20]
    yield "png-of-another-checksum", good[:30] + b"\xff" + good[31:]
    yield "png-huge", good[:16] + struct.pack(">2I", 1 << 30, 1 << 30) + good[24:]
    yield "png-of-no-pixels", good[:16] + struct.pack(">2I", 0, 3) + good[24:]
    yield "png-signature-alone", good[:8]
    yield "jpeg", jpeg(picture("RGB", (9, 8)), quality=50)
    yield "jpeg-grey", jpeg(picture("L", (9, 8)), quality=50)
    yield "jpeg-progressive", jpeg(picture("RGB", (9, 8)), quality=50, progressive=True)
    yield "jpeg-cmyk", jpeg(picture("CMYK", (9, 8)), quality=50)
    yield "jpeg-cut", jpeg(picture("RGB", (9, 8)), quality=50)[:-40]
    yield "jpeg-signature-alone", b"\xff\xd8\xff"
    yield "ppm", b"P6\n2 2\n255\n" + bytes(range(12))
    yield "ppm-with-comments", b"P6#a\n#b\r2#c\n1 #d\n255\nabcdef"
    yield "ppm-of-one-bit", b"P5 4 1 1\n\0\1\0\1"
    yield "ppm-sample-above-the-largest", b"P5 2 1 9\n\x08\x0a"
    yield "ppm-of-16-bits", b"P6 1 1 65535\nabcdef"
    yield "ppm-of-largest-zero", b"P5 1 1 0\na"
    yield "ppm-one-byte-short", b"P6 2 1 255\nabcde"
    yield "ppm-one-byte-long", b"P6 2 1 255\nabcdefg"
    yield "ppm-of-no-pixels", b"P6 0 7 255\n"
    yield "ppm-negative", b"P6 -1 7 255\n"
    yield "ppm-size-that-overflows", b"P6 99999999999999999999 99999999999999999999 255\n"
    yield "ppm-comment-without-end", b"P6 #" + b"x" * 50
    yield "ppm-two-pictures", b"P5 1 1 255\naP5 1 1 255\nb"
    yield "ppm-of-text", b"P3 1 1 255 1 2 3"
    yield "ppm-blanks", b"P5\t\v\f\r\n1\v1\f255\fa"
    yield "gif", b"GIF89a\1\0\1\0\0\0\0;"


def main():
    kinds = {
        "onnx": (tensors, external, subgraphs, functions, kinds_of_values, blocks, ensembles, lies, bytes_alone),
        "picture": (pictures,),
    }
    for kind, makers in kinds.items():
        os.makedirs(f"{sys.argv[1]}/{kind}", exist_ok=True)
        for make in makers:
            for name, made in make():
                with open(f"{sys.argv[1]}/{kind}/{name}", "wb") as f:
                    f.write(made if isinstance(made, bytes) else made.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
