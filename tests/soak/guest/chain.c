/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * A process that is a new one at every instant: no list of processes ever names a living one. */
#include <unistd.h>

int main(void)
{
    setsid();
    for (;;)
        if (fork() > 0)
            _exit(0);
}
