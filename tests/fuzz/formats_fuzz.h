/* What the fuzz targets of examples/formats share: a file in memory whose path the readers open. */
#ifndef FORMATS_FUZZ_H
#define FORMATS_FUZZ_H
#include "fuzz.h"
#include <sys/mman.h>

/* The path of a file with these bytes, and its descriptor. */
static inline int formats_file(const uint8_t *data, size_t size, char path[64]) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}
#endif
