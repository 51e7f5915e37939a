#!/usr/bin/env python3
"""Golden files of tests/language_model_test.c: small models of each family, what PyPI's transformers makes of them.

    python3 tests/language_model_golden.py write tests/golden/models    (needs torch and transformers)
    python3 tests/language_model_golden.py check tests/golden/models    the same, and compares with what is there
    python3 tests/language_model_golden.py gguf FILE OUT [BLOCKS [LAYERS]]
                                                                        the model of a golden file as GGUF (needs gguf, numpy)

Weights are made by a formula of their name, so that the test makes them again: few bits each, so that they are the same in f32,
f16 and bf16. A file holds config.json as transformers saves it, names and shapes of the tensors, and for prompts of
several lengths 200 greedy tokens in f32 with the logits of some of them, and how far the package is off in f16 and bf16.
"""
import json
import os
import sys

STEPS, ROWS = 200, (0, 1, 63, 199)
VOCAB = 96
PROMPTS = (1, 5, 33)


def fnv(name):
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = ((h ^ c) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def weights(name, shape, seed):
    """Elements of a tensor: an integer from a hash of its name and their index, -32 to 31, times a power of two."""
    import numpy as np
    n = int(np.prod(shape))
    with np.errstate(over="ignore"):
        x = np.uint64(fnv(name)) + np.uint64(seed) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    v = (x >> np.uint64(58)).astype(np.int64) - 32
    gain = len(shape) == 1 and name.endswith("weight")
    scale = 128 if gain else 64 if len(shape) == 1 else 32
    v = v.astype(np.float32) / np.float32(scale)
    return (v + np.float32(1) if gain else v).reshape(shape)


def prompt(length):
    return [(7 * i * i + 11 * i + 3) % VOCAB for i in range(length)]


def configs():
    import transformers as t
    size = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_position_embeddings=256)
    llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64, rope_theta=10000.0)
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=10000.0)
    plain = dict(rope_type="default", rope_theta=10000.0)
    return {
        "gpt2": t.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=0),
        "llama2": t.LlamaConfig(**size, num_key_value_heads=4, rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=10000.0)),
        "llama3": t.LlamaConfig(**size, num_key_value_heads=2, rope_parameters=llama3, tie_word_embeddings=True, eos_token_id=[94, 95]),
        "llama_biased": t.LlamaConfig(**size, num_key_value_heads=2, rope_parameters=yarn, attention_bias=True, mlp_bias=True),
        "mistral": t.MistralConfig(**size, num_key_value_heads=2, sliding_window=24, rope_parameters=plain),
        "qwen2": t.Qwen2Config(**size, num_key_value_heads=2, rope_parameters=plain),
        "qwen3": t.Qwen3Config(**size, num_key_value_heads=2, head_dim=16, rope_parameters=plain),
        "gemma2": t.Gemma2Config(**size, num_key_value_heads=2, head_dim=16, sliding_window=24, query_pre_attn_scalar=24, attn_logit_softcapping=5.0, tie_word_embeddings=False,
                                 final_logit_softcapping=20.0, rope_parameters=plain),
        "gemma3": t.Gemma3TextConfig(**dict(size, num_hidden_layers=3), num_key_value_heads=2, head_dim=16, sliding_window=24, query_pre_attn_scalar=24, tie_word_embeddings=False,
                                     layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
        "mixtral": t.MixtralConfig(**size, num_key_value_heads=2, num_local_experts=4, rope_parameters=plain),
        "qwen3_moe": t.Qwen3MoeConfig(**size, num_key_value_heads=2, head_dim=16, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
                                      rope_parameters=plain),
        "qwen2_moe": t.Qwen2MoeConfig(**size, num_key_value_heads=2, moe_intermediate_size=24, shared_expert_intermediate_size=40, num_experts=4, num_experts_per_tok=2,
                                      rope_parameters=plain),
        "phi": t.PhiConfig(**size, rope_parameters=dict(plain, partial_rotary_factor=0.5)),
        "phi3": t.Phi3Config(**size, num_key_value_heads=2, rope_parameters=plain, pad_token_id=0, eos_token_id=2),
        "phi3_short": t.Phi3Config(**dict(size, max_position_embeddings=1024), num_key_value_heads=2, rope_parameters=longrope(4, 256), pad_token_id=0, eos_token_id=2,
                                   original_max_position_embeddings=256),
        "phi3_long": t.Phi3Config(**size, num_key_value_heads=2, rope_parameters=dict(longrope(4, 4), attention_factor=1.1875), pad_token_id=0, eos_token_id=2, original_max_position_embeddings=4,
                                  sliding_window=40),
    }


