#!/usr/bin/env bash
# examples/speech: it learns to tell words apart and names those of WAV files; its mel energies are those of a reference in double
# precision; equal seeds give equal bits, here and over TLS, and so does a saved network; WAV files that are cut short or lie are refused.
# Tier: quick
. "$(dirname "$0")/script.sh"
unset GENIE_DEVICES
export GENIE_HOME=$WORK/client TMPDIR=$WORK
speech() { timeout 200 "$EXAMPLES/speech" "$@" </dev/null; }
number() { tail -n 1 "$WORK/out" | sed -n "s/.*\"$1\":\([-0-9.e+]*\)[,}].*/\1/p"; }

learns_to_tell_words_apart() {
    speech --connect cpu --steps 130 --min-accuracy 0.85 --held-out 300 --json --save "$WORK/net.safetensors" >"$WORK/out" || { cat "$WORK/out"; return 1; }
    echo "accuracy $(number accuracy), untrained $(number accuracy_untrained)"
    awk "BEGIN { exit !($(number accuracy) >= 0.85 && $(number accuracy_untrained) < 0.3) }"
}
# Two voices for each word, none of which was in training; one word in twenty may be mistaken.
names_the_words_of_wav_files() {
    local word seed wrong=0 heard
    for word in aiu aui iau iua uai uia eao eoa oea oae; do
        for seed in 100 200; do
            speech --say $word --seed $seed --out "$WORK/$word.wav" >/dev/null || return 1
            heard=$(speech --connect cpu --load "$WORK/net.safetensors" --wave "$WORK/$word.wav") || return 1
            [[ $heard == *"0.00 s  $word  "*' %'* ]] || { echo "$word: $heard"; wrong=$((wrong + 1)); }
        done
    done
    [ "$wrong" -le 1 ] && [ "$(wc -c <"$WORK/aiu.wav")" = $((44 + 2 * 8192)) ]
}
few=(--steps 3 --batch 4 --held-out 50 --min-accuracy 0)
equal_seeds_give_equal_bits() {
    speech --connect cpu "${few[@]}" --save "$WORK/first" >/dev/null && speech --connect cpu "${few[@]}" --save "$WORK/second" >/dev/null && speech "${few[@]}" --save "$WORK/there" >/dev/null &&
        speech --connect cpu "${few[@]}" --seed 2 --save "$WORK/third" >/dev/null && cmp "$WORK/first" "$WORK/second" && cmp "$WORK/first" "$WORK/there" && ! cmp -s "$WORK/first" "$WORK/third"
}
a_saved_network_is_as_accurate() {
    local trained; trained=$(number accuracy)
    speech --load "$WORK/net.safetensors" --held-out 300 --json >"$WORK/again" && grep -q "\"accuracy\":$trained," "$WORK/again"
}
# Each energy within 12 units in the last place (2^-23) of the largest that its filter could give a frame of these samples: the
# square of the sum of |sample * window|, times the sum of the filter.
mel_energies_are_those_of_doubles() {
    speech --connect cpu --wave "$WORK/uia.wav" --mel "$WORK/mel" && python3 - "$WORK/uia.wav" "$WORK/mel" <<'PY'
import cmath, math, sys, wave
w = wave.open(sys.argv[1])
assert (w.getnchannels(), w.getsampwidth(), w.getframerate(), w.getnframes()) == (1, 2, 8000, 8192)
raw = w.readframes(8192)
x = [int.from_bytes(raw[i:i + 2], 'little', signed=True) / 32768 for i in range(0, len(raw), 2)]
hann = [0.5 - 0.5 * math.cos(2 * math.pi * i / 256) for i in range(256)]
turn = [cmath.exp(-2j * math.pi * i / 256) for i in range(256)]
hz = lambda mel: 700 * (10 ** (mel / 2595) - 1)
mel = lambda f: 2595 * math.log10(1 + f / 700)
corners = [mel(4000) * i / 33 for i in range(34)]
def weight(m, k):
    at = mel(k * 8000 / 256)
    left, middle, right = corners[m:m + 3]
    return max(0.0, min((at - left) / (middle - left), (right - at) / (right - middle)))
filters = [[weight(m, k) for k in range(129)] for m in range(32)]
assert all(abs(mel(hz(c)) - c) < 1e-9 for c in corners)
got = [[float(v) for v in line.split()] for line in open(sys.argv[2])]
assert len(got) == 63 and all(len(row) == 32 for row in got)
worst = 0
for t in range(63):
    s = [x[t * 128 + i] * hann[i] for i in range(256)]
    power = [abs(sum(v * turn[k * i % 256] for i, v in enumerate(s))) ** 2 for k in range(129)]
    most = sum(map(abs, s)) ** 2
    for m in range(32):
        want = sum(f * p for f, p in zip(filters[m], power))
        worst = max(worst, abs(got[t][m] - want) / (2 ** -23 * most * sum(filters[m])))
print("largest error:", worst)
assert worst <= 12 and max(map(max, got)) > 1
PY
}
bad_wav_files() {
    python3 - "$WORK" <<'PY'
import struct, sys
folder = sys.argv[1]
def chunk(name, body, size=None): return name + struct.pack('<I', len(body) if size is None else size) + body + b'\0' * (len(body) % 2)
def fmt(kind=1, channels=1, rate=8000, bits=16, bytes_=None, align=None):
    align = channels * bits // 8 if align is None else align
    return chunk(b'fmt ', struct.pack('<HHIIHH', kind, channels, rate, rate * align if bytes_ is None else bytes_, align, bits))
def riff(*chunks, more=0):
    body = b'WAVE' + b''.join(chunks)
    return b'RIFF' + struct.pack('<I', len(body) + more) + body
data = chunk(b'data', struct.pack('<4h', 1, -2, 3, -4))
good = riff(fmt(), data)
files = {f'cut_{n}': good[:n] for n in range(len(good))}
files.update({
    'size_above': riff(fmt(), data, more=1), 'size_below': riff(fmt(), data, more=-1), 'longer': good + b'\0',
    'data_above': riff(fmt(), chunk(b'data', b'\0' * 8, 10)), 'data_huge': riff(fmt(), chunk(b'data', b'\0' * 8, 0xffffffff)),
    'data_below': riff(fmt(), chunk(b'data', b'\0' * 8, 4)), 'data_odd': riff(fmt(), chunk(b'data', b'\0' * 7)),
    'data_half_frame': riff(fmt(channels=2), chunk(b'data', b'\0' * 6)), 'fmt_small': riff(chunk(b'fmt ', b'\1\0\1\0' + b'\0' * 10), data),
    'fmt_huge': riff(fmt()[:4] + b'\xff\xff\xff\x7f' + fmt()[8:], data), 'no_fmt': riff(data), 'no_data': riff(fmt()),
    'two_fmts': riff(fmt(), fmt(), data), 'two_datas': riff(fmt(), data, data), 'data_first': riff(data, fmt()),
    'float': riff(fmt(kind=3), data), 'extensible': riff(fmt(kind=0xfffe), data), 'bits_8': riff(fmt(bits=8), data),
    'channels_0': riff(fmt(channels=0), data), 'channels_3': riff(fmt(channels=3), data), 'rate_0': riff(fmt(rate=0), data),
    'rate_lies': riff(fmt(bytes_=16001), data), 'align_lies': riff(fmt(align=4), data), 'rate_other': riff(fmt(rate=44100), data),
    'nothing': riff(fmt(), chunk(b'data', b'')), 'rifx': b'RIFX' + good[4:], 'avi': good[:8] + b'AVI ' + good[12:],
})
for name, content in files.items(): open(f'{folder}/bad_{name}.wav', 'wb').write(content)
mono = open(f'{folder}/uia.wav', 'rb').read()[44:]
twice = b''.join(mono[i:i + 2] * 2 for i in range(0, len(mono), 2))
open(f'{folder}/stereo.wav', 'wb').write(riff(chunk(b'LIST', b'odd'), fmt(channels=2), chunk(b'data', twice), chunk(b'note', b'')))
open(f'{folder}/long.wav', 'wb').write(riff(fmt(), chunk(b'data', mono + mono[:2])))
print(len(files), 'files')
PY
}
wav_files_that_lie_are_refused() {
    bad_wav_files || return 1
    local file status
    for file in "$WORK"/bad_*.wav; do
        status=0
        speech --connect cpu --load "$WORK/net.safetensors" --wave "$file" >"$WORK/out" 2>"$WORK/errors" || status=$?
        [ "$status" = 1 ] && [ ! -s "$WORK/out" ] && grep -q "^$file: it \|^$file: its \|^$file: a chunk\|^$file: the " "$WORK/errors" || { echo "$file: status $status"; cat "$WORK/out" "$WORK/errors"; return 1; }
    done
    fails_with 'ends within a frame' speech --wave "$WORK/bad_data_half_frame.wav" && fails_with 'says that it has 4294967295 bytes; 8 are there' speech --wave "$WORK/bad_data_huge.wav" &&
        fails_with '44100 samples a second; the network hears 8000' speech --wave "$WORK/bad_rate_other.wav" && fails_with 'No such file' speech --wave "$WORK/absent.wav" &&
        fails_with 'Is a directory' speech --wave "$WORK"
}
stereo_and_long_files_are_heard() {
    speech --connect cpu --wave "$WORK/stereo.wav" --mel "$WORK/mel.stereo" && cmp "$WORK/mel" "$WORK/mel.stereo" || return 1
    speech --connect cpu --load "$WORK/net.safetensors" --wave "$WORK/long.wav" >"$WORK/out" && cat "$WORK/out" && [ "$(wc -l <"$WORK/out")" = 2 ] && grep -q '0.51 s' "$WORK/out"
}
explain_and_wrong_options() {
    speech --connect cpu --batch 2 --explain >"$WORK/explained" && grep -q '1 of 1 device used' "$WORK/explained" || return 1
    fails_with 'takes one of aiu .*, not hello' speech --say hello && fails_with 'no/such/x.wav: No such file' speech --say aiu --out "$WORK/no/such/x.wav" &&
        fails_with '--mel needs a --wave' speech --mel x && fails_with 'not with --load' speech --load x --explain && fails_with 'batch takes a number from 1' speech --batch 0 &&
        fails_with 'no/such' speech --connect cpu "${few[@]}" --answers "$WORK/no/such/file" &&
        fails_with 'FAILED held-out' speech --connect cpu "${few[@]}" --min-accuracy 1 && head -c 500 "$WORK/first" >"$WORK/cut" && fails_with 'truncated' speech --load "$WORK/cut" &&
        fails_with 'uia.wav: byte' speech --load "$WORK/uia.wav"
}

check learns_to_tell_words_apart learns_to_tell_words_apart
check a_saved_network_is_as_accurate a_saved_network_is_as_accurate
check names_the_words_of_wav_files names_the_words_of_wav_files
check equal_seeds_give_equal_bits equal_seeds_give_equal_bits
if has python3; then
    check mel_energies_are_those_of_doubles mel_energies_are_those_of_doubles
    check wav_files_that_lie_are_refused wav_files_that_lie_are_refused
    check stereo_and_long_files_are_heard stereo_and_long_files_are_heard
else
    skip mel_energies_are_those_of_doubles "no python3 here"
    skip wav_files_that_lie_are_refused "no python3 here"
    skip stereo_and_long_files_are_heard "no python3 here"
fi
check explain_and_wrong_options explain_and_wrong_options
finish
