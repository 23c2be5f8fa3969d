"""The entry of the `recurformer` command. Ctrl-C and SIGTERM, by which schedulers end a job, end it in one line."""

import signal
import sys


def main() -> int:
    """Run one stage, by `recurformer.cli.main`; the exit codes are the same."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from recurformer.cli.main import main

        return main()
    except KeyboardInterrupt:
        print(f"\n{' '.join(['recurformer', *sys.argv[1:2]])}: stopped", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
