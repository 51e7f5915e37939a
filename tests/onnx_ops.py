#!/usr/bin/env python3
"""Ops that ONNX's node tests leave out, as examples/onnx_run computes them, compared with onnxruntime.

    python3 tests/onnx_ops.py NAME build/examples FOLDER      any of GROUPS

Each group makes models of one op or a few, or lets skl2onnx make them; every output is compared: type, shape and elements,
within TOLERANCE of the largest number. FOLDER is for files.
"""
import itertools
import os
import shutil
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

TOLERANCE = 2e-5
ML = "ai.onnx.ml"
TYPES = {np.dtype(np.float32): 1, np.dtype(np.int32): 6, np.dtype(np.int64): 7, np.dtype(np.bool_): 9, np.dtype(np.float64): 11}
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
onnxruntime.set_default_logger_severity(4)


def graph_of(nodes, given, outputs, version=18, ml=3, tensors=None):
    """outputs: names, or what is declared of them"""
    inputs = [helper.make_tensor_value_info(k, TYPES[v.dtype], v.shape) for k, v in given.items()]
    out = [helper.make_value_info(o, onnx.TypeProto()) if isinstance(o, str) else o for o in outputs]
    graph = helper.make_graph(nodes, "graph", inputs, out, [numpy_helper.from_array(v, k) for k, v in (tensors or {}).items()])
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", version), helper.make_opsetid(ML, ml)])


def one(op, given, outputs=("y",), version=18, ml=3, domain=ML, **attributes):
    node = helper.make_node(op, list(given), list(outputs), domain=domain, **attributes)
    return graph_of([node], given, outputs, version, ml), given


