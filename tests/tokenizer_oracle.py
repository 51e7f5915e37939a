"""Tokenizers that the packages `tokenizers` and `sentencepiece` make, and their ids of mixed text, beside those of
examples/formats/tokenizer.h: as tokenizer.json, as vocab.json with merges.txt, and as GGUF files that `gguf` writes.

    python3 tokenizer_oracle.py READER FOLDER MEGABYTES [NAME[:FLAGS] ...]

READER is the program that tokenizer_oracle_test.sh compiles. Exits with 1 when an id or a decoded text differs. A line tells the ids
and the rates of processor time: this reader's and the package's (`encode_batch_fast`, one thread).
TOKENIZER_TEXT=documents: sources and documents alone, =random: what is drawn alone. TOKENIZER_SEED=N: other draws."""
import glob
import io
import json
import os
import random
import struct
import subprocess
import sys
import time
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers as N, pre_tokenizers as P, processors, trainers

READER, FOLDER, MEGABYTES, ONLY = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]
TEXT = os.environ.get('TOKENIZER_TEXT', 'mixed')
DRAW = random.Random(int(os.environ.get('TOKENIZER_SEED', '5')))

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS +
         r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS +
         r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# ---- text: scripts, spaces, marks, numbers, contractions, added tokens; and the sources and documents of this machine

BLOCKS = [(0x20, 0x7e), (0xa0, 0x17f), (0x370, 0x3ff), (0x400, 0x4ff), (0x531, 0x58f), (0x590, 0x5ff), (0x600, 0x6ff), (0x700, 0x74f),
          (0x900, 0x97f), (0x980, 0x9ff), (0xa00, 0xa7f), (0xb80, 0xbff), (0xe00, 0xe7f), (0xe80, 0xeff), (0xf00, 0xfff), (0x10a0, 0x10ff),
          (0x1100, 0x11ff), (0x1200, 0x137f), (0x1780, 0x17ff), (0x1e00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x22ff), (0x2460, 0x27bf),
          (0x3000, 0x30ff), (0x3130, 0x318f), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xf900, 0xfaff), (0xfb00, 0xfdff), (0xfe00, 0xffef),
          (0x1d400, 0x1d7ff), (0x1f000, 0x1faff), (0x20000, 0x2a6df), (0x2f800, 0x2fa1f), (0x300, 0x36f), (0x0, 0x1f), (0x7f, 0x9f),
          (0x10000, 0x10ffff)]
SPACES = [' ', '  ', '\n', '\r\n', '\t', ' \n ', '\u3000', '\xa0', '   ', '\u2028']
ADDED = ['<s>', '</s>', '<|endoftext|>', '<|im_start|>', '[MASK]', '<pad>', 'foo', '  ', '\n\n\n', 'été']
ENDINGS = ["'s", "'T", "'re", "'LL", "'ſ", "'d", "n't", "I'm", "\u2019s", "'K", "don't", "WE'VE"]


def random_text(n):
    kinds = [
        lambda: ''.join(map(chr, (DRAW.randint(*block) for block in [DRAW.choice(BLOCKS)] for _ in range(DRAW.randint(1, 8))))),
        lambda: DRAW.choice(SPACES), lambda: DRAW.choice(ADDED), lambda: DRAW.choice(ENDINGS),
        lambda: str(DRAW.randint(0, 10 ** DRAW.randint(1, 9))), lambda: ''.join(DRAW.choices('abcdefgXYZ', k=DRAW.randint(1, 12))),
        lambda: DRAW.choice('eaAन') + ''.join(chr(DRAW.randint(0x300, 0x34e)) for _ in range(DRAW.randint(1, 4))),
    ]
    text = ''.join(DRAW.choices(kinds, weights=[35, 15, 10, 10, 10, 10, 10])[0]() for _ in range(n))
    return ''.join(c for c in text if not 0xd800 <= ord(c) < 0xe000)


def documents():
    names = [name for pattern in ('/usr/lib/python3*/**/*.py', '/usr/include/**/*.h', '/usr/share/**/*.txt', 'genie*', '*.md')
             for name in glob.glob(pattern, recursive=True)]
    DRAW.shuffle(names)
    for name in names:
        try:
            yield open(name, encoding='utf-8').read()
        except (OSError, UnicodeDecodeError):
            pass


