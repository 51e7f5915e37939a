/* byte_tokenizer.h - writes the tokenizer.json of models whose tokens are single bytes. */
#ifndef BYTE_TOKENIZER_H
#define BYTE_TOKENIZER_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { BYTE_TOKENIZER_TOKENS = 257 }; /* bytes and the end of a text, <end> */

/* Writes a file of the folder. */
static bool byte_tokenizer_put(const char *folder, const char *file, const char *text) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "w");
    bool ok = f && fputs(text, f) >= 0;
    if (f && fclose(f)) ok = false;
    if (!ok) fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return ok;
}

/* Each byte is a token, its id is the byte. As GPT-2 has it, a byte that is not a printable character stands as one
 * above U+0100 (Radford et al. 2019). */
static bool byte_tokenizer_write(const char *folder) {
    static char text[1 << 14];
    size_t n = (size_t)snprintf(
        text, sizeof text,
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":256,\"content\":\"<end>\","
        "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],"
        "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":"
        "true,"
        "\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
        "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
        "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
        "\"ignore_merges\":false,\"merges\":[],\"vocab\":{\"<end>\":256");
    for (unsigned byte = 0, above = 256; byte < 256; byte++) {
        bool itself = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
        n += (size_t)snprintf(text + n, sizeof text - n, ",\"\\u%04x\":%u", itself ? byte : above++, byte);
    }
    snprintf(text + n, sizeof text - n, "}}}\n");
    return byte_tokenizer_put(folder, "tokenizer.json", text);
}

#endif
