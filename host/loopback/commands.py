"""The phone's own commands, as far as hexgraft calls them: small scripts over files in the sandbox."""

from __future__ import annotations

_GETPROP = """\
#!/bin/sh
if [ $# -eq 0 ]; then
  exec sed 's/^\\([^=]*\\)=\\(.*\\)$/[\\1]: [\\2]/' "$SANDBOX/properties"
fi
exec sed -n "s/^$1=//p" "$SANDBOX/properties"
"""

_SETTINGS = """\
#!/bin/sh
file="$SANDBOX/settings/$2.$3"
case "$1" in
  get) if [ -f "$file" ]; then cat "$file"; else echo null; fi ;;
  put) echo "$4" > "$file" ;;
  delete) rm -f "$file" ;;
  *) echo "Invalid command: $1" >&2; exit 1 ;;
esac
"""

_DUMPSYS = """\
#!/bin/sh
if [ -f "$SANDBOX/dumpsys/$1" ]; then exec cat "$SANDBOX/dumpsys/$1"; fi
echo "Can't find service: $1" >&2
exit 1
"""

_LOGCAT = """\
#!/bin/sh
exec cat "$SANDBOX/logcat"
"""

# With a partition size given, the sandbox's files are what is used of it; else the real one's figures.
_DF = """\
#!/bin/sh
if [ ! -f "$SANDBOX/space" ]; then exec /bin/df "$@"; fi
total=$(($(cat "$SANDBOX/space") / 1024))
used=$(($(du -sb "$SANDBOX/data" | cut -f1) / 1024))
free=$((total - used))
[ "$free" -gt 0 ] || free=0
echo "Filesystem     1K-blocks    Used Available Use% Mounted on"
echo "/dev/block/dm-9 $total $used $free 50% /data"
"""

# What is written through these two meets the partition's end; all else they do is the real one's.
_LIMITED = """\
#!/bin/sh
real=$(PATH=/usr/bin:/bin command -v NAME)
[ -f "$SANDBOX/space" ] && LIMITED || exec "$real" "$@"
used=$(find "$SANDBOX/data" -type f -printf '%s\\n' | awk '{s+=$1} END {print s+0}')
free=$(($(/bin/cat "$SANDBOX/space") - used))
[ "$free" -gt 0 ] || free=0
head -c "$free" | "$real" "$@"
if [ "$(head -c 1 | wc -c)" -gt 0 ]; then
  echo "NAME: write error: No space left on device" >&2
  exit 1
fi
"""

COMMANDS = {
    "getprop": _GETPROP,
    "settings": _SETTINGS,
    "dumpsys": _DUMPSYS,
    "logcat": _LOGCAT,
    "df": _DF,
    "cat": _LIMITED.replace("NAME", "cat").replace("LIMITED", "[ $# -eq 0 ]"),
    "tee": _LIMITED.replace("NAME", "tee").replace("LIMITED", "true"),
}
"""Scripts by name, first in the device's PATH."""

LIMITED = ("cat", "df", "tee")
"""Those that are there for the size of the data partition alone."""
