/* A test binary is a list of functions. Checks stay alive under NDEBUG, a failed check does not end its test.
 *
 *     #include "test.h"
 *     TEST(sum_of_empty_is_zero) { CHECK_INT(sum(NULL, 0), 0); }
 *     int main(int argc, char **argv) {
 *         static const test_entry tests[] = { TEST_ENTRY(sum_of_empty_is_zero) };
 *         test_begin(argc, argv);
 *         test_all(tests, TEST_COUNT(tests));
 *         return test_end();
 *     }
 *
 * Arguments: [--seed N] [--list] [--shard I/N] [WORD...]. Only tests whose name contains one of the words run, of those
 * each Nth from the Ith on (counted from 0) when a shard is asked for. Each test draws from its own
 * stream, made of the seed and its name, so that one test alone sees the numbers it saw among the others. The first
 * line names the seed, the last is "N passed, N failed, N skipped"; the exit status is 1 when anything failed or
 * nothing ran. A skipped test says why on a line that begins with "SKIP: ".
 * Checks are for one thread at a time. */
#ifndef GN_TEST_H
#define GN_TEST_H

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TEST_MAX_WORDS 32
#define TEST_MAX_PRINTED 12 /* failed checks of one test that are printed */
#define TEST_SECONDS 400    /* a test that takes longer is taken for hung */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED true
#endif
#endif
#ifndef TEST_SANITIZED
#define TEST_SANITIZED false
#endif
#if defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED_THREADS true
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_SANITIZED_THREADS true
#endif
#endif
#ifndef TEST_SANITIZED_THREADS
#define TEST_SANITIZED_THREADS false
#endif

typedef struct test_entry {
    const char *name;
    void (*run)(void);
} test_entry;

static struct {
    uint64_t seed, stream;
    const char *words[TEST_MAX_WORDS];
    int n_words, shard, shards, seen;
    bool list, skipped;
    char name[160];
    long failed_checks, passed, failed, skips;
} test__;

/* Rounds of a loop in which one thread works alone: a thread sanitizer has nothing to find there, so it sees a tenth of
   them. */
static inline int test_rounds(int n) {
    int rounds = TEST_SANITIZED_THREADS ? (n + 9) / 10 : n;
    if (rounds < n) printf("  %s: %d of %d rounds\n", test__.name, rounds, n);
    return rounds;
}

