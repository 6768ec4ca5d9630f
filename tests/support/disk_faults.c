/* Preloaded into a process: its writes, flushes and reads of files below named directories fail, hang or take long.
 *
 * What is wrong is in a file that the test and the process share (`DISK_FAULTS`), so it changes at any moment, and a
 * call that hangs goes on once it is taken back. Everything else passes. See tests/support/disk_faults.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 16, PATH_BYTES = 1012, HANG = -1 };

/* One directory. `write`, `flush` and `read`: 0, an errno, or HANG; `slow_ms`: each flush takes so long; `hanging`: how
 * many calls hang now. */
struct slot {
    volatile int write, flush, slow_ms, read, hanging;
    char below[PATH_BYTES];
};

static struct slot *slots;

__attribute__((constructor)) static void map_faults(void) {
    const char *path = getenv("DISK_FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, SLOTS * sizeof(struct slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED) slots = found;
}

static void sleep_ms(int ms) {
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000L};
    nanosleep(&time, NULL);
}

static struct slot *slot_of(int fd) {
    char link[64], path[PATH_MAX];
    struct slot *found = NULL;
    int saved = errno;
    ssize_t size = -1;
    for (int n = 0; slots && n < SLOTS; n++) {
        struct slot *one = &slots[n];
        if (!one->below[0] || !(one->write || one->flush || one->slow_ms || one->read)) continue;
        if (size < 0) {
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            size = readlink(link, path, sizeof path - 1);
            if (size < 0) break;
            path[size] = 0;
        }
        size_t length = strlen(one->below);
        if (!strncmp(path, one->below, length) && (path[length] == '/' || !path[length])) {
            found = one;
            break;
        }
    }
    errno = saved;
    return found;
}

/* 0: go on. Else errno is set. */
static int refused(struct slot *slot, const volatile int *fault) {
    if (*fault == HANG) {
        __sync_fetch_and_add(&slot->hanging, 1);
        while (*fault == HANG) sleep_ms(10);
        __sync_fetch_and_sub(&slot->hanging, 1);
    }
    if (!*fault) return 0;
    errno = *fault;
    return -1;
}

static int refused_write(int fd) {
    struct slot *slot = slot_of(fd);
    return slot ? refused(slot, &slot->write) : 0;
}

static int refused_read(int fd) {
    struct slot *slot = slot_of(fd);
    return slot ? refused(slot, &slot->read) : 0;
}

static int refused_flush(int fd) {
    struct slot *slot = slot_of(fd);
    if (!slot) return 0;
    for (int passed = 0; passed < slot->slow_ms; passed += 10) sleep_ms(10);
    return refused(slot, &slot->flush);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define PASS(kind, result, name, params, args)          \
    result name params {                                \
        static __typeof__(&name) real;                  \
        if (!real) real = REAL(name);                   \
        return refused_##kind(fd) ? -1 : real args;     \
    }

PASS(write, ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
PASS(write, ssize_t, writev, (int fd, const struct iovec *data, int count), (fd, data, count))
PASS(write, ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
PASS(write, ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
PASS(write, ssize_t, pwritev, (int fd, const struct iovec *data, int count, off_t at), (fd, data, count, at))
PASS(write, ssize_t, pwritev64, (int fd, const struct iovec *data, int count, off64_t at), (fd, data, count, at))
PASS(write, ssize_t, pwritev2, (int fd, const struct iovec *data, int count, off_t at, int flags),
     (fd, data, count, at, flags))
PASS(write, ssize_t, pwritev64v2, (int fd, const struct iovec *data, int count, off64_t at, int flags),
     (fd, data, count, at, flags))
PASS(write, int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))
PASS(write, int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))
PASS(read, ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))
PASS(read, ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
PASS(read, ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
PASS(flush, int, fsync, (int fd), (fd))
PASS(flush, int, fdatasync, (int fd), (fd))