def longrope(pairs, context):
    """What frequencies are divided by in texts of up to `context` tokens and in longer ones (Ding et al. 2024)."""
    return dict(rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=context,
                short_factor=[1 + 0.125 * i for i in range(pairs)], long_factor=[1.5 + 0.75 * i for i in range(pairs)])


def make(config, seed):
    import torch, transformers
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    import tempfile, safetensors.torch
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        stored = safetensors.torch.load_file(folder + "/model.safetensors")
        saved = json.load(open(folder + "/config.json"))
        shapes = [[n, list(t.shape)] for n, t in sorted(stored.items())]
        made = {n: torch.from_numpy(weights(n, s, seed)).contiguous() for n, s in shapes}
        safetensors.torch.save_file(made, folder + "/model.safetensors", metadata={"format": "pt"})
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return model, saved, shapes


def greedy(model, ids):
    """Tokens, logits of ROWS, and how near the second largest came, relative to the largest."""
    import torch
    out, rows, gap, past = [], [], 1.0, None
    feed = torch.tensor([ids])
    with torch.no_grad():
        for step in range(STEPS):
            y = model(input_ids=feed, past_key_values=past, use_cache=True)
            past, logits = y.past_key_values, y.logits[0, -1]
            top = torch.topk(logits, 2)
            gap = min(gap, float((top.values[0] - top.values[1]) / logits.abs().max()))
            if step in ROWS:
                rows.append([float("%.7g" % v) for v in logits])
            out.append(int(top.indices[0]))
            feed = torch.tensor([[out[-1]]])
    return out, rows, gap


def errors(model, run, ids):
    """How far the package's own logits are off in f16 and bf16, relative to the largest; on the tokens of f32."""
    import copy, torch
    out = {}
    for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        with torch.no_grad():
            y = copy.deepcopy(model).to(dtype)(input_ids=torch.tensor([ids + run[0]])).logits[0].float()
        worst = 0.0
        for row, want in zip(ROWS, run[1]):
            want = torch.tensor(want)
            worst = max(worst, float((y[len(ids) - 1 + row] - want).abs().max() / want.abs().max()))
        out[name] = float("%.3g" % worst)
    return out


def golden(name, config):
    for seed in range(1, 20):
        model, saved, shapes = make(config, seed)
        original = saved.get("original_max_position_embeddings", 256)   # factors of the rotary embedding change behind it: no text crosses it
        lengths = [n for n in PROMPTS if n > original or n + STEPS <= original]
        runs = [greedy(model, prompt(n)) for n in lengths]
        gap, kinds = min(r[2] for r in runs), min(len(set(r[0])) for r in runs)
        if gap > 5e-5 and kinds > 10:
            return {"seed": seed, "config": saved, "tensors": shapes, "steps": STEPS, "rows": list(ROWS),
                    "errors": errors(model, runs[-1], prompt(lengths[-1])),
                    "runs": [{"prompt": prompt(n), "tokens": r[0], "logits": r[1]} for n, r in zip(lengths, runs)]}
    sys.exit(f"{name}: no seed keeps the two largest logits apart")


def text(value):
    """A line for each member, a row of logits a line."""
    runs = value.pop("runs")
    lines = [json.dumps(k) + ": " + json.dumps(v, separators=(",", ":")) for k, v in value.items()]
    lines.append('"runs": [' + ",".join("\n" + json.dumps(r, separators=(",", ":")) for r in runs) + "]")
    return "{" + ",\n".join(lines) + "}\n"


