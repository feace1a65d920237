"""PCR: every image is drawn to its class's proxy, away from those of the other classes in the batch."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from onepass.losses import proxy_contrast
from onepass.method import Method
from onepass.nets import Cosine, Head
from onepass.step import Step


@dataclass(frozen=True)
class PCR(Method):
    """Proxy-based contrastive replay (Lin et al., 2023), on the raw and the augmented view of stream and replay:

    L = mean over i of -1/|P(i)| sum over j in P(i) of ln [exp(s(i, y_j)) / sum over k of exp(s(i, y_k))], where s(i, c) is the
    cosine of features i and proxy c over the temperature 0.09, and P(i) are the images of i's class, i included.

    The proxies are the rows of a cosine classifier.  Two batch-norm groups: the stream's views, the replay's.
    """

    classifier: ClassVar[Head] = Cosine(0.09)

    def loss(self, step: Step) -> Tensor | None:
        if not len(step.replay):
            return None
        stream = step.student.joint(step.raw(step.stream), step.aug(step.stream))
        replay = step.student.joint(step.raw(step.replay), step.aug(step.replay))
        scores = torch.cat([out.logits for out in (*stream, *replay)])
        return proxy_contrast(scores, torch.cat([step.stream.y, step.stream.y, step.replay.y, step.replay.y])).mean()
