#!/usr/bin/env python3
"""Writes the node tests of PyPI's onnx as folders that examples/onnx_run reads with --check.

    python3 tests/onnx_node_tests.py FOLDER [WORD...]      only those whose names have one of the words

onnx_node_test.sh and gpu_conformance.sh nodes use it.
"""
import os
import sys
import warnings

warnings.simplefilter('ignore')
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

def bytes_of(value, kind, name):
    if isinstance(value, onnx.TensorProto): return value.SerializeToString()
    make = {'sequence_type': numpy_helper.from_list, 'map_type': numpy_helper.from_dict, 'optional_type': numpy_helper.from_optional}
    return make.get(kind.WhichOneof('value'), numpy_helper.from_array)(value, name).SerializeToString()

def write(path, data):
    with open(path, 'wb') as f: f.write(data)

for case in load_model_tests(kind='node'):
    if sys.argv[2:] and not any(word in case.name for word in sys.argv[2:]): continue
    assert (case.rtol, case.atol) == (1e-3, 1e-7), case.name      # what onnx_run compares with
    os.makedirs(f'{sys.argv[1]}/{case.name}')
    write(f'{sys.argv[1]}/{case.name}/model.onnx', case.model.SerializeToString())
    for i, sides in enumerate(case.data_sets):
        folder = f'{sys.argv[1]}/{case.name}/test_data_set_{i}'
        os.mkdir(folder)
        for side, values, slots in zip(('input', 'output'), sides, (case.model.graph.input, case.model.graph.output)):
            for j, value in enumerate(values): write(f'{folder}/{side}_{j}.pb', bytes_of(value, slots[j].type, slots[j].name))
