/* Any bytes as a picture: refused with a reason, or there is a picture of at least one pixel; one of PPM or PGM has no
 * more pixels than the file has bytes. PNG and JPEG go through their libraries where those are. */
#include "fuzz.h"
#define PICTURE_IMPLEMENTATION
#include "../../examples/formats/picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    picture p;
    char error[PICTURE_ERROR] = "";
    if (picture_read(&p, data, size, "fuzz", error)) {
        volatile uint8_t last = p.rgb[p.width * p.height * 3 - 1];
        (void)last;
        FUZZ_CHECK(p.width > 0 && p.height > 0 && (data[0] != 'P' || (uint64_t)(p.width * p.height) < size));
        picture_close(&p);
    } else FUZZ_CHECK(error[0] && !p.rgb);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    static const char *const texts[] = { "P6 # a comment\n2 1\n255\nabcdef", "P5\t1\n3 9 \x01\x08\x09",
                                         "P6 67108864 67108864 255\n", "P5 1 1 65535\nab" };
    if (index >= sizeof texts / sizeof *texts || strlen(texts[index]) > cap) return 0;
    memcpy(out, texts[index], strlen(texts[index]));
    return strlen(texts[index]);
}