class Runs:
    def __init__(self, programs, folder):
        self.program, self.folder, self.n = programs + "/onnx_run", folder, 0

    def run(self, model, given):
        """What onnx_run writes; a str is why it does not."""
        folder = f"{self.folder}/{self.n}"
        self.n += 1
        os.makedirs(folder)
        onnx.save(model, folder + "/model.onnx")
        arguments = []
        for name, value in given.items():
            np.save(f"{folder}/{name}.npy", value)
            arguments += ["--input", f"{name}={folder}/{name}.npy"]
        p = subprocess.run([self.program, folder + "/model.onnx", *arguments, "--connect", "cpu", "--out", folder + "/out"], capture_output=True, text=True)
        out = {f[:-4]: np.load(f"{folder}/out/{f}") for f in os.listdir(folder + "/out")} if p.returncode == 0 else None
        self.said = p.stderr
        shutil.rmtree(folder)
        return p.stderr.strip() or f"status {p.returncode}" if out is None else out

    def equal(self, what, got, want, tolerance=TOLERANCE):
        assert got.dtype == want.dtype and got.shape == want.shape, (what, got.dtype, got.shape, want.dtype, want.shape)
        if want.dtype.kind != "f":
            assert (got == want).all(), (what, got, want)
            return
        finite = np.isfinite(want)
        assert (np.isfinite(got) == finite).all() and np.array_equal(got[~finite], want[~finite], equal_nan=True), (what, got, want)
        error = np.abs(got - want)[finite].max(initial=0) / max(np.abs(want)[finite].max(initial=0), 1e-30)
        assert error <= tolerance, (what, error, got, want)

    def compare(self, what, model, given, other=None, tolerance=TOLERANCE):
        """With onnxruntime's results of the model, or of another one, (model, given), that says the same."""
        got = self.run(model, given)
        assert isinstance(got, dict), (what, got)
        theirs, feeds = other or (model, given)
        names = [o.name for o in model.graph.output]
        want = onnxruntime.InferenceSession(theirs.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
        for name, value in zip(names, want):
            if isinstance(value, list):   # of maps
                self.equal((what, name), got.pop(name + ".keys"), np.array(sorted(value[0]), np.int64))
                value = np.array([[row[k] for k in sorted(row)] for row in value], np.float32)
                name += ".values"
            self.equal((what, name), got.pop(name), value, tolerance)
        assert not got, (what, got.keys())
        return want


# ---- regions


def boxes(random, n, spread):
    begin = random.uniform(-6, 30, (n, 2))
    return np.concatenate([begin, begin + random.uniform(-2, spread, (n, 2)) ** 2 * random.choice([0.1, 1], (n, 1))], 1).astype(np.float32)


def regions(runs):
    """Regions inside, reaching outside and away, turned round, larger than the picture; of both coordinates. Version 22,
    which onnxruntime 1.32 has not, takes more types."""
    random = np.random.default_rng(3)
    x = random.standard_normal((2, 3, 17, 23)).astype(np.float32)
    given = {"x": x, "rois": boxes(random, 60, 14), "which": random.integers(0, 2, 60)}
    for version, mode, ratio in itertools.product((10, 16, 22), ("avg", "max"), (0, 3)):
        for how in ("",) if version == 10 else ("half_pixel", "output_half_pixel"):
            kinds = dict(mode=mode, sampling_ratio=ratio, output_height=3, output_width=5, spatial_scale=0.5) | ({"coordinate_transformation_mode": how} if how else {})
            model = one("RoiAlign", given, version=version, domain="", **kinds)
            other = one("RoiAlign", given, version=16, domain="", **kinds) if version == 22 else None
            runs.compare((version, mode, ratio, how), *model, other)
    large = {"x": random.standard_normal((1, 64, 60, 80)).astype(np.float32), "rois": boxes(random, 150, 7), "which": np.zeros(150, np.int64)}
    runs.compare("regions in several parts", *one("RoiAlign", large, version=16, domain="", output_height=14, output_width=14))
    empty = {"x": x, "rois": np.zeros((0, 4), np.float32), "which": np.zeros(0, np.int64)}
    assert runs.run(*one("RoiAlign", empty, version=16, domain="", output_height=2, output_width=3))["y"].shape == (0, 3, 2, 3)
    for scale, shape in itertools.product((1.0, 0.3), ([3, 5], [1, 1], [7, 7])):
        given = {"x": x, "rois": np.concatenate([random.integers(0, 2, (40, 1)), np.abs(boxes(random, 40, 14))], 1).astype(np.float32)}
        runs.compare(("MaxRoiPool", scale, shape), *one("MaxRoiPool", given, version=18, domain="", pooled_shape=shape, spatial_scale=scale))


# ---- ai.onnx.ml


def encoders(runs):
    random = np.random.default_rng(4)
    x = (random.integers(-3, 4, (6, 4)) * 0.75).astype(np.float32)
    ints = random.integers(-2, 3, (6, 4))
    for v in (x, x.astype(np.float64), ints, ints.astype(np.int32), x[0]):
        for n in (1, 4):
            runs.compare("Scaler", *one("Scaler", {"x": v}, offset=[0.5, -1.0, 2.0, 0.25][:n], scale=[2.0, 0.5, -1.0, 3.0][:n]))
        for norm in ("MAX", "L1", "L2"):
            runs.compare(("Normalizer", norm), *one("Normalizer", {"x": v}, norm=norm))
    runs.compare("Normalizer of zeros", *one("Normalizer", {"x": np.zeros((2, 3), np.float32)}, norm="L2"))
    runs.compare("Binarizer", *one("Binarizer", {"x": x}, threshold=0.75))
    holes = x.copy()
    holes[random.random(x.shape) < 0.3] = np.nan
    for n in (1, 4):
        by = [9.0, 8.0, 7.0, 6.0][:n]
        runs.compare("Imputer", *one("Imputer", {"x": holes}, imputed_value_floats=by, replaced_value_float=float("nan")))
        runs.compare("Imputer", *one("Imputer", {"x": x}, imputed_value_floats=by, replaced_value_float=0.75))
        runs.compare("Imputer", *one("Imputer", {"x": ints}, imputed_value_int64s=[9, 8, 7, 6][:n], replaced_value_int64=-2))
    runs.compare("ArrayFeatureExtractor", *one("ArrayFeatureExtractor", {"x": x, "i": np.array([[3, 0, 3]])}))
    both = {"a": x, "b": x[:, :2] + 1}
    for widths in ([4, 2], [3, 5], [6, 1]):
        runs.compare(("FeatureVectorizer", widths), *one("FeatureVectorizer", both, inputdimensions=widths))
    keys, words = [-1, 2, 0, 2], [0.75, float("nan"), -1.5, 0.75]
    for version in (2, 4):
        runs.compare("LabelEncoder", *one("LabelEncoder", {"x": ints}, ml=version, keys_int64s=keys, values_floats=[1.5, 2.5, 3.5, 4.5], default_float=9.0))
        runs.compare("LabelEncoder", *one("LabelEncoder", {"x": ints}, ml=version, keys_int64s=keys, values_int64s=[5, 6, 7, 8]))
        runs.compare("LabelEncoder", *one("LabelEncoder", {"x": holes}, ml=version, keys_floats=words, values_int64s=[5, 6, 7, 8], default_int64=3))
        runs.compare("LabelEncoder", *one("LabelEncoder", {"x": holes}, ml=version, keys_floats=words, values_floats=[5, 6, 7, 8.5]))
    tensor = lambda kind, values: helper.make_tensor("t", kind, [len(values)], values)
    runs.compare("LabelEncoder of tensors", *one("LabelEncoder", {"x": x.astype(np.float64)}, ml=4, keys_tensor=tensor(11, [0.75, -1.5]), values_tensor=tensor(11, [1.0, 2.0]), default_tensor=tensor(11, [7.0])))
    for v in (ints, ints[0], x):
        runs.compare("OneHotEncoder", *one("OneHotEncoder", {"x": v}, cats_int64s=[-1, 2, 0, 2]))
    whole = one("OneHotEncoder", {"x": ints}, cats_int64s=[-2, -1, 0, 1, 2], zeros=0)
    runs.compare("OneHotEncoder of all", *whole)
    assert "none of 'cats_int64s'" in runs.run(*one("OneHotEncoder", {"x": ints}, cats_int64s=[-2, -1], zeros=0))


def linear(runs):
    random = np.random.default_rng(5)
    x = random.standard_normal((9, 4)).astype(np.float32)
    for K, transform in itertools.product((1, 2, 3), TRANSFORMS):
        w, b = random.uniform(-0.1, 0.1, K * 4).tolist(), random.uniform(0.4, 0.5, K).tolist()
        close = 2e-4 if transform == "PROBIT" else TOLERANCE   # it has differences of near numbers
        runs.compare((K, transform), *one("LinearRegressor", {"x": x}, coefficients=w, intercepts=b, targets=K, post_transform=transform), tolerance=close)
        b = [v - 0.4 for v in b] if transform != "PROBIT" else b
        if K == 1 and transform == "PROBIT": continue   # onnxruntime leaves one of the two scores open
        for v in (x, x[0], (x * 3).astype(np.int64)):
            runs.compare((K, transform), *one("LinearClassifier", {"x": v}, ("y", "z"), coefficients=w, intercepts=b, classlabels_ints=[3, -5, 8][:max(K, 2)], post_transform=transform), tolerance=close)


def vectors(runs):
    random = np.random.default_rng(6)
    x = random.standard_normal((30, 3)).astype(np.float32)
    numbers = lambda *shape: random.standard_normal(shape).astype(np.float32).ravel().tolist()
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        kinds = dict(kernel_type=kernel, kernel_params=[0.7, 0.3, 2.0])
        for one_class in (0, 1):
            runs.compare(("SVMRegressor", kernel), *one("SVMRegressor", {"x": x}, n_supports=5, one_class=one_class, support_vectors=numbers(5, 3), coefficients=numbers(5), rho=[0.2], **kinds))
        for each, certain, transform in itertools.product(([3, 2], [2, 4, 3], [1, 2, 2, 3]), (False, True), ("NONE", "LOGISTIC", "SOFTMAX")):
            K, V = len(each), sum(each)
            P = K * (K - 1) // 2
            odds = {} if certain else dict(prob_a=[-1 - abs(v) for v in numbers(P)], prob_b=numbers(P))
            runs.compare(("SVMClassifier", kernel, each, certain, transform), *one(
                "SVMClassifier", {"x": x}, ("y", "z"), classlabels_ints=[5, 7, -1, 3][:K], vectors_per_class=each, support_vectors=numbers(V, 3),
                coefficients=numbers(K - 1, V), rho=numbers(P), post_transform=transform, **odds, **kinds))
    runs.compare("SVMRegressor without vectors", *one("SVMRegressor", {"x": x}, coefficients=numbers(3), rho=[0.2], kernel_params=[0.7, 0.3, 2.0]))
    for K in (2, 3):
        for sign in (np.abs, np.array):
            runs.compare(("SVMClassifier without vectors", K), *one("SVMClassifier", {"x": x}, ("y", "z"), classlabels_ints=[5, 7, -1][:K], coefficients=sign(numbers(K, 3)).tolist(), rho=[0.2], kernel_params=[0.7, 0.3, 2.0]))


def forest(random, trees, levels, features, targets, positive=False, shift=0):
    """Attributes of nodes, and of weights: (tree, node, target, weight)"""
    nodes = {k: [] for k in ("treeids", "nodeids", "modes", "featureids", "truenodeids", "falsenodeids", "values", "missing_value_tracks_true")}
    weights = []

    def grow(tree, level):
        at = len(nodes["treeids"]) - first
        leaf = level == levels or (level and random.random() < 0.2)
        mode = "LEAF" if leaf else str(random.choice(["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]))
        for k, v in (("treeids", tree), ("nodeids", at), ("modes", mode), ("featureids", int(random.integers(features))), ("truenodeids", 0), ("falsenodeids", 0),
                     ("values", float(random.integers(-3, 4))), ("missing_value_tracks_true", int(random.integers(2)))):
            nodes[k].append(v)
        if leaf:
            for target in targets if isinstance(targets, list) else random.choice(targets, int(random.integers(1, targets + 1)), False):
                w = random.random() / trees if positive else random.standard_normal()
                weights.append((tree, at, int(target), float(np.float32(w))))
            return at
        here = first + at
        nodes["truenodeids"][here], nodes["falsenodeids"][here] = grow(tree, level + 1), grow(tree, level + 1)
        return at

    for tree in range(trees):
        first = len(nodes["treeids"])
        grow(tree + shift, 0)
    return {"nodes_" + k: v for k, v in nodes.items()}, weights


def named(kind, weights):
    tree, node, target, weight = map(list, zip(*weights))
    return {kind + "_treeids": tree, kind + "_nodeids": node, kind + "_ids": target, kind + "_weights": weight}


def old_trees(runs):
    random = np.random.default_rng(7)
    x = random.integers(-3, 4, (50, 5)).astype(np.float32)
    holes = x.copy()
    holes[random.random(x.shape) < 0.1] = np.nan
    for targets, aggregate, based in itertools.product((1, 3), ("SUM", "AVERAGE", "MIN", "MAX"), (False, True)):
        nodes, weights = forest(random, 6, 4, 5, targets if targets > 1 else [0], shift=3)
        base = {"base_values": [0.5, -1.0, 2.0][:targets]} if based else {}
        for v in (x, holes, x.astype(np.float64)):
            runs.compare((targets, aggregate, based), *one("TreeEnsembleRegressor", {"x": v}, n_targets=targets, aggregate_function=aggregate, **nodes, **named("target", weights), **base))
    nodes, weights = forest(random, 1, 0, 5, [0, 1, 2])
    runs.compare("a tree of one leaf", *one("TreeEnsembleRegressor", {"x": x}, n_targets=3, **nodes, **named("target", weights)))
    for positive, transform, based in itertools.product((False, True), TRANSFORMS[:4], (False, True)):
        nodes, weights = forest(random, 5, 4, 5, 3, positive)
        base = {"base_values": [0.1, 0.3, 0.2]} if based else {}
        runs.compare((positive, transform, based), *one("TreeEnsembleClassifier", {"x": holes}, ("y", "z"), classlabels_int64s=[9, 4, -6], post_transform=transform, **nodes, **named("class", weights), **base))
        for which in (0, 1):
            nodes, weights = forest(random, 5, 4, 5, [which], positive)
            base = {"base_values": [-0.1]} if based and not which else {}
            runs.compare(("two classes", which, positive, transform, based), *one("TreeEnsembleClassifier", {"x": x}, ("y", "z"), classlabels_int64s=[9, -4], post_transform=transform, **nodes, **named("class", weights), **base))


# ---- maps


def maps(runs):
    """Keys in no order, one of them twice. onnxruntime takes maps as inputs, and has no SequenceAt of them."""
    random = np.random.default_rng(8)
    x, keys = random.standard_normal((4, 5)).astype(np.float32), [7, 2, -3, 2, 11]
    declared = helper.make_value_info("z", helper.make_sequence_type_proto(helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, []))))
    zipped = helper.make_node("ZipMap", ["x"], ["z"], domain=ML, classlabels_int64s=keys)
    for v in (x, x[0]):
        want = runs.compare("ZipMap", graph_of([zipped], {"x": v}, [declared]), {"x": v})[0]
    want = [dict(zip(keys, row.tolist())) for row in x]
    shuffled = [5, 0, -3, 11]
    ends = [("DictVectorizer", dict(int64_vocabulary=[11, 4, 2, -3, 11])), ("CastMap", {}), ("CastMap", dict(cast_to="TO_INT64"))]
    positive = ("CastMap", dict(map_form="SPARSE", max_map=9))
    for (op, kinds), at, labels in [(end, at, keys) for end in ends for at in (0, -1, 2)] + [(positive, 1, [7, 2, 3, 2, 11])]:
        nodes = [helper.make_node("ZipMap", ["x"], ["z"], domain=ML, classlabels_int64s=labels), helper.make_node("SequenceAt", ["z", "at"], ["map"]),
                 helper.make_node("Identity", ["map"], ["same"]), helper.make_node(op, ["same"], ["y"], domain=ML, **kinds)]
        chain = graph_of(nodes, {"x": x}, ["y"], tensors={"at": np.array(at)})
        proto = helper.make_value_info("map", helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, [])))
        alone = helper.make_graph([helper.make_node(op, ["map"], ["y"], domain=ML, **kinds)], "graph", [proto], [helper.make_value_info("y", onnx.TypeProto())])
        alone = helper.make_model(alone, ir_version=9, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)])
        runs.compare((op, kinds, at), chain, {"x": x}, (alone, {"map": dict(zip(labels, map(float, x[at])))}))
        said = runs.run(alone, {})
        assert "input 'map': maps are not given from outside" in said and "CastMap" in said, said
    count = graph_of([zipped, helper.make_node("SequenceLength", ["z"], ["n"])], {"x": x}, ["n"])
    assert runs.run(count, {"x": x})["n"] == 4
    one_map = graph_of([zipped, helper.make_node("SequenceAt", ["z", "at"], ["map"])], {"x": x}, ["map"], tensors={"at": np.array(2)})
    got = runs.run(one_map, {"x": x})
    assert dict(zip(got["map.keys"].tolist(), got["map.values"].tolist())) == want[2], got
    erased = graph_of([zipped, helper.make_node("SequenceErase", ["z", "at"], ["left"])], {"x": x}, ["left"], tensors={"at": np.array(1)})
    got = runs.run(erased, {"x": x})
    assert [dict(zip(got["left.keys"].tolist(), row)) for row in got["left.values"].tolist()] == want[:1] + want[2:], got
    text = graph_of([helper.make_node("ZipMap", ["x"], ["z"], domain=ML, classlabels_strings=list("abcde"))], {"x": x}, ["z"])
    assert "'classlabels_strings': strings are not held" in runs.run(text, {"x": x})
    assert "a sequence of maps: take one" in runs.run(graph_of([zipped, helper.make_node("CastMap", ["z"], ["y"], domain=ML)], {"x": x}, ["y"]), {"x": x})
    assert "not a tensor" in runs.run(graph_of([zipped, helper.make_node("Neg", ["z"], ["y"])], {"x": x}, ["y"]), {"x": x})


