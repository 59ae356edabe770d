/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * What an attacker's image holds: mischief COMMAND ARGUMENT... (see the table at the end).
 *
 * Simulated cards have no driver: a node that the control group allows opens with ENXIO. What stands
 * for a descriptor of a GPU is one opened with O_PATH, which no driver is asked for. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const NODES[] = {"/dev/nvidia0", "/dev/nvidia1"};

static void nap(int milliseconds)
{
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&time, 0);
}

/* Adds "SECONDS-SINCE-BOOT WHAT" to a file that others read. */
static void note(const char *diary, const char *what)
{
    struct timespec now;
    char line[256];
    int file = open(diary, O_WRONLY | O_CREAT | O_APPEND, 0666);
    clock_gettime(CLOCK_BOOTTIME, &now);
    int size = snprintf(line, sizeof line, "%ld.%02ld %s\n", (long)now.tv_sec,
                        now.tv_nsec / 10000000, what);
    if (file < 0 || write(file, line, size) != size)
        exit(9);
    close(file);
}

static void say(const char *what, long answer)
{
    printf("%s: %s\n", what, answer < 0 ? strerrorname_np(errno) : "ok");
    fflush(stdout);
}

/* Goes on opening the nodes for ever, whatever signal comes. */
static int hold(char **arguments)
{
    for (int number = 1; number < 32; number++)
        if (number != SIGCHLD)
            signal(number, SIG_IGN);
    for (;; nap(50))
        for (int card = 0; card < 2; card++) {
            int node = open(NODES[card], O_RDWR);
            if (node >= 0 || errno == ENXIO)
                note(arguments[0], NODES[card]);
            if (node >= 0)
                close(node);
            while (waitpid(-1, 0, WNOHANG) > 0)
                ;
        }
    return 0;
}

/* Notes for ever that it has a descriptor. */
static void keep(int node, const char *diary)
{
    struct stat of;
    char what[64];
    if (fstat(node, &of))
        exit(8);
    snprintf(what, sizeof what, "keeps %u:%u", major(of.st_rdev), minor(of.st_rdev));
    for (;; nap(50))
        note(diary, what);
}

static struct sockaddr_un place(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (*path == '@') /* an abstract name */
        address.sun_path[0] = 0;
    return address;
}

union ancillary {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr aligned;
};

/* give SOCKET NODE: hands a descriptor of NODE to everybody who connects. */
static int give(char **arguments)
{
    int node = open(arguments[1], O_PATH), listener = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = place(arguments[0]);
    say("open", node);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 9)) {
        say("listen", -1);
        return 1;
    }
    chmod(arguments[0], 0777);
    for (;;) {
        int peer = accept(listener, 0, 0);
        union ancillary extra = {0};
        struct iovec data = {"x", 1};
        struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = extra.bytes,
                                 .msg_controllen = sizeof extra.bytes};
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &node, sizeof node);
        sendmsg(peer, &message, MSG_NOSIGNAL);
        close(peer);
    }
}

/* listen SOCKET: leaves a socket behind. */
static int listen_once(char **arguments)
{
    struct sockaddr_un address = place(arguments[0]);
    return bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof address);
}

/* take SOCKET DIARY: has such a descriptor for ever. */
static int take(char **arguments)
{
    int peer = socket(AF_UNIX, SOCK_STREAM, 0), node;
    struct sockaddr_un address = place(arguments[0]);
    union ancillary extra = {0};
    char byte;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = extra.bytes,
                             .msg_controllen = sizeof extra.bytes};
    if (connect(peer, (struct sockaddr *)&address, sizeof address)) {
        say("connect", -1);
        return 1;
    }
    if (recvmsg(peer, &message, 0) < 0 || !CMSG_FIRSTHDR(&message))
        return 1;
    memcpy(&node, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof node);
    say("received", node);
    keep(node, arguments[1]);
    return 0;
}

/* plant PID NODE: has another process open NODE, and tells under which number. */
static int plant(char **arguments)
{
#ifdef __x86_64__
    pid_t pid = atoi(arguments[0]);
    struct user_regs_struct before, during;
    union {
        char text[64];
        long words[8];
    } path = {0}, under;
    strncpy(path.text, arguments[1], sizeof path.text - 1);
    if (ptrace(PTRACE_ATTACH, pid, 0, 0) || waitpid(pid, 0, __WALL) < 0) {
        say("attach", -1);
        return 1;
    }
    ptrace(PTRACE_GETREGS, pid, 0, &before);
    unsigned long room = (before.rsp - 1024) & ~15UL;
    for (int word = 0; word < 8; word++) {
        under.words[word] = ptrace(PTRACE_PEEKDATA, pid, room + 8 * word, 0);
        ptrace(PTRACE_POKEDATA, pid, room + 8 * word, path.words[word]);
    }
    during = before;
    during.rax = SYS_open;
    during.orig_rax = -1;
    during.rdi = room;
    during.rsi = O_PATH;
    during.rip -= 2; /* It waits in a system call: the instruction before. */
    ptrace(PTRACE_SETREGS, pid, 0, &during);
    ptrace(PTRACE_SINGLESTEP, pid, 0, 0);
    waitpid(pid, 0, __WALL);
    ptrace(PTRACE_GETREGS, pid, 0, &during);
    for (int word = 0; word < 8; word++)
        ptrace(PTRACE_POKEDATA, pid, room + 8 * word, under.words[word]);
    ptrace(PTRACE_SETREGS, pid, 0, &before);
    ptrace(PTRACE_DETACH, pid, 0, 0);
    printf("planted %ld\n", (long)during.rax);
    return (long)during.rax < 0;
#else
    return arguments[0] == 0;
#endif
}

