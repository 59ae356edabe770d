# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Looks on a machine for secrets where nobody may find them. Of what is found, the place is said.

The secrets come on stdin, so that this search is no process that has them in its own arguments.
"""

import collections.abc

# Files that hold a secret must be for their owner alone, who is root or one of Concourse's or
# PostgreSQL's own; those from before the machine's start are its host's. What processes have in
# their arguments and what is logged is for everybody who can look.
SEARCH = r"""
set -u
umask 077
list=$(mktemp /dev/shm/search.XXXXXX)
trap 'rm -f "$list"' EXIT
cat >"$list"
for process in /proc/[0-9]*; do
  grep -qaFf "$list" "$process/cmdline" 2>&- && echo "arguments of ${process#/proc/}"
done
journalctl --no-pager -o cat 2>&- | grep -qaFf "$list" && echo "journal"
grep -rlaFf "$list" /var/log 2>&- | sed 's/^/log /'
find /etc /opt /run /tmp /var/tmp /var/lib /root /srv /home -xdev \
  \( -path /srv/repo -o -path /srv/release -o -path /srv/packages -o -name 'gpuci-made-*' \
  -o -path '/var/lib/concourse/*' \) -prune \
  -o -type f -size -4096k -newerct "$(ps -o lstart= -p 1)" -print0 2>&- |
xargs -0r grep -laFf "$list" 2>&- |
while read -r file; do
  case $file in /run/log/*|/var/lib/postgresql/*) continue;; esac
  stat -c '%a %U' "$file" | grep -qE '^[46]00 (root|concourse|postgres)$' || echo "file $file"
done
for process in /proc/[0-9]*; do
  grep -qaFf "$list" "$process/environ" 2>&- || continue
  [ "$(stat -c %a "$process/environ")" = 400 ] || echo "environment of ${process#/proc/}"
done
true
"""


def leaks(
    run: collections.abc.Callable[[str, str], str], secrets: collections.abc.Iterable[str]
) -> list[str]:
    """Where a machine shows one of these secrets; nothing where it keeps them all.

    Args:
        run: runs a shell script with a text on its stdin, as root; its output.
        secrets: at least a line of each; of several lines, one that is its alone.
    """
    lines = [max(secret.splitlines(), key=len) for secret in secrets]
    assert all(len(line) >= 8 for line in lines), "too short to be told from other text"
    return run(SEARCH, "\n".join(lines) + "\n").splitlines()
