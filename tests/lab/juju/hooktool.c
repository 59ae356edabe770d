/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * One client for all hook commands, each a symlink to this program. It sends its name and its
 * arguments to the lab and prints the answer. A hook runs dozens of these: no interpreter. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET "/var/lib/juju/lab/hooks.sock"

/* An agent of Juju's always runs. Between two commands of the lab no agent does: juju-exec asks again
 * until the next one, in tries of TRY microseconds, for as long as the charm's watches wait for a hook
 * (lib/gpu_agent/reporting/notifier/device_watch.py: HOOKS). */
#define TRY 100000
#define TRIES (900 * (1000000 / TRY))

struct text {
    char *bytes;
    size_t length;
};

static void fail(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    exit(1);
}

static void add(struct text *text, const char *bytes, size_t length)
{
    text->bytes = realloc(text->bytes, text->length + length + 1);
    if (!text->bytes)
        fail("ERROR out of memory\n");
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
}

/* With its final NUL, which divides the parts of a request. */
static void add_part(struct text *text, const char *part)
{
    add(text, part, strlen(part) + 1);
}

static void read_all(struct text *text, int descriptor)
{
    char part[65536];
    ssize_t length;
    while ((length = read(descriptor, part, sizeof part)) > 0)
        add(text, part, length);
    if (length < 0)
        fail("ERROR the lab's hook command can't read: %m\n");
}

/* secret-add and secret-set take values from files of this machine: key#file=path. */
static void add_argument(struct text *request, const char *argument, int of_secrets)
{
    const char *mark = strstr(argument, "#file="), *equals = strchr(argument, '=');
    if (!of_secrets || !mark || equals < mark) {
        add_part(request, argument);
        return;
    }
    FILE *file = fopen(mark + strlen("#file="), "r");
    if (!file)
        fail("ERROR %s: %m\n", mark + strlen("#file="));
    add(request, argument, mark - argument);
    add(request, "=", 1);
    read_all(request, fileno(file));
    add(request, "", 1);
}

/* Send the request and read the answer, which is empty if the agent ends before it has one. */
static int is_answered(const struct text *request, struct text *answer)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int connected = !connect(connection, (struct sockaddr *)&address, sizeof address);
    ssize_t length = 0;
    for (size_t sent = 0; connected && sent < request->length && length >= 0; sent += length)
        length = send(connection, request->bytes + sent, request->length - sent, MSG_NOSIGNAL);
    if (connected && length >= 0) {
        shutdown(connection, SHUT_WR);
        read_all(answer, connection);
    }
    int error = errno;
    close(connection);
    errno = error;
    return answer->length > 0;
}

int main(int count, char **arguments)
{
    const char *slash = strrchr(arguments[0], '/'), *context = getenv("JUJU_CONTEXT_ID");
    const char *tool = slash ? slash + 1 : arguments[0];
    int of_secrets = !strcmp(tool, "secret-add") || !strcmp(tool, "secret-set");
    int names_file = 0, is_dash = 0, reads_input = 0;
    struct text request = {0}, answer = {0};
    char number[16];

    add_part(&request, context ? context : "");
    add_part(&request, tool);
    snprintf(number, sizeof number, "%d", count - 1);
    add_part(&request, number);
    for (int i = 1; i < count; i++) {
        names_file |= !strcmp(arguments[i], "--file");
        is_dash |= !strcmp(arguments[i], "-");
        reads_input |= !strcmp(arguments[i], "--file=-");
        add_argument(&request, arguments[i], of_secrets);
    }
    if (reads_input || (names_file && is_dash))
        read_all(&request, STDIN_FILENO);

    int tries = strcmp(tool, "juju-exec") ? 1 : TRIES;
    while (!is_answered(&request, &answer)) {
        if (--tries <= 0)
            fail("ERROR no agent of the lab answers: %m\n");
        usleep(TRY);
    }

    /* The status, what goes to stdout, what goes to stderr. */
    char *end = answer.bytes + answer.length;
    char *output = answer.bytes ? memchr(answer.bytes, 0, answer.length) : 0;
    char *errors = output ? memchr(output + 1, 0, end - output - 1) : 0;
    if (!errors)
        return 1;
    fwrite(output + 1, 1, errors - output - 1, stdout);
    if (fflush(stdout))
        return 1;
    fwrite(errors + 1, 1, end - errors - 1, stderr);
    return atoi(answer.bytes);
}