/* ptrace as 32-bit programs call it. */
static long ptrace32(long request, pid_t pid, long data)
{
#ifdef __x86_64__
    long answer;
    __asm__ volatile("int $0x80" : "=a"(answer) : "a"(26L), "b"(request), "c"((long)pid), "d"(0L),
                     "S"(data) : "memory", "r8", "r9", "r10", "r11");
    errno = answer < 0 ? -answer : 0;
    return answer < 0 ? -1 : 0;
#else
    return ptrace(request, pid, 0, data);
#endif
}

/* trace: may a process be held at its exit? Two that held each other so could not be killed by
 * anybody, so this lets go at once. Other uses of ptrace must go on. */
static int trace(char **arguments)
{
    (void)arguments;
    const long at_exit = PTRACE_O_TRACEEXIT;
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    for (int way = 0; way < 4; way++) {
        const char *const names[] = {"seize", "seize, more options", "seize, 32 bits", "seize plain"};
        long options = way == 1 ? at_exit | PTRACE_O_TRACECLONE : way == 3 ? 0 : at_exit;
        long answer = way == 2 ? ptrace32(PTRACE_SEIZE, child, options)
                               : ptrace(PTRACE_SEIZE, child, 0, options);
        say(names[way], answer);
        if (answer == 0) {
            ptrace(PTRACE_INTERRUPT, child, 0, 0);
            waitpid(child, 0, __WALL);
            ptrace(PTRACE_DETACH, child, 0, 0);
        }
    }
    say("attach", ptrace(PTRACE_ATTACH, child, 0, 0));
    waitpid(child, 0, __WALL);
    say("options", ptrace(PTRACE_SETOPTIONS, child, 0, at_exit));
    say("options, old number", ptrace(21, child, 0, at_exit));
    say("options, 32 bits", ptrace32(PTRACE_SETOPTIONS, child, at_exit));
    say("options of debuggers",
        ptrace(PTRACE_SETOPTIONS, child, 0,
               PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_TRACEFORK |
                   PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL));
    say("detach", ptrace(PTRACE_DETACH, child, 0, 0));
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
    return 0;
}

/* crash NAME: ends by a fault under this name. */
static int crash(char **arguments)
{
    prctl(PR_SET_NAME, arguments[0]);
    *(volatile int *)0 = 0;
    return 0;
}

/* swarm COUNT: so many processes, each in a session of its own, deaf to signals. */
static int swarm(char **arguments)
{
    long count = atol(arguments[0]);
    for (long made = 0; made < count; made++)
        if (fork() == 0) {
            setsid();
            for (int number = 1; number < 32; number++)
                signal(number, SIG_IGN);
            close(0), close(1), close(2);
            for (;;)
                pause();
        }
    say("swarm", 0);
    return 0;
}

/* chain DIARY: each process starts the next and ends at once. */
static int chain(char **arguments)
{
    setsid();
    close(0), close(1), close(2);
    for (long link = 0;; link++) {
        if (link % 500 == 0) {
            int node = open(NODES[0], O_RDWR);
            if (node >= 0 || errno == ENXIO)
                note(arguments[0], NODES[0]);
        }
        if (fork() > 0)
            _exit(0);
    }
}

/* freeze: after 2 s it stops whatever else appears in this container, such as runc's own init. */
static int freeze(char **arguments)
{
    (void)arguments;
    setsid();
    close(0), close(1), close(2);
    nap(2000);
    /* All but itself and the first process (kill(2)). */
    for (;; nap(1))
        kill(-1, SIGSTOP);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(char **arguments);
} COMMANDS[] = {
    {"hold", hold}, {"give", give}, {"listen", listen_once}, {"take", take}, {"plant", plant}, {"trace", trace},
    {"crash", crash}, {"swarm", swarm}, {"chain", chain}, {"freeze", freeze},
};

int main(int count, char **words)
{
    for (size_t place = 0; count > 1 && place < sizeof COMMANDS / sizeof *COMMANDS; place++)
        if (!strcmp(words[1], COMMANDS[place].name))
            return COMMANDS[place].run(words + 2);
    return 2;
}