def corpus(size):
    """Texts of at most 4000 characters, of about this many bytes."""
    share = {'mixed': 0.3, 'documents': 1, 'random': 0}[TEXT]
    source, texts = documents(), []
    while size > 0:
        text = next(source, None) if DRAW.random() < share else None
        if text is None and share == 1:
            source = documents()
            continue
        text = text or random_text(DRAW.randint(1, 1500))
        for i in range(0, len(text), 4000):
            texts.append(text[i:i + 4000])
            size -= len(texts[-1].encode())
    return texts


BROKEN = [b'\x80', b'\xc3', b'\xe2\x82', b'\xf0\x9f\x98', b'\xed\xa0\x80', b'\xc0\xaf', b'\xe0\x80\x80', b'\xf4\x90\x80\x80', b'\xff', b'\xf8']


def broken(text):
    """One text in eight is no UTF-8: bytes are cut out, put in, or changed."""
    raw = bytearray(text.encode())
    if DRAW.random() < 0.875 or not raw:
        return bytes(raw)
    for _ in range(DRAW.randint(1, 12)):
        i = DRAW.randrange(len(raw) + 1)
        raw[i:i + DRAW.randrange(3)] = DRAW.choice(BROKEN + [b'', bytes([DRAW.randrange(256)])])
    return bytes(raw)


# ---- tokenizers

TRAIN = corpus(min(MEGABYTES, 1.0) * 4e5)


def with_added(t):
    t.add_special_tokens([AddedToken('<|endoftext|>', normalized=False), AddedToken('<|im_start|>', lstrip=True, rstrip=True),
                          AddedToken('[MASK]', lstrip=True), '<pad>'])
    t.add_tokens([AddedToken('foo', single_word=True), AddedToken('été', normalized=True), AddedToken('  ', normalized=False),
                  AddedToken('\n\n\n', rstrip=True)])
    return t


def on_bytes(split, normalizer=None, ignore_merges=False, added=True, special=('<s>', '</s>')):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer, t.decoder = split, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(TRAIN, trainers.BpeTrainer(vocab_size=4000, show_progress=False, special_tokens=list(special),
                                                     initial_alphabet=P.ByteLevel.alphabet()))
    return with_added(t) if added else t


def expression(text):
    return P.Sequence([P.Split(Regex(text), 'isolated'), P.ByteLevel(add_prefix_space=False, use_regex=False)])


BYTES = [f'<0x{i:02X}>' for i in range(256)]


def without_byte_tokens(t, **model):
    """Byte tokens belong to the model alone, as the models on hubs have it."""
    whole = json.loads(t.to_str())
    whole['added_tokens'] = [a for a in whole['added_tokens'] if a['content'] not in BYTES]
    whole['model'].update(model)
    return Tokenizer.from_str(json.dumps(whole))


def on_characters(split, normalizer, byte_fallback=True, fuse=True):
    t = Tokenizer(models.BPE(byte_fallback=byte_fallback, unk_token='<unk>', fuse_unk=fuse))
    if split:
        t.pre_tokenizer = split
    if normalizer:
        t.normalizer = normalizer
    texts = TRAIN if split else [text[:200] for text in TRAIN]
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=2500, show_progress=False, limit_alphabet=600, max_token_length=16,
        special_tokens=['<unk>', '<s>', '</s>'] + BYTES * byte_fallback))
    t = without_byte_tokens(t)
    t.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)])
    t.post_processor = processors.TemplateProcessing(single='<s> $A </s>', special_tokens=[('<s>', 1), ('</s>', 2)])
    return with_added(t)


def unigram(normalizer, byte_fallback):
    counts = {}
    for text in TRAIN:
        text = normalizer.normalize_str(text).replace(' ', '▁')
        for _ in range(min(200, len(text))):
            i = DRAW.randrange(len(text))
            for n in range(1, 9):
                counts[text[i:i + n]] = counts.get(text[i:i + n], 0) + 1
    pieces = sorted(counts.items(), key=lambda item: (-item[1] * len(item[0]), item[0]))[:5000]
    vocab = [('<unk>', 0.0), ('<s>', 0.0)] + [(b, 0.0) for b in BYTES * byte_fallback]
    vocab += [(piece, -DRAW.random() * 12 - 1 / count) for piece, count in pieces if piece not in ('<unk>', '<s>')]
    t = Tokenizer(models.Unigram(vocab, 0, byte_fallback))
    t.pre_tokenizer, t.decoder, t.normalizer = P.Metaspace(), decoders.Metaspace(), normalizer
    return with_added(t)