def sklearn(runs):
    """Models that scikit-learn fits and skl2onnx exports, with maps of the scores and without."""
    from skl2onnx import to_onnx
    from sklearn.datasets import make_classification, make_regression
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor, RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Binarizer, MinMaxScaler, Normalizer, StandardScaler
    from sklearn.svm import SVC, SVR, LinearSVC
    from sklearn.tree import DecisionTreeClassifier
    for classes in (2, 3):
        x, y = make_classification(200, 6, n_informative=4, n_classes=classes, random_state=1)
        x, y = x.astype(np.float32), y * 3 + 5
        for model in (make_pipeline(StandardScaler(), LogisticRegression()), make_pipeline(MinMaxScaler(), SVC(probability=True, random_state=1)), SVC(kernel="poly"),
                      LinearSVC(), make_pipeline(SimpleImputer(), GradientBoostingClassifier(n_estimators=20)), DecisionTreeClassifier(max_depth=5),
                      RandomForestClassifier(10, random_state=1), make_pipeline(Normalizer("l1"), Binarizer(threshold=0.1), LogisticRegression())):
            model.fit(x, y)
            for zipped in (True, False):
                exported = to_onnx(model, x[:1], options={"zipmap": zipped} if hasattr(model, "predict_proba") else None, target_opset={"": 18, ML: 3})
                runs.compare((str(model), classes, zipped), exported, {exported.graph.input[0].name: x[:64]})
    x, y = make_regression(200, 6, random_state=1)
    for model in (LinearRegression(), SVR(), GradientBoostingRegressor(n_estimators=20)):
        model.fit(x, y / 100)
        exported = to_onnx(model, x[:1].astype(np.float32), target_opset={"": 18, ML: 3})
        runs.compare(str(model), exported, {exported.graph.input[0].name: x[:64].astype(np.float32)})


