#!/usr/bin/env python3
"""Writes unicode.h, the tables that tokenizer.h needs, from the packages unicodedata2 (16.0.0) and tokenizers (0.23.3):
python3 make_unicode.py > unicode.h

Categories are those of Unicode 16. The normal forms of the package tokenizers are of an older version: characters whose
decomposition or class it does not know have none here either."""
import unicodedata2 as unicodedata
from tokenizers import normalizers

LAST = 0x10ffff
CATEGORIES = ['Cn', 'Cc', 'Cf', 'Co', 'Cs', 'Ll', 'Lm', 'Lo', 'Lt', 'Lu', 'Mc', 'Me', 'Mn', 'Nd', 'Nl', 'No',
              'Pc', 'Pd', 'Pe', 'Pf', 'Pi', 'Po', 'Ps', 'Sc', 'Sk', 'Sm', 'So', 'Zl', 'Zp', 'Zs']
HANGUL = range(0xac00, 0xd7a4)


def ranges(value):
    """(first code point, value) wherever the value changes."""
    out, before = [], None
    for c in range(LAST + 1):
        v = value(c)
        if v != before:
            out.append((c, v))
        before = v
    return out


def category(c):
    name = unicodedata.category(chr(c))
    return CATEGORIES.index(name if name != 'Cs' else 'Cs')


def known(text, form):
    """The package changes this text."""
    return form.normalize_str(text) != text


def combining_class(c):
    k = 0 if 0xd800 <= c < 0xe000 else unicodedata.combining(chr(c))
    moves = k and (known('a' + chr(c) + '\u0334', normalizers.NFD()) or known('a\u0345' + chr(c), normalizers.NFD()))
    return k if moves else 0


def mapping(c):
    """Compatibility?, the code points of one step of decomposition; Hangul is computed."""
    text = unicodedata.decomposition(chr(c))
    if not text or c in HANGUL or not known(chr(c), normalizers.NFKD()):
        return None
    parts = text.split()
    compatible = parts[0].startswith('<')
    return compatible, [int(p, 16) for p in parts[compatible:]]


def full(c, compatible):
    m = mapping(c)
    if not m or (m[0] and not compatible):
        return [c]
    return [x for part in m[1] for x in full(part, compatible)]


def composes(c):
    m = mapping(c)
    return m and not m[0] and len(m[1]) == 2 and unicodedata.normalize('NFC', chr(c)) == chr(c)


def table(kind, name, rows, comment):
    print(f'/* {comment} */\nstatic const {kind} {name}[] = {{')
    line = '   '
    for row in rows:
        for part in [row] if len(row) < 112 else row.split(', '):
            if len(line) + len(part) > 116:
                print(line)
                line = '   '
            line += ' ' + part + ','
    print(line + '\n};')


def main():
    print(f'/* unicode.h - tables of Unicode {unicodedata.unidata_version} for tokenizer.h; made by make_unicode.py. */')
    print('#ifndef UNICODE_H\n#define UNICODE_H\n#include <stdint.h>\n\n/* clang-format off */')
    print('enum {\n    ' + ',\n    '.join(', '.join('UNICODE_' + n.upper() for n in CATEGORIES[i:i + 9])
                                          for i in range(0, len(CATEGORIES), 9)) + '\n};\n')
    table('uint32_t', 'unicode_categories', [f'{c << 8 | v:#x}' for c, v in ranges(category)],
          'General category from a code point on: code point << 8 | category.')
    table('uint32_t', 'unicode_classes', [f'{c << 8 | v:#x}' for c, v in ranges(combining_class)],
          'Canonical combining class from a code point on: code point << 8 | class.')
    canonical = [(c, full(c, False)) for c in range(LAST + 1) if mapping(c) and not mapping(c)[0]]
    compatible = [(c, full(c, True)) for c in range(LAST + 1) if mapping(c) and full(c, True) != full(c, False)]
    for name, rows, comment in (('canonical', canonical, 'Full canonical decompositions'),
                                ('compatible', compatible, 'Full compatibility decompositions where they differ from those')):
        table('uint32_t', f'unicode_{name}', [', '.join([f'{c:#x}', str(len(m))] + [f'{x:#x}' for x in m]) for c, m in rows],
              f'{comment}: code point, how many, these.')
    pairs = [(mapping(c)[1][0], mapping(c)[1][1], c) for c in range(LAST + 1) if composes(c)]
    table('uint32_t', 'unicode_pairs', [f'{a:#x}, {b:#x}, {c:#x}' for a, b, c in sorted(pairs)],
          'Primary composites: first, second, both; sorted.')
    print('/* clang-format on */\n#endif')


main()
