"""llama.cpp by its Python binding, on the workload llama: a GGUF file with the same weights is written first.
LLAMACPP_BENCH_CMD='python3 bench/adapters/llamacpp.py'"""
import os
import tempfile

import adapter

NAMES = ('attn_norm', 'ffn_norm', 'attn_q', 'attn_k', 'attn_v', 'attn_output', 'ffn_gate', 'ffn_up', 'ffn_down')


def check(r):
    if r['workload'] != 'llama':
        raise adapter.Unavailable(f"this adapter runs llama, not {r['workload']}")
    if r['case'] != 'prefill':
        raise adapter.Unavailable('a past of random numbers cannot be put into the KV cache of llama.cpp: prefill alone compares')
    if r['dtype'] not in ('f32', 'f16'):
        raise adapter.Unavailable(f"the file is written in f32 or f16, not {r['dtype']}")


def paired(w, heads, head):
    """Rows of a projection in the order of GGUF, whose rotary pairs stand side by side."""
    return w.T.reshape(heads, 2, head // 2, -1).swapaxes(1, 2).reshape(w.shape[1], -1)


def write(r, path):
    """The file, and the ids of the prompt."""
    import gguf
    import numpy as np
    import numpy_leaves
    import workloads
    kind = np.float16 if r['dtype'] == 'f16' else np.float32
    writer = gguf.GGUFWriter(path, 'llama')
    writer.add_context_length(r['room'])
    writer.add_embedding_length(r['hidden'])
    writer.add_block_count(r['layers'])
    writer.add_feed_forward_length(r['feed_forward'])
    writer.add_head_count(r['heads'])
    writer.add_head_count_kv(r['kv_heads'])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(r['head'])
    writer.add_rope_freq_base(500000.0)
    writer.add_vocab_size(r['vocab'])
    writer.add_tokenizer_model('no_vocab')
    ids = None
    for place, spec in enumerate(workloads.inputs(r)):
        if spec.state:
            continue
        if spec.below:
            ids = numpy_leaves.integers(spec, r['seed'], place).ravel().tolist()
            continue
        x = numpy_leaves.floats(spec, r['seed'], place).astype(kind)
        layer, at = divmod(place - 3, 11)
        if place < 3:
            name = ('', 'token_embd', 'output_norm')[place]
        else:
            name = f'blk.{layer}.{NAMES[at]}'
            if at in (2, 3):
                x = paired(x, r['heads'] if at == 2 else r['kv_heads'], r['head'])
            elif at > 3:
                x = x.T
        writer.add_tensor(name + '.weight', np.ascontiguousarray(x.astype(np.float32) if x.ndim == 1 else x))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ids


def run(r):
    import llama_cpp
    import numpy as np
    check(r)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'model.gguf')
        ids = write(r, path)
        gpu = adapter.gpu_number(r['device'])
        model = llama_cpp.Llama(path, n_gpu_layers=0 if gpu is None else -1, main_gpu=gpu or 0, n_ctx=r['room'],
                                n_batch=r['tokens'], n_threads=r.get('threads') or None, logits_all=False, verbose=False)

        def step(number):
            model.reset()
            model.eval(ids)
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(model.ctx, -1), shape=(r['vocab'],))
            return logits, int(logits.argmax())

        result = adapter.sample(step(0)[0].astype('float64'), r)
        seconds = adapter.timed(r, step)
    return adapter.answer(r, seconds, result, adapter.host_peak() if gpu is None else None,
                          {'llama_cpp': llama_cpp.__version__})


if __name__ == '__main__':
    adapter.main(run)
