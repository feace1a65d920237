"""A stream without boundaries: see how tasks flow into each other, and learn from one with and without MKD.

`python examples/blurry_stream.py` prints three streams and the accuracy of both methods on one of them.
"""

from dataclasses import replace

from onepass import Blurry, Clear, Record, ResNet18, Seeds, recipe, run, source
from onepass.stream import Stream

PARTS = 30  # of a stream, each a column below


def picture(stream: Stream) -> list[str]:
    """A line for each class, in training order: the darker, the more images of it there are in that part of the stream."""
    counts = [[0] * PARTS for _ in range(stream.spec.classes)]
    at = 0
    for batch in stream.batches(10):
        for y in batch.y.tolist():
            counts[y][at * PARTS // len(stream)] += 1
            at += 1
    most = max(max(row) for row in counts)
    return ["".join(" .:+#"[-(-4 * n // most)] for n in row) for row in counts]


def learn(word: str, scale: float, runs: str = "runs", limit: int | None = None, width: int = 20) -> Record:
    config = recipe(word, source("digits"), memory=20, stream="blurry")
    return run(replace(config, stream=Blurry(tasks=5, scale=scale), net=ResNet18(width=width), limit=limit), runs)


if __name__ == "__main__":
    digits = source("digits").load()
    for order in (Clear(tasks=5), Blurry(tasks=5, scale=30), Blurry(tasks=5, scale=300)):
        print(order, *picture(order.over(digits.train, digits.names, Seeds(0))), sep="\n")
    for word in ("er", "er+mkd"):
        print(f"{word} on the second: {100 * learn(word, scale=30).summary['accuracy']:.1f} %")
