/* mapping.h - a file in memory, read only, that may become shorter while it is read.

   One C file of the program:   #define MAPPING_IMPLEMENTATION
                                #include "mapping.h"
   Elsewhere:                   #include "mapping.h"       C99 and C++11; POSIX.

       mapping m;
       char error[256];
       if (!mapping_open(&m, "model.safetensors", error, sizeof error)) puts(error);
       ... m.data, m.size ...
       if (mapping_cut(&m) != MAPPING_WHOLE) ...           what was read from there on was not the file's
       mapping_close(&m);

   A page of a mapped file that is no longer there ends a program (SIGBUS), in whichever thread reads it. Here the page
   is replaced by zeros, and mapping_cut tells where the file ended: ask it when the bytes have been used. The handler
   of SIGBUS that was there before is called for all other addresses. At most 64 files of this kind are open at once. */
#ifndef MAPPING_H
#define MAPPING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MAPPING_WHOLE UINT64_MAX

typedef struct mapping {
    const uint8_t *data; /* NULL when size is 0 */
    uint64_t size;       /* bytes */
    int slot;            /* its place in the table of the handler */
} mapping;

/* Maps a regular file. False: `error` says why. Any thread; several at once. */
bool mapping_open(mapping *m, const char *path, char *error, size_t error_size);
/* Offset of the first page that was read and was not in the file any more, MAPPING_WHOLE if there was none. */
uint64_t mapping_cut(const mapping *m);
void mapping_close(mapping *m);

#ifdef __cplusplus
}
#endif
#endif

#if defined(MAPPING_IMPLEMENTATION) && !defined(MAPPING_IMPLEMENTED)
#define MAPPING_IMPLEMENTED
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAPPING__SLOTS = 64 };

/* Read by the handler, so all of it is atomic. begin is 0 where a slot is free. */
static struct {
    atomic_uintptr_t begin, end;
    atomic_uint_least64_t cut;
} mapping__table[MAPPING__SLOTS];
static struct sigaction mapping__before;
static uintptr_t mapping__page;
static pthread_mutex_t mapping__lock = PTHREAD_MUTEX_INITIALIZER;

/* Puts zeros where the page was. mmap is a bare system call here: safe in a handler. */
static bool mapping__mend(uintptr_t address) {
    for (int i = 0; i < MAPPING__SLOTS; i++) {
        uintptr_t begin = atomic_load(&mapping__table[i].begin), end = atomic_load(&mapping__table[i].end);
        if (!begin || address < begin || address >= end) continue;
        uintptr_t page = address & ~(mapping__page - 1);
        uint64_t offset = page - begin, seen = atomic_load(&mapping__table[i].cut);
        while (offset < seen && !atomic_compare_exchange_weak(&mapping__table[i].cut, &seen, offset)) { }
        return mmap((void *)page, mapping__page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
               MAP_FAILED;
    }
    return false;
}

static void mapping__handle(int number, siginfo_t *info, void *context) {
    int saved = errno;
    bool mended = info->si_code > 0 && mapping__mend((uintptr_t)info->si_addr);
    errno = saved;
    if (mended) return;
    if (mapping__before.sa_flags & SA_SIGINFO) {
        mapping__before.sa_sigaction(number, info, context);
    } else if (mapping__before.sa_handler != SIG_DFL && mapping__before.sa_handler != SIG_IGN) {
        mapping__before.sa_handler(number);
    } else {
        signal(SIGBUS, SIG_DFL); /* the same access ends the program now, as it would have */
        if (info->si_code <= 0) raise(SIGBUS);
    }
}

/* The handler stays for the rest of the program: another may have been put on top of it. */
static bool mapping__install(void) {
    static bool installed;
    struct sigaction action;
    if (installed) return true;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = mapping__handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    mapping__page = (uintptr_t)sysconf(_SC_PAGESIZE);
    installed = sigaction(SIGBUS, &action, &mapping__before) == 0;
    return installed;
}

static int mapping__take_slot(const void *data, uint64_t size) {
    int slot = -1;
    pthread_mutex_lock(&mapping__lock);
    for (int i = 0; mapping__install() && i < MAPPING__SLOTS && slot < 0; i++) {
        if (atomic_load(&mapping__table[i].begin)) continue;
        slot = i;
        atomic_store(&mapping__table[i].cut, MAPPING_WHOLE);
        atomic_store(&mapping__table[i].end, (uintptr_t)data + (uintptr_t)size);
        atomic_store(&mapping__table[i].begin, (uintptr_t)data);
    }
    pthread_mutex_unlock(&mapping__lock);
    return slot;
}

static bool mapping__say(char *error, size_t size, const char *path, const char *why) {
    snprintf(error, size, "%s: %s", path, why);
    return false;
}

static bool mapping__map(mapping *m, int file, const char *path, char *error, size_t error_size) {
    struct stat info;
    if (fstat(file, &info)) return mapping__say(error, error_size, path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return mapping__say(error, error_size, path, "this is not a regular file");
    if ((uint64_t)info.st_size > SIZE_MAX)
        return mapping__say(error, error_size, path, "too large for this machine's addresses");
    m->size = (uint64_t)info.st_size;
    if (!m->size) return true;
    void *data = mmap(NULL, (size_t)m->size, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) return mapping__say(error, error_size, path, strerror(errno));
    m->slot = mapping__take_slot(data, m->size);
    if (m->slot < 0) {
        munmap(data, (size_t)m->size);
        return mapping__say(error, error_size, path, "64 files are mapped already; close some");
    }
    m->data = (const uint8_t *)data;
    return true;
}

bool mapping_open(mapping *m, const char *path, char *error, size_t error_size) {
    *m = (mapping){ NULL, 0, -1 };
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe of that name does not wait for its writer */
    if (file < 0) return mapping__say(error, error_size, path, strerror(errno));
    bool ok = mapping__map(m, file, path, error, error_size);
    close(file);
    if (!ok) *m = (mapping){ NULL, 0, -1 };
    return ok;
}

uint64_t mapping_cut(const mapping *m) {
    return m->slot < 0 ? MAPPING_WHOLE : atomic_load(&mapping__table[m->slot].cut);
}

void mapping_close(mapping *m) {
    if (m->slot >= 0)
        atomic_store(&mapping__table[m->slot].begin, (uintptr_t)0); /* before its addresses are another's */
    if (m->data) munmap((void *)(uintptr_t)m->data, (size_t)m->size);
    *m = (mapping){ NULL, 0, -1 };
}
#endif
