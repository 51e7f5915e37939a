"""vLLM on the workload llama: a folder with the same weights is written first. VLLM_BENCH_CMD='python3 bench/adapters/vllm_engine.py'
"""
import json
import os
import tempfile

import adapter

DTYPES = {'f32': ('float32', 'F32'), 'f16': ('float16', 'F16'), 'bf16': ('bfloat16', 'BF16')}
NAMES = ('input_layernorm', 'post_attention_layernorm', 'self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj',
         'self_attn.o_proj', 'mlp.gate_proj', 'mlp.up_proj', 'mlp.down_proj')


def check(r):
    if r['workload'] != 'llama':
        raise adapter.Unavailable(f"this adapter runs llama, not {r['workload']}")
    if r['case'] != 'prefill':
        raise adapter.Unavailable('a past of random numbers cannot be put into the KV cache of vLLM: prefill alone compares')
    if r['dtype'] not in DTYPES:
        raise adapter.Unavailable(f"vLLM has no {r['dtype']}")
    if adapter.gpu_number(r['device']) is None:
        raise adapter.Unavailable('this adapter runs vLLM on a GPU')


def config(r):
    return {'architectures': ['LlamaForCausalLM'], 'model_type': 'llama', 'hidden_size': r['hidden'],
            'intermediate_size': r['feed_forward'], 'num_hidden_layers': r['layers'], 'num_attention_heads': r['heads'],
            'num_key_value_heads': r['kv_heads'], 'head_dim': r['head'], 'vocab_size': r['vocab'], 'rms_norm_eps': 1e-5,
            'rope_theta': 500000.0, 'max_position_embeddings': r['room'], 'hidden_act': 'silu',
            'tie_word_embeddings': True, 'torch_dtype': DTYPES[r['dtype']][0], 'bos_token_id': 0, 'eos_token_id': 1}


def write(r, folder):
    """config.json and model.safetensors; the ids of the prompt."""
    import torch
    import safetensors.torch
    import numpy_leaves
    import workloads
    tensors, ids = {}, None
    for place, spec in enumerate(workloads.inputs(r)):
        if spec.state:
            continue
        if spec.below:
            ids = numpy_leaves.integers(spec, r['seed'], place).ravel().tolist()
            continue
        x = torch.from_numpy(numpy_leaves.floats(spec, r['seed'], place)).to(getattr(torch, DTYPES[r['dtype']][0]))
        layer, at = divmod(place - 3, 11)
        if place < 3:
            name = ('', 'model.embed_tokens', 'model.norm')[place]
        else:
            name = f'model.layers.{layer}.{NAMES[at]}'
            x = x.T.contiguous() if x.ndim == 2 else x
        tensors[name + '.weight'] = x
    safetensors.torch.save_file(tensors, os.path.join(folder, 'model.safetensors'), {'format': 'pt'})
    with open(os.path.join(folder, 'config.json'), 'w', encoding='utf-8') as f:
        json.dump(config(r), f)
    return ids


def run(r):
    import vllm
    check(r)
    with tempfile.TemporaryDirectory() as folder:
        ids = write(r, folder)
        engine = vllm.LLM(folder, skip_tokenizer_init=True, dtype=DTYPES[r['dtype']][0], max_model_len=r['room'],
                          enable_prefix_caching=False, logprobs_mode='raw_logits', max_logprobs=r['vocab'],
                          gpu_memory_utilization=0.5)
        prompt = {'prompt_token_ids': ids}
        one = vllm.SamplingParams(temperature=0, max_tokens=1, detokenize=False)
        every = vllm.SamplingParams(temperature=0, max_tokens=1, detokenize=False, logprobs=r['vocab'])
        logits = engine.generate(prompt, every, use_tqdm=False)[0].outputs[0].logprobs[0]
        result = adapter.sample([logits[i].logprob for i in range(r['vocab'])], r)
        seconds = adapter.timed(r, lambda number: engine.generate(prompt, one, use_tqdm=False))
    return adapter.answer(r, seconds, result, None, {'vllm': vllm.__version__})


if __name__ == '__main__':
    adapter.main(run)
