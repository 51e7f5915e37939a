/* Addresses as users write them and as files hold them: URLs, addresses to listen on and to advertise, words for
   devices, first lines. */
#include "fuzz_net.h"

/* What was understood, written as a URL, is understood as the same. */
static void url_round_trip(const gn__url *u) {
    char again[3 * GN__URL_MAX], pin[2 * GN__PIN + 1], code[23];
    gn__url v;
    gn__hex(u->pin, GN__PIN, pin);
    gn__b64(u->code, GN__CODE, code);
    snprintf(again, sizeof again, "genie://%s%s%s%s%s%s%s%s", u->address, u->device[0] ? "/" : "", u->device,
             u->has_pin || u->has_code ? "?" : "", u->has_pin ? "pin=" : "", u->has_pin ? pin : "",
             u->has_code ? (u->has_pin ? "&code=" : "code=") : "", u->has_code ? code : "");
    FUZZ_CHECK(gn__parse_url(again, &v) == NULL);
    FUZZ_CHECK(strcmp(v.host, u->host) == 0 && v.port == u->port && strcmp(v.device, u->device) == 0 &&
               strcmp(v.address, u->address) == 0);
    FUZZ_CHECK(v.has_pin == u->has_pin && v.has_code == u->has_code && memcmp(v.pin, u->pin, GN__PIN) == 0 &&
               memcmp(v.code, u->code, GN__CODE) == 0);
    FUZZ_CHECK(!fuzz_is_device(again));
}

/* A host to listen on or to advertise stands in a URL that is one. */
static void url_of_a_host(const char *text) {
    gn__url u;
    gn__listener *l = gn_alloc(sizeof *l);
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    char url[GN__URL_MAX];
    FUZZ_CHECK(l != NULL);
    memset(l, 0, sizeof *l);
    l->port = 7;
    gn_result r = gn__name_url_host(l, "127.0.0.1", text, &f);
    FUZZ_CHECK(r == GN_OK || (r == GN_BAD_ARGUMENT && f.text[0]));
    snprintf(url, sizeof url, "genie://%s:%u", l->url_host, l->url_port);
    if (r == GN_OK) FUZZ_CHECK(gn__parse_url(url, &u) == NULL && u.port == l->url_port);
    gn_free(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = gn_alloc(size + 1), host[GN__HOST], line[GN__URL_MAX];
    gn__url u;
    uint16_t port;
    gn_fault f = { GN_OK, GN_NO_NODE, "" };
    FUZZ_CHECK(text != NULL);
    memcpy(text, data, size);
    text[size] = 0;
    const char *wrong = gn__parse_url(text, &u);
    FUZZ_CHECK(wrong == NULL || wrong[0]);
    if (wrong == NULL) url_round_trip(&u);
    wrong = gn__parse_listen(text, host, &port);
    FUZZ_CHECK(wrong != NULL || (host[0] && strlen(host) < sizeof host));
    url_of_a_host(text);
    fuzz_is_device(text);
    gn__bytes file = { (uint8_t *)text, size };
    if (gn__first_line(file, line, &f, "a file") == GN_OK)
        FUZZ_CHECK(strlen(line) < sizeof line && strcspn(line, "\n") == strlen(line));
    gn_free(text);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    static const char *const seeds[] = {
        "genie://gpuhost:5556/"
        "cuda:3?pin=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff&code=ABEiM0RVZneImaq7zN3u_w",
        "genie://[2001:db8::1]:443?code=ABEiM0RVZneImaq7zN3u_w&pin=ABEiM0RVZneImaq7zN3u_wARIjNEVWZ3iJmqu8zd7v8",
        "HOST",
        "gpu:0",
        "cpu:1",
        "gpu:5556",
        "0.0.0.0:0",
        ":65535",
        "[::]:0",
        "a.b-c_d:1/cpu:0",
        "genie://h?pin=&code=",
        "http://h",
        "h:65536",
        "line\r\nnext\n",
        "h/a/b",
        "h?code=ABEiM0RVZneImaq7zN3u_w&code=ABEiM0RVZneImaq7zN3u_w",
    };
    if (index >= sizeof seeds / sizeof *seeds || strlen(seeds[index]) > cap) return 0;
    memcpy(out, seeds[index], strlen(seeds[index]));
    return strlen(seeds[index]);
}