MAKE = {
    'gpt2': lambda: on_bytes(P.ByteLevel(add_prefix_space=False)),
    'gpt2_prefix': lambda: on_bytes(P.ByteLevel(add_prefix_space=True)),
    'llama3': lambda: on_bytes(expression(LLAMA3), ignore_merges=True),
    'qwen2': lambda: on_bytes(expression(QWEN2), N.NFC()),
    'o200k': lambda: on_bytes(expression(O200K), N.NFKC()),
    'starcoder': lambda: on_bytes(P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])),
    'llama2': lambda: on_characters(None, N.Sequence([N.Prepend('▁'), N.Replace(' ', '▁')])),
    'mistral': lambda: on_characters(P.Metaspace(replacement='▁', prepend_scheme='first', split=False), None),
    'metaspace': lambda: on_characters(P.Metaspace(), N.NFKD(), byte_fallback=False, fuse=False),
    'gemma': lambda: on_characters(P.Split(' ', 'merged_with_previous'), N.Replace(' ', '▁')),
    'metaspace_never': lambda: on_characters(P.Metaspace(prepend_scheme='never'), N.NFC(), fuse=False),
    'unigram': lambda: unigram(N.NFKC(), False),
    'unigram_bytes': lambda: unigram(N.NFD(), True),
}

# ---- the same without a tokenizer.json


def with_plain(t):
    """Added tokens that a GGUF file can tell of: without flags."""
    t.add_special_tokens(['<|endoftext|>', '<|im_start|>'])
    t.add_tokens([AddedToken('foo', normalized=False), AddedToken('\n\n\n', normalized=False)])
    return t


def folder(t, path, config):
    """vocab.json and merges.txt, and the rest in the form of tokenizer_config.json."""
    os.makedirs(path, exist_ok=True)
    t.model.save(path)
    added = {str(a['id']): {key: a[key] for key in a if key != 'id'} for a in json.loads(t.to_str())['added_tokens']}
    json.dump(dict(config, added_tokens_decoder=added), open(path + '/tokenizer_config.json', 'w'))


def old_folder(t, path):
    """The older form: added_tokens.json and special_tokens_map.json, no flags."""
    os.makedirs(path, exist_ok=True)
    t.model.save(path)
    added = json.loads(t.to_str())['added_tokens']
    json.dump({a['content']: a['id'] for a in added}, open(path + '/added_tokens.json', 'w'))
    special = [a['content'] for a in added if a['special']]
    json.dump({'eos_token': {'content': special[0]}, 'additional_special_tokens': special[1:]},
              open(path + '/special_tokens_map.json', 'w'))


def write_gguf(path, model, tokens, types, scores=None, merges=None, **keys):
    import gguf
    writer = gguf.GGUFWriter(path, 'llama')
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores:
        writer.add_token_scores(scores)
    if merges:
        writer.add_token_merges(merges)
    for key, value in keys.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32 if isinstance(value, int) else writer.add_string
        add('tokenizer.ggml.' + key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_of(t, path, pre, **keys):
    whole, vocab = json.loads(t.to_str()), t.get_vocab(True)
    added = {a['content']: a['special'] for a in whole['added_tokens']}
    tokens = sorted(vocab, key=vocab.get)
    types = [3 if added.get(token) else 4 if token in added else 1 for token in tokens]
    write_gguf(path, 'gpt2', tokens, types, merges=[' '.join(pair) for pair in whole['model']['merges']], pre=pre, **keys)


class Pieces:
    """sentencepiece's own ids, in the form that the comparison asks for. To it special tokens in a text are text."""
    flags = (2, 3)

    def __init__(self, kind, path, vocab_size, prefix=True):
        import sentencepiece
        self.kind, model = kind, io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([line for text in TRAIN for line in text[:2000].split('\n') if line]), model_writer=model,
            model_type=kind, vocab_size=vocab_size, byte_fallback=True, normalization_rule_name='identity', character_coverage=0.98,
            remove_extra_whitespaces=False, add_dummy_prefix=prefix, minloglevel=2, hard_vocab_limit=False, max_sentence_length=10000)
        self.sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        n = self.sp.get_piece_size()
        types = [2 if self.sp.is_unknown(i) else 3 if self.sp.is_control(i) else 6 if self.sp.is_byte(i) else 1 for i in range(n)]
        write_gguf(path, 'llama' if kind == 'bpe' else 't5', [self.sp.id_to_piece(i) for i in range(n)], types,
                   scores=[self.sp.get_score(i) for i in range(n)], add_space_prefix=prefix, add_bos_token=True, add_eos_token=False,
                   bos_token_id=1, eos_token_id=2, unknown_token_id=0)

    def encode(self, text, template, plain):
        return [1] * template + self.sp.encode(text)

    def encode_all(self, texts, template, plain):
        return [self.encode(text, template, plain) for text in texts]

    def decode(self, ids):
        return self.sp.decode([i for i in ids if i > 2])

    def equal(self, got, want):
        """Its Unigram adds scores in f32: of two ways that are as good in f64 it may take the other."""
        score = [sum(map(self.sp.get_score, ids)) for ids in (got, want)]
        return got == want or (self.kind == 'unigram' and self.decode(got) == self.decode(want) and
                               abs(score[0] - score[1]) <= 1e-5 * abs(score[1]))


