"""Ask a broker whether it is well; for health checks of containers, which have no curl.

python health.py http://127.0.0.1:9308/ready

Ends with 0 if it is, and with 1 and a line that says why if it is not.
"""

import sys
import urllib.error
import urllib.request


def main(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=4) as answer:
            print(answer.read().decode(), end="")
            return 0
    except urllib.error.HTTPError as error:
        print(error.read().decode(), end="")
    except OSError as error:
        print(f"{url} does not answer: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