def check(value, file):
    """Tokens are equal, logits within 1e-5 of the largest."""
    have = json.load(open(file))
    for a, b in zip(value["runs"], have["runs"], strict=True):
        assert a["tokens"] == b["tokens"], file
        for x, y in zip(a["logits"], b["logits"], strict=True):
            assert max(abs(p - q) for p, q in zip(x, y, strict=True)) <= 1e-5 * max(map(abs, x)), file
    assert all(abs(value["errors"][k] / v - 1) < 0.5 for k, v in have["errors"].items()), file
    assert value["tensors"] == have["tensors"] and value["seed"] == have["seed"], file


def permuted(w, heads):
    """Rows of queries or keys as GGUF has them for Llama: the two halves of a head by turns."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def gguf_names(layers, kind):
    """Names of safetensors and of GGUF."""
    outer = {"model.embed_tokens.weight": "token_embd.weight", "transformer.wte.weight": "token_embd.weight",
             "transformer.wpe.weight": "position_embd.weight", "model.norm.weight": "output_norm.weight",
             "transformer.ln_f.weight": "output_norm.weight", "transformer.ln_f.bias": "output_norm.bias",
             "model.final_layernorm.weight": "output_norm.weight", "model.final_layernorm.bias": "output_norm.bias",
             "lm_head.weight": "output.weight", "lm_head.bias": "output.bias"}
    inner = {"input_layernorm": "attn_norm", "ln_1": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "attn.c_attn": "attn_qkv", "self_attn.o_proj": "attn_output",
             "self_attn.dense": "attn_output", "attn.c_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
             "ln_2": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
             "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
             "mlp.gate": "ffn_gate_inp", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
             "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
             "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up", "block_sparse_moe.gate": "ffn_gate_inp"}
    if "gemma" in kind:
        inner.update({"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                      "post_feedforward_layernorm": "post_ffw_norm"})
    for i in range(layers):
        for a, b in inner.items():
            for end in (".weight", ".bias"):
                for prefix in ("model.layers", "transformer.h"):
                    outer[f"{prefix}.{i}.{a}{end}"] = f"blk.{i}.{b}{end}"
    return outer


def rope_factors(rope, size):
    """What frequencies are divided by, as converters of Llama 3 write it (Llama Team 2024)."""
    import math
    import numpy as np
    low, high = (rope["original_max_position_embeddings"] / rope[k] for k in ("low_freq_factor", "high_freq_factor"))
    out = []
    for i in range(size // 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (2 * i / size)
        smooth = (rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        out.append(1 if wave < high else rope["factor"] if wave > low else 1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def add_longrope(w, context, rope):
    """As converters of Phi-3 write it (Ding et al. 2024): what the rotated elements are multiplied by, and two tensors."""
    import math
    import numpy as np
    original = rope["original_max_position_embeddings"]
    w.add_rope_scaling_orig_ctx_len(original)
    w.add_rope_scaling_attn_factors(rope.get("attention_factor") or math.sqrt(1 + math.log(context / original) / math.log(original)))
    for which in ("long", "short"):
        w.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], dtype=np.float32))


def add_tensor(w, name, t, blocks):
    """In blocks where rows are whole ones."""
    import gguf
    if blocks and len(t.shape) >= 2 and t.shape[-1] % 32 == 0 and "ffn_gate_inp" not in name:
        kind = gguf.GGMLQuantizationType[blocks]
        w.add_tensor(name, gguf.quants.quantize(t, kind), raw_dtype=kind)
    else:
        w.add_tensor(name, t)


def repeated(value, layers):
    """The model with its first layer so many times."""
    first = [t for t in value["tensors"] if ".layers.0." in t[0]]
    value["tensors"] = [t for t in value["tensors"] if ".layers." not in t[0]]
    value["tensors"] += [[n.replace(".layers.0.", f".layers.{i}."), s] for i in range(layers) for n, s in first]
    value["config"]["num_hidden_layers"] = layers


def write_gguf(file, out, blocks=None, copies=None):
    """Tokens are the bytes from 32 to 126, so that a prompt of ids can be written as text, and one merge. copies: of the first
    layer, so many, and without the key that says what scores are multiplied by."""
    import gguf
    import numpy as np
    value = json.load(open(file))
    if copies:
        repeated(value, int(copies))
    c, kind = value["config"], value["config"]["model_type"]
    heads, layers = c.get("num_attention_heads") or c["n_head"], c.get("num_hidden_layers") or c["n_layer"]
    kv, dim = c.get("num_key_value_heads", heads), c.get("hidden_size") or c["n_embd"]
    w = gguf.GGUFWriter(out, {"phi": "phi2", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "mixtral": "llama", "gemma3_text": "gemma3"}.get(kind, kind))
    experts = c.get("num_local_experts") or c.get("num_experts")
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(c["num_experts_per_tok"])
        if "moe_intermediate_size" in c:
            w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        if "shared_expert_intermediate_size" in c:
            w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    w.add_block_count(layers)
    w.add_embedding_length(dim)
    w.add_feed_forward_length(c.get("intermediate_size") or 4 * dim)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_context_length(c.get("max_position_embeddings", 256))
    w.add_vocab_size(VOCAB)
    head = c.get("head_dim") or dim // heads
    w.add_key_length(head)
    (w.add_layer_norm_rms_eps if "rms_norm_eps" in c else w.add_layer_norm_eps)(c.get("rms_norm_eps") or c.get("layer_norm_eps") or c["layer_norm_epsilon"])
    if c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    if kind == "gemma3_text":
        w.add_sliding_window_pattern(c["layer_types"].index("full_attention") + 1)
    if c.get("query_pre_attn_scalar") and not copies:
        w.add_attention_scale(c["query_pre_attn_scalar"] ** -0.5)
    if c.get("attn_logit_softcapping"):
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
    if c.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if "rope_parameters" in c:
        rope = c["rope_parameters"].get("full_attention", c["rope_parameters"])
        if rope["rope_type"] == "longrope":
            add_longrope(w, c["max_position_embeddings"], rope)
        w.add_rope_freq_base(rope["rope_theta"])
        w.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1)))
        if rope["rope_type"] == "llama3":
            w.add_tensor("rope_freqs.weight", rope_factors(rope, head))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([chr(288 if b == 32 else b) for b in range(32, 127)] + ["zz"])
    w.add_token_types([1] * VOCAB)
    w.add_token_merges(["z z"])
    names, stacks = gguf_names(layers, kind), {}
    for name, shape in value["tensors"]:
        t = weights(name, shape, value["seed"])
        if ".experts." in name:                     # all of a layer become one tensor
            layer, expert, part = (name.split(".")[i] for i in (2, 5, 6))
            part = {"w1": "gate", "w2": "down", "w3": "up"}.get(part, part.removesuffix("_proj"))
            stacks.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", {})[int(expert)] = t
            continue
        if kind == "gpt2" and ".c_" in name and len(shape) == 2:
            t = t.T.copy()
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            t = t + 1                               # safetensors hold gains less 1
        if kind in ("llama", "mixtral") and (".q_proj.weight" in name or ".k_proj.weight" in name):
            t = permuted(t, heads if ".q_proj" in name else kv)
        if "shared_expert_gate" in name:            # its one row
            t = t[0]
        add_tensor(w, names[name], t, blocks)
    for name, parts in stacks.items():
        add_tensor(w, name, np.stack([parts[i] for i in sorted(parts)]), blocks)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    for i, run in enumerate(value["runs"]):
        open(f"{out}.{i}.prompt", "wb").write(bytes(32 + t for t in run["prompt"]))
        json.dump(run["tokens"], open(f"{out}.{i}.tokens", "w"), separators=(",", ":"))


def main():
    what, folder = sys.argv[1:3]
    if what == "gguf":
        return write_gguf(folder, sys.argv[3], *(a or None for a in sys.argv[4:]))
    os.makedirs(folder, exist_ok=True)
    wanted = sys.argv[3:]
    for name, config in configs().items():
        if wanted and name not in wanted:
            continue
        value, file = golden(name, config), f"{folder}/{name}.json"
        if what == "check":
            check(value, file)
        else:
            open(file, "w").write(text(value))
        print(name, "seed", value["seed"], os.path.getsize(file), "bytes")


if __name__ == "__main__":
    main()