class Package:
    """The ids of a tokenizer of `tokenizers`; `first`: the token that another form of it says texts begin with."""
    flags = (0, 3)

    def __init__(self, t, first=()):
        self.t, self.first = t, list(first)

    def encode_all(self, texts, template, plain):
        self.t.encode_special_tokens = plain
        return [self.first * template + e.ids for e in self.t.encode_batch_fast(texts, add_special_tokens=template)]

    def decode(self, ids):
        return self.t.decode(ids)

    def equal(self, got, want):
        return got == want


def as_json(make):
    def other(path):
        t = make()
        t.save(path + '.json')
        return path + '.json', Package(t)
    return other


def as_json_lines(make):
    """The older form of merges: "a b"."""
    def other(path):
        t = make()
        whole = json.loads(t.to_str())
        whole['model']['merges'] = [' '.join(pair) for pair in whole['model']['merges']]
        json.dump(whole, open(path + '.json', 'w'))
        return path + '.json', Package(t)
    return other


def as_folder(make, config, first=None):
    def other(path):
        t = with_added(make())
        folder(t, path, config)
        return path, Package(t, [t.token_to_id(first)] if first else [])
    return other


def as_old_folder(make):
    def other(path):
        t = make()
        t.add_special_tokens([AddedToken('<|endoftext|>', normalized=True), AddedToken('<|im_start|>', normalized=True)])
        t.add_tokens(['foo', '\n\n\n'])
        old_folder(t, path)
        return path, Package(t)
    return other


def as_gguf(make, pre, first=None, **keys):
    def other(path):
        t = with_plain(make())
        gguf_of(t, path + '.gguf', pre, **keys)
        return path + '.gguf', Package(t, [t.token_to_id(first)] if first else [])
    return other


def as_pieces(kind, **more):
    def other(path):
        return path + '.gguf', Pieces(kind, path + '.gguf', 8000, **more)
    return other


QWEN = {'tokenizer_class': 'Qwen2Tokenizer', 'eos_token': '<|endoftext|>'}
GPT2 = {'tokenizer_class': 'GPT2Tokenizer', 'bos_token': {'content': '<|endoftext|>'}, 'add_bos_token': True}
OTHERS = {
    'gpt2_folder': as_folder(lambda: on_bytes(P.ByteLevel(add_prefix_space=False), added=False), GPT2, '<|endoftext|>'),
    'gpt2_old_folder': as_old_folder(lambda: on_bytes(P.ByteLevel(add_prefix_space=False), added=False, special=())),
    'qwen2_folder': as_folder(lambda: on_bytes(expression(QWEN2), N.NFC(), added=False), QWEN),
    'gpt2_gguf': as_gguf(lambda: on_bytes(P.ByteLevel(add_prefix_space=False), added=False), 'gpt-2'),
    'llama3_gguf': as_gguf(lambda: on_bytes(expression(LLAMA3), ignore_merges=True, added=False), 'llama-bpe', '<s>',
                           bos_token_id=0),
    'qwen2_gguf': as_gguf(lambda: on_bytes(expression(QWEN2), N.NFC(), added=False), 'qwen2', add_bos_token=False),
    'starcoder_gguf': as_gguf(lambda: on_bytes(P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)]),
                                               added=False), 'starcoder'),
    'o200k_gguf': as_gguf(lambda: on_bytes(expression(O200K), added=False), 'gpt-4o'),
}
PIECES = {
    'pieces_bpe_gguf': as_pieces('bpe'),
    'pieces_no_prefix_gguf': as_pieces('bpe', prefix=False),
    'pieces_unigram_gguf': as_pieces('unigram'),
}


