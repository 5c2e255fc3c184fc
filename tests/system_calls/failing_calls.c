/* Makes system calls fail, from outside the program: preloaded into every process of a job.
 *
 * A page that all processes map says which call fails, where, how, and at which time. It counts calls as well, so that a test knows
 * what there is to fail. Only calls made by the engine, by Python and by its modules count: what torch, or libc for itself, asks of the
 * kernel is not ours. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS(X)                                                                                                                   \
  X(memfd_create) X(ftruncate) X(fallocate) X(mmap) X(madvise) X(fcntl) X(futex) X(pidfd_open) X(poll) X(socket) X(socketpair)       \
  X(bind) X(listen) X(connect) X(accept) X(sendmsg) X(recvmsg) X(send) X(recv) X(fork) X(open) X(pipe) X(dup) X(epoll_create)        \
  X(epoll_ctl) X(epoll_wait) X(read) X(write) X(waitpid) X(setpgid) X(fchmod) X(fstat) X(getrandom) X(thread) X(getsockopt)          \
  X(chdir)

#define AS_NUMBER(name) call_##name,
enum call { CALLS(AS_NUMBER) num_calls };
#define AS_NAME(name) #name,
static const char* const names[] = {CALLS(AS_NAME)};

enum { launcher = -1, zygote = -2, newborn = -3, nobody = -4, anybody = -5 };

struct control {
  _Atomic int32_t role;   /* whose calls are counted, and may fail */
  _Atomic int32_t call;   /* which fails; -1 for none */
  _Atomic int32_t error;  /* its errno */
  _Atomic int32_t from;   /* the number of the first that fails, from 1 */
  _Atomic int32_t count;  /* how many fail */
  _Atomic int32_t struck; /* how many have failed */
  _Atomic int32_t counts[64];
};

static struct control* control;
static int own_role = nobody;

static void become_newborn(void) {
  if (own_role == zygote) own_role = newborn;
}

