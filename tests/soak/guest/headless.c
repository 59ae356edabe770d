/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * A process whose first thread ends, and another one goes on. */
#include <pthread.h>
#include <unistd.h>

static void *go_on(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

int main(void)
{
    pthread_t other;
    if (pthread_create(&other, 0, go_on, 0))
        return 1;
    pthread_exit(0);
}