def missing(package):
    try:
        __import__(package)
    except ImportError:
        print(f'{package} is missing: what needs it is left out')
        return True
    return False


def all_kinds():
    kinds = {name: as_json(make) for name, make in MAKE.items()}
    kinds['starcoder'] = as_json_lines(MAKE['starcoder'])
    no_gguf = missing('gguf')
    kinds.update({name: make for name, make in OTHERS.items() if 'gguf' not in name or not no_gguf})
    if not no_gguf and not missing('sentencepiece'):
        kinds.update(PIECES)
    return kinds


# ---- the comparison


def read_records(data, item):
    at, out = 0, []
    while at < len(data):
        n = struct.unpack_from('<I', data, at)[0]
        out.append(item(data, at + 4, n))
        at += 4 + n * (4 if item is ids_at else 1)
    return out


def ids_at(data, at, n):
    return list(struct.unpack_from(f'<{n}I', data, at))


def bytes_at(data, at, n):
    return data[at:at + n]


def records(items):
    return b''.join(struct.pack('<I', len(x)) + x for x in items)


def different(t, texts, got, want, decoded):
    """What differs first, None: nothing."""
    for text, g, w in zip(texts, got, want):
        if not t.equal(g, w):
            k = next((k for k in range(min(len(g), len(w))) if g[k] != w[k]), min(len(g), len(w)))
            around = [[(x, t.decode([x])) for x in ids[max(0, k - 2):k + 4]] for ids in (g, w)]
            return f'token {k} of {text!r:.80}: {around[0]}, not {around[1]}'
    # The package gives one U+FFFD a byte of a run of byte tokens that is no UTF-8, whole characters in it included.
    for g, w in zip(decoded, (t.decode(ids) for ids in got)):
        if g.decode() != w and '\ufffd' not in w:
            return f'decoded {g.decode()!r:.200}, not {w!r:.200}'
    return None


def differences(name, path, t, parts, flags):
    ids, spent, seconds, size = 0, 0.0, 0.0, 0
    for part in parts:
        texts, data = [raw.decode(errors='replace') for raw in part], records(part)
        open(f'{FOLDER}/texts', 'wb').write(data)
        start = time.process_time()
        want = t.encode_all(texts, bool(flags & 1), bool(flags & 2))
        spent += time.process_time() - start
        done = subprocess.run([READER, path, f'{FOLDER}/texts', f'{FOLDER}/ids', f'{FOLDER}/decoded', str(flags)],
                              capture_output=True, text=True)
        if done.returncode:
            return f'{name}: {done.stdout}{done.stderr}'[:2000]
        got = read_records(open(FOLDER + '/ids', 'rb').read(), ids_at)
        wrong = different(t, texts, got, want, read_records(open(FOLDER + '/decoded', 'rb').read(), bytes_at))
        if wrong:
            return f'{name}, flags {flags}: {wrong}'
        ids, seconds, size = ids + sum(map(len, want)), seconds + float(done.stdout), size + len(data)
    rates = [size / 1e6 / max(s, 1e-6) for s in (seconds, spent)]
    print(f'{name:22} flags {flags}: {size / 1e6:.1f} MB, {ids} ids, {rates[0]:.1f} MB/s; the package {rates[1]:.1f} MB/s', flush=True)
    return None


def main():
    texts, start = [broken(text) for text in corpus(MEGABYTES * 1e6)], time.time()
    parts = [texts[i:i + 2000] for i in range(0, len(texts), 2000)]
    kinds = all_kinds()
    for name, _, only in (item.partition(':') for item in ONLY or kinds):
        path, t = kinds[name](f'{FOLDER}/{name}')
        for flags in [int(only)] if only else t.flags:
            wrong = differences(name, path, t, parts, flags)
            if wrong:
                sys.exit(wrong)
    print(f'{time.time() - start:.0f} s')


main()