#define TEST(name) static void name(void)
#define TEST_ENTRY(name) \
    { #name, name }
#define TEST_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

#if defined(__GNUC__)
#define TEST__PRINTF(text, arguments) __attribute__((format(printf, text, arguments)))
#else
#define TEST__PRINTF(text, arguments)
#endif

/* Counts a failed check of the running test and prints the first few. */
TEST__PRINTF(3, 4)
static inline void test_fail(const char *file, int line, const char *format, ...) {
    va_list args;
    if (test__.failed_checks++ >= TEST_MAX_PRINTED) return;
    printf("  %s:%d: %s: ", file, line, test__.name);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

static inline void test_skip(const char *why) {
    test__.skipped = true;
    printf("SKIP: %s: %s\n", test__.name, why);
}

static inline bool test_true(const char *file, int line, const char *text, bool holds) {
    if (!holds) test_fail(file, line, "%s", text);
    return holds;
}

static inline bool test_int(const char *file, int line, const char *text, int64_t got, int64_t want) {
    if (got != want) test_fail(file, line, "%s is %" PRId64 ", not %" PRId64, text, got, want);
    return got == want;
}

static inline bool test_str(const char *file, int line, const char *text, const char *got, const char *want) {
    bool same = got && strcmp(got, want) == 0;
    if (!same) test_fail(file, line, "%s is \"%s\", not \"%s\"", text, got ? got : "(null)", want);
    return same;
}

static inline bool test_near(const char *file, int line, const char *text, double got, double want, double bound) {
    bool near = fabs(got - want) <= bound;
    if (!near) test_fail(file, line, "%s is %.17g, not %.17g within %g", text, got, want, bound);
    return near;
}

#define CHECK(cond) test_true(__FILE__, __LINE__, #cond, (cond))
#define CHECK_INT(got, want) test_int(__FILE__, __LINE__, #got, (int64_t)(got), (int64_t)(want))
#define CHECK_STR(got, want) test_str(__FILE__, __LINE__, #got, (got), (want))
#define CHECK_NEAR(got, want, bound) test_near(__FILE__, __LINE__, #got, (got), (want), (bound))
/* Ends the test when the condition does not hold. */
#define REQUIRE(cond)             \
    do {                          \
        if (!CHECK(cond)) return; \
    } while (0)

/* A gn_result by name; include genie.h before this file. */
#define CHECK_RESULT(got, want) test_result(__FILE__, __LINE__, #got, (got), (want))
#ifdef GENIE_H
static inline bool test_result(const char *file, int line, const char *text, gn_result got, gn_result want) {
    if (got != want) test_fail(file, line, "%s is %s, not %s", text, gn_result_name(got), gn_result_name(want));
    return got == want;
}
#endif

/* ---- random numbers: splitmix64 ---- */

static inline uint64_t test_random(void) {
    uint64_t z = (test__.stream += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* From [low, high], both included. */
static inline int64_t test_random_int(int64_t low, int64_t high) {
    return low + (int64_t)(test_random() % ((uint64_t)(high - low) + 1));
}

/* From [low, high). */
static inline double test_random_real(double low, double high) {
    return low + (high - low) * ((double)(test_random() >> 11) * 0x1p-53);
}

/* Starts the stream that belongs to a name (FNV-1a of it, mixed with the seed). */
static inline void test_reseed(const char *name) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++) h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    test__.stream = h ^ (test__.seed * UINT64_C(0xd1342543de82ef95));
}

/* ---- running ---- */

static inline void test__hung(int signal_number) {
    static const char text[] = "\nthe running test hangs\n";
    (void)signal_number;
    if (write(STDOUT_FILENO, text, sizeof text - 1) < 0) _exit(2);
    _exit(1);
}

static inline void test_begin(int argc, char **argv) {
    test__.seed = (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) test__.seed = strtoull(argv[++i], NULL, 0);
        else if (strcmp(argv[i], "--list") == 0) test__.list = true;
        else if (strcmp(argv[i], "--shard") == 0 && i + 1 < argc &&
                 sscanf(argv[i + 1], "%d/%d", &test__.shard, &test__.shards) == 2)
            i++;
        else if (test__.n_words < TEST_MAX_WORDS) test__.words[test__.n_words++] = argv[i];
    signal(SIGALRM, test__hung);
    if (!test__.list) {
        printf("seed %" PRIu64 "\n", test__.seed);
        fflush(stdout);
    }
}

static inline bool test_wanted(const char *name) {
    bool wanted = test__.n_words == 0;
    for (int i = 0; i < test__.n_words; i++) wanted = wanted || strstr(name, test__.words[i]) != NULL;
    return wanted;
}

/* For tests that are made while running: true when the test of this name is to run now; ends with test_close. */
static inline bool test_open(const char *name) {
    if (!test_wanted(name) || (test__.shards > 1 && test__.seen++ % test__.shards != test__.shard)) return false;
    if (test__.list) {
        printf("%s\n", name);
        return false;
    }
    snprintf(test__.name, sizeof test__.name, "%s", name);
    test__.failed_checks = 0;
    test__.skipped = false;
    test_reseed(name);
    alarm(TEST_SECONDS);
    return true;
}

static inline void test_close(void) {
    alarm(0);
    if (test__.failed_checks) {
        test__.failed++;
        printf("FAIL %s: %ld failed checks\n", test__.name, test__.failed_checks);
    } else if (test__.skipped) {
        test__.skips++;
    } else {
        test__.passed++;
    }
    fflush(stdout);
}

static inline void test_all(const test_entry *tests, int n) {
    for (int i = 0; i < n; i++) {
        if (test_open(tests[i].name)) {
            tests[i].run();
            test_close();
        }
    }
}

static inline int test_end(void) {
    if (test__.list) return 0;
    printf("%ld passed, %ld failed, %ld skipped\n", test__.passed, test__.failed, test__.skips);
    return test__.failed || test__.passed + test__.skips == 0;
}

#endif