# ---- what files declare


def declared(runs):
    """A type that is not the one that is computed is refused, as by onnxruntime; a shape is said, and goes by."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    info = helper.make_tensor_value_info
    for kind, shape, refused in ((1, [2, 3], False), (7, [2, 3], True), (1, [2, 4], False), (1, [6], False), (1, ["n", 3], False)):
        nodes = [helper.make_node("Neg", ["x"], ["a"], name="first"), helper.make_node("Abs", ["a"], ["y"])]
        for inner in (True, False):
            model = graph_of(nodes, {"x": x}, ["y"] if inner else [info("y", kind, shape)])
            if inner: model.graph.value_info.append(info("a", kind, shape))
            got, odd = runs.run(model, {"x": x}), shape not in ([2, 3], ["n", 3])
            assert isinstance(got, str) == refused, (kind, shape, got)
            if refused: assert "FLOAT, declared is INT64" in got and ("'first' (Neg" in got) == inner, got
            else: assert ("of shape (2,3), declared is (" in runs.said) == odd, runs.said
            try:
                theirs = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
            except Exception as e:
                assert refused and "Type Error" in str(e), e
            else:
                assert not refused and np.array_equal(theirs, got["y"])


# ---- random numbers: their distribution


def fits(what, counts, share):
    """Chi-squared, at most 6 standard deviations past its mean."""
    expected = counts.sum() * np.asarray(share)
    assert (counts[expected == 0] == 0).all(), (what, counts)
    some = expected > 0
    chi, free = ((counts - expected)[some] ** 2 / expected[some]).sum(), some.sum() - 1
    assert chi <= free + 6 * np.sqrt(2 * free), (what, chi, free, counts, expected)
    return chi


def random(runs):
    n = 200000
    odds = np.array([[0.1, 0.5, 0.0, 0.4], [1e-3, 1e-3, 0.998, 0]], np.float32)
    with np.errstate(divide="ignore"): given = {"x": np.log(odds) + np.float32(2)}
    for dtype in (6, 7):
        y = runs.run(*one("Multinomial", given, version=18, domain="", sample_size=n, dtype=dtype, seed=1.0))["y"]
        assert y.dtype == (np.int32 if dtype == 6 else np.int64) and y.shape == (2, n), (y.dtype, y.shape)
        for row, share in zip(y, odds): fits("Multinomial", np.bincount(row, minlength=4), share / share.sum())
        assert not np.array_equal(y[0], y[1])
    p = np.repeat(np.array([0, 0.25, 0.9, 1], np.float32), n)
    y = runs.run(*one("Bernoulli", {"x": p}, version=18, domain="", dtype=7))["y"].reshape(4, n)
    for row, share in zip(y, (0, 0.25, 0.9, 1)): fits("Bernoulli", np.bincount(row, minlength=2), [1 - share, share])
    cuts = np.array([-1.281552, -0.841621, -0.524401, -0.253347, 0, 0.253347, 0.524401, 0.841621, 1.281552])   # tenths of the normal distribution
    like = {"x": np.zeros((4, n), np.float32)}
    normal, uniform = dict(mean=3.0, scale=2.0), dict(low=-2.0, high=3.0)
    for op, given, kinds in (("RandomNormal", {}, normal | {"shape": [4, n]}), ("RandomNormalLike", like, normal), ("RandomUniform", {}, uniform | {"shape": [4, n]}), ("RandomUniformLike", like, uniform)):
        y = runs.run(*one(op, given, version=18, domain="", **kinds))["y"]
        assert y.shape == (4, n) and y.dtype == np.float32
        parts = np.searchsorted(cuts, (y.ravel() - 3) / 2) if "Normal" in op else np.floor((y.ravel() + 2) * 2).astype(int)
        fits(op, np.bincount(parts, minlength=10), np.full(10, 0.1))
        assert abs(np.corrcoef(y[0], y[1])[0, 1]) < 6 / np.sqrt(n)


def known(runs):
    """Each op of the standard that is in no table is refused with a reason of its own: all of them are nodes of one model."""
    nodes, newest = [], {"": 28, ML: 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}
    schemas = {(s.domain, s.name): s for s in onnx.defs.get_all_schemas_with_history() if s.domain in newest}
    for k, schema in enumerate(list(schemas.values()) + [None]):
        domain, op, n = (schema.domain, schema.name, max(schema.min_output, 1)) if schema else ("", "Frobnicate", 1)
        inputs = ["x"] * max(schema.min_input, 1) if schema and schema.max_input else []
        nodes.append(helper.make_node(op, inputs, [f"y{k}_{i}" for i in range(n)], domain=domain))
    model = graph_of(nodes, {"x": np.zeros(1, np.float32)}, ["y0_0"])
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(d, v) for d, v in newest.items())
    said = runs.run(model, {"x": np.zeros(1, np.float32)})
    missing = [line for line in said.splitlines() if "no such op" in line]
    refused = [line for line in said.splitlines() if line.startswith("node ")]
    print(f"{len(schemas)} ops are built or refused with a reason, {len(refused) - 1} refused")
    assert len(schemas) > 200 and len(missing) == 1 and "Frobnicate" in missing[0], missing


GROUPS = dict(regions=regions, encoders=encoders, linear=linear, vectors=vectors, old_trees=old_trees, maps=maps, sklearn=sklearn, declared=declared, random=random, known=known)


def main():
    name, programs, folder = sys.argv[1:]
    runs = Runs(programs, folder)
    GROUPS[name](runs)
    print(f"{name}: {runs.n} models, onnxruntime {onnxruntime.__version__}")


if __name__ == "__main__":
    main()
