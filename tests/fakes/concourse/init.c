/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * The stand-in for Concourse's bin/init: pid 1 of every container, which waits and reaps. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    /* Blocked before the loop, so that a child that ends between waitpid and sigwait is not missed. */
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, 0);
    for (;;) {
        int signal;
        while (waitpid(-1, 0, WNOHANG) > 0)
            ;
        sigwait(&child, &signal);
    }
}
