/* Any bytes as a file of safetensors: refused with a reason, or every tensor lies in the file, all of the data belongs
 * to one, and each is found by its name. */
#include "formats_fuzz.h"
#define SAFETENSORS_IMPLEMENTATION
#include "../../examples/formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[SAFETENSORS_ERROR], path[64];
    int fd = formats_file(data, size, path);
    safetensors *s = safetensors_open(path, error);
    uint64_t bytes = 0;
    FUZZ_CHECK(s || error[0]);
    for (size_t i = 0; s && i < safetensors_count(s); i++) {
        const safetensors_tensor *t = safetensors_at(s, i);
        volatile uint8_t last = t->bytes ? t->data[t->bytes - 1] : 0;
        (void)last;
        bytes += t->bytes;
        FUZZ_CHECK(safetensors_find(s, t->name) == t && t->rank <= SAFETENSORS_RANK);
    }
    FUZZ_CHECK(!s || (bytes + 8 <= size && safetensors_intact(s, error)));
    safetensors_close(s);
    close(fd);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    static const char *const headers[] = {
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[2,10]},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]}}   ",
        "{\"e\":{\"dtype\":\"I64\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]},"
        "\"u\":{\"dtype\":\"U8\",\"shape\":[10],\"data_offsets\":[0,10]}}",
    };
    if (index >= 2 || strlen(headers[index]) + 18 > cap) return 0;
    size_t n = strlen(headers[index]);
    memset(out, 0, n + 18);
    out[0] = (uint8_t)n;
    out[1] = (uint8_t)(n >> 8);
    memcpy(out + 8, headers[index], n);
    return n + 18;
}
