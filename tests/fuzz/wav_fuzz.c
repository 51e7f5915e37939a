/* Any bytes as a WAV file: what is accepted lies within them, frame by frame; what is refused says why. */
#include "fuzz.h"
#include "../../examples/formats/wav.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[WAV_ERROR] = "";
    wav w;
    if (!wav_parse(data, size, &w, error)) {
        FUZZ_CHECK(error[0] && !w.samples && !w.frames);
        return 0;
    }
    FUZZ_CHECK(w.samples >= data + 12 && w.frames <= size / 2 && w.rate && (w.channels == 1 || w.channels == 2));
    for (size_t i = 0; i < w.frames; i++) FUZZ_CHECK(wav_mono(&w, i) >= -1 && wav_mono(&w, i) < 1);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    static const char mono[] =
        "RIFF\x28\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\4\0\0\0\1\0\xff\x7f";
    static const char stereo[] =
        "RIFF\x32\0\0\0WAVEfmt \x10\0\0\0\1\0\2\0\x40\x1f\0\0\0\x7d\0\0\4\0\x10\0LIST\1\0\0\0x\0"
        "data\4\0\0\0\1\0\xff\x7f";
    const char *const seeds[] = { mono, stereo };
    const size_t sizes[] = { sizeof mono - 1, sizeof stereo - 1 };
    if (index >= 2 || sizes[index] > cap) return 0;
    memcpy(out, seeds[index], sizes[index]);
    return sizes[index];
}