__attribute__((constructor)) static void begin(void) {
  const char* path = getenv("FAILING_CALLS_PAGE");
  if (path == NULL) return;
  const int descriptor = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return;
  void* page = (void*)syscall(SYS_mmap, NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  syscall(SYS_close, descriptor);
  if (page == MAP_FAILED) return;
  char words[4096] = "";
  const int file = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  const long length = syscall(SYS_read, file, words, sizeof(words) - 1);
  syscall(SYS_close, file);
  for (long i = 0; i < length; ++i) {
    if (words[i] == '\0') words[i] = ' ';
  }
  if (strstr(words, "zygote") != NULL) {
    own_role = zygote;
  } else if (strstr(words, "phalanx.cli") != NULL) {
    own_role = launcher;
  }
  pthread_atfork(NULL, NULL, become_newborn);
  control = page;
}

/* A process says who it is; a rank, its number. */
__attribute__((visibility("default"))) void failing_calls_role(int role) { own_role = role; }
__attribute__((visibility("default"))) int failing_calls_number(const char* name) {
  for (int call = 0; call < num_calls; ++call) {
    if (strcmp(names[call], name) == 0) return call;
  }
  return -1;
}

static int begins(const char* text, const char* prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

static int is_ours(enum call call, void* caller) {
  Dl_info info;
  if (dladdr(caller, &info) == 0 || info.dli_fname == NULL) return 0;
  const char* path = info.dli_fname;
  const char* slash = strrchr(path, '/');
  const char* name = slash == NULL ? path : slash + 1;
  if (call == call_getrandom) return begins(name, "_native"); /* Python would read /dev/urandom, and keep it open for ever */
  return begins(name, "_native") || begins(name, "python") || begins(name, "libpython") ||
         strstr(path, "lib-dynload") != NULL || (call == call_thread && begins(name, "libstdc++"));
}

/* Whether this call fails; errno says how. */
static int fails(enum call call, void* caller) {
  if (control == NULL) return 0;
  const int role = control->role;
  if (role == nobody || (role != anybody && role != own_role) || !is_ours(call, caller)) return 0;
  const int number = ++control->counts[call];
  if (control->call != (int32_t)call) return 0;
  const int from = control->from;
  if (number < from || number >= from + control->count) return 0;
  ++control->struck;
  errno = control->error;
  return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define HERE __builtin_return_address(0)
#define WRAP(kind, result, name, parameters, arguments) \
  result name parameters {                              \
    if (fails(call_##kind, HERE)) return (result) - 1;  \
    return NEXT(name) arguments;                        \
  }

WRAP(memfd_create, int, memfd_create, (const char* a, unsigned b), (a, b))
WRAP(ftruncate, int, ftruncate, (int a, off_t b), (a, b))
WRAP(ftruncate, int, ftruncate64, (int a, off64_t b), (a, b))
WRAP(fallocate, int, fallocate, (int a, int b, off_t c, off_t d), (a, b, c, d))
WRAP(fallocate, int, fallocate64, (int a, int b, off64_t c, off64_t d), (a, b, c, d))
WRAP(mmap, void*, mmap, (void* a, size_t b, int c, int d, int e, off_t f), (a, b, c, d, e, f))
WRAP(mmap, void*, mmap64, (void* a, size_t b, int c, int d, int e, off64_t f), (a, b, c, d, e, f))
WRAP(madvise, int, madvise, (void* a, size_t b, int c), (a, b, c))
WRAP(poll, int, poll, (struct pollfd * a, nfds_t b, int c), (a, b, c))
WRAP(socket, int, socket, (int a, int b, int c), (a, b, c))
WRAP(socketpair, int, socketpair, (int a, int b, int c, int d[2]), (a, b, c, d))
WRAP(bind, int, bind, (int a, const struct sockaddr* b, socklen_t c), (a, b, c))
WRAP(listen, int, listen, (int a, int b), (a, b))
WRAP(connect, int, connect, (int a, const struct sockaddr* b, socklen_t c), (a, b, c))
WRAP(accept, int, accept, (int a, struct sockaddr* b, socklen_t* c), (a, b, c))
WRAP(accept, int, accept4, (int a, struct sockaddr* b, socklen_t* c, int d), (a, b, c, d))
WRAP(sendmsg, ssize_t, sendmsg, (int a, const struct msghdr* b, int c), (a, b, c))
WRAP(recvmsg, ssize_t, recvmsg, (int a, struct msghdr* b, int c), (a, b, c))
WRAP(send, ssize_t, send, (int a, const void* b, size_t c, int d), (a, b, c, d))
WRAP(recv, ssize_t, recv, (int a, void* b, size_t c, int d), (a, b, c, d))
WRAP(getsockopt, int, getsockopt, (int a, int b, int c, void* d, socklen_t* e), (a, b, c, d, e))
WRAP(fork, pid_t, fork, (void), ())
WRAP(pipe, int, pipe, (int a[2]), (a))
WRAP(pipe, int, pipe2, (int a[2], int b), (a, b))
WRAP(dup, int, dup, (int a), (a))
WRAP(dup, int, dup2, (int a, int b), (a, b))
WRAP(dup, int, dup3, (int a, int b, int c), (a, b, c))
WRAP(epoll_create, int, epoll_create1, (int a), (a))
WRAP(epoll_ctl, int, epoll_ctl, (int a, int b, int c, struct epoll_event* d), (a, b, c, d))
WRAP(epoll_wait, int, epoll_wait, (int a, struct epoll_event* b, int c, int d), (a, b, c, d))
WRAP(read, ssize_t, read, (int a, void* b, size_t c), (a, b, c))
WRAP(write, ssize_t, write, (int a, const void* b, size_t c), (a, b, c))
WRAP(waitpid, pid_t, waitpid, (pid_t a, int* b, int c), (a, b, c))
WRAP(waitpid, pid_t, wait4, (pid_t a, int* b, int c, struct rusage* d), (a, b, c, d))
WRAP(setpgid, int, setpgid, (pid_t a, pid_t b), (a, b))
WRAP(fchmod, int, fchmod, (int a, mode_t b), (a, b))
WRAP(fstat, int, fstat, (int a, struct stat* b), (a, b))
WRAP(fstat, int, fstat64, (int a, struct stat64* b), (a, b))
WRAP(getrandom, ssize_t, getrandom, (void* a, size_t b, unsigned c), (a, b, c))
WRAP(chdir, int, chdir, (const char* a), (a))

#define WRAP_OPEN(name, before_passed, before, after)                         \
  int name(before_passed, ...) {                                              \
    if (fails(call_open, HERE)) return -1;                                    \
    va_list rest;                                                             \
    va_start(rest, after);                                                    \
    const mode_t mode = (after & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                             \
    return NEXT(name)(before, mode);                                          \
  }
#define PASS(...) __VA_ARGS__

WRAP_OPEN(open, PASS(const char* path, int flags), PASS(path, flags), flags)
WRAP_OPEN(open64, PASS(const char* path, int flags), PASS(path, flags), flags)
WRAP_OPEN(openat, PASS(int folder, const char* path, int flags), PASS(folder, path, flags), flags)
WRAP_OPEN(openat64, PASS(int folder, const char* path, int flags), PASS(folder, path, flags), flags)

static int fcntl_or_fail(void* caller, const char* name, int descriptor, int command, void* argument) {
  if ((command == F_DUPFD_CLOEXEC || command == F_DUPFD || command == F_ADD_SEALS) && fails(call_fcntl, caller)) return -1;
  int (*next)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, name);
  return next(descriptor, command, argument);
}

#define WRAP_FCNTL(name)                                           \
  int name(int descriptor, int command, ...) {                     \
    va_list rest;                                                  \
    va_start(rest, command);                                       \
    void* argument = va_arg(rest, void*);                          \
    va_end(rest);                                                  \
    return fcntl_or_fail(HERE, #name, descriptor, command, argument); \
  }
WRAP_FCNTL(fcntl)
WRAP_FCNTL(fcntl64)

int pthread_create(pthread_t* a, const pthread_attr_t* b, void* (*c)(void*), void* d) {
  if (fails(call_thread, HERE)) return errno;
  return NEXT(pthread_create)(a, b, c, d);
}

long syscall(long number, ...) {
  va_list rest;
  va_start(rest, number);
  const long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long), d = va_arg(rest, long), e = va_arg(rest, long),
             f = va_arg(rest, long);
  va_end(rest);
  if (number == SYS_futex && fails(call_futex, HERE)) return -1;
  if (number == SYS_pidfd_open && fails(call_pidfd_open, HERE)) return -1;
  long (*next)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return next(number, a, b, c, d, e, f);
}
