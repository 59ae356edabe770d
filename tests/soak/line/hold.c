/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * Tells from inside which GPUs somebody has, and that nobody has them beside it.
 *
 * hold FOLDER NAME MILLISECONDS LEFT
 *
 * A GPU is given where its node opens with ENXIO, as a fake one does. Each that is given is locked
 * by a file in FOLDER, which all see: the kernel frees the lock with the last process that has it,
 * be it killed or left behind. LEFT: for so many milliseconds a process in a session of its own
 * goes on.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static void say(const char *folder, const char *file, const char *text) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, file);
  int out = open(path, O_WRONLY | O_APPEND);
  if (out < 0 || write(out, text, strlen(text)) < 0)
    exit(3);
  close(out);
}

int main(int argc, char **argv) {
  if (argc != 5)
    return 2;
  char path[256], line[512], has[16] = "";
  for (int gpu = 0; gpu < 2; gpu++) {
    snprintf(path, sizeof path, "/dev/nvidia%d", gpu);
    if (open(path, O_RDONLY) >= 0 || errno != ENXIO)
      continue;
    snprintf(has + strlen(has), 3, "%d", gpu);
    snprintf(path, sizeof path, "%s/gpu%d", argv[1], gpu);
    int lock = open(path, O_RDWR);
    if (lock < 0)
      return 3;
    if (flock(lock, LOCK_EX | LOCK_NB)) {
      snprintf(line, sizeof line, "GPU %d twice: %s has it too\n", gpu, argv[2]);
      say(argv[1], "faults", line);
    }
  }
  snprintf(line, sizeof line, "%s %s\n", argv[2], *has ? has : "-");
  say(argv[1], "log", line);
  usleep(1000 * atoi(argv[3]));
  if (atoi(argv[4]) && fork() == 0) {
    setsid();
    usleep(1000 * atoi(argv[4]));
  }
  return 0;
}
