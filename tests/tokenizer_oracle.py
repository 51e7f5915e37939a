"""Tokenizers that the package `tokenizers` makes, and its ids of mixed text, beside those of examples/formats/tokenizer.h.

    python3 tokenizer_oracle.py READER FOLDER MEGABYTES [NAME ...]

READER is the program that tokenizer_oracle_test.sh compiles. Exits with 1 when an id or a decoded text differs."""
import glob
import json
import random
import struct
import subprocess
import sys
import time
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers as N, pre_tokenizers as P, processors, trainers

READER, FOLDER, MEGABYTES, ONLY = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]
DRAW = random.Random(5)

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
    source, texts = documents(), []
    while size > 0:
        text = next(source, None) if DRAW.random() < 0.3 else None
        text = text or random_text(DRAW.randint(1, 1500))
        for i in range(0, len(text), 4000):
            texts.append(text[i:i + 4000])
            size -= len(texts[-1].encode())
    return texts


# ---- tokenizers

TRAIN = corpus(min(MEGABYTES, 1.0) * 4e5)


def with_added(t):
    t.add_special_tokens([AddedToken('<|endoftext|>', normalized=False), AddedToken('<|im_start|>', lstrip=True, rstrip=True),
                          AddedToken('[MASK]', lstrip=True), '<pad>'])
    t.add_tokens([AddedToken('foo', single_word=True), AddedToken('été', normalized=True), AddedToken('  ', normalized=False),
                  AddedToken('\n\n\n', rstrip=True)])
    return t


def on_bytes(split, normalizer=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer, t.decoder = split, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(TRAIN, trainers.BpeTrainer(vocab_size=4000, show_progress=False, special_tokens=['<s>', '</s>'],
                                                     initial_alphabet=P.ByteLevel.alphabet()))
    return with_added(t)


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
    'unigram': lambda: unigram(N.NFKC(), False),
    'unigram_bytes': lambda: unigram(N.NFD(), True),
}

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


def differences(name, t, texts, flags):
    t.encode_special_tokens = bool(flags & 2)
    want = [e.ids for e in t.encode_batch(texts, add_special_tokens=bool(flags & 1))]
    done = subprocess.run([READER, f'{FOLDER}/{name}.json', f'{FOLDER}/texts', f'{FOLDER}/ids', f'{FOLDER}/decoded', str(flags)],
                          capture_output=True, text=True)
    if done.returncode:
        return f'{name}: {done.stdout}{done.stderr}'[:2000]
    got = read_records(open(FOLDER + '/ids', 'rb').read(), ids_at)
    for text, g, w in zip(texts, got, want):
        if g != w:
            k = next((k for k in range(min(len(g), len(w))) if g[k] != w[k]), min(len(g), len(w)))
            around = [[t.id_to_token(x) for x in ids[max(0, k - 2):k + 4]] for ids in (g, w)]
            return f'{name}, flags {flags}: token {k} of {text!r:.80}: {around[0]}, not {around[1]}'
    decoded = read_records(open(FOLDER + '/decoded', 'rb').read(), bytes_at)
    # The package gives one U+FFFD a byte of a run of byte tokens that is no UTF-8, whole characters in it included.
    for text, g, w in zip(texts, decoded, (t.decode(ids) for ids in want)):
        if g.decode() != w and '\ufffd' not in w:
            return f'{name}, flags {flags}: decoded {g.decode()!r:.200}, not {w!r:.200}'
    print(f'{name:14} flags {flags}: {sum(map(len, want))} ids, {done.stdout.strip()}', flush=True)
    return None


def main():
    texts, start = corpus(MEGABYTES * 1e6), time.time()
    open(FOLDER + '/texts', 'wb').write(records(text.encode() for text in texts))
    for name in ONLY or MAKE:
        t = MAKE[name]()
        t.save(f'{FOLDER}/{name}.json')
        for flags in (0, 3):
            wrong = differences(name, t, texts, flags)
            if wrong:
                sys.exit(wrong)
    print(f'{time.time() - start:.0f} s')


main()
