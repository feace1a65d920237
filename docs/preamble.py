"""What the Python blocks find: digits, and a model and a loop of the reader's own."""

import torch
import torch.nn.functional as F
from torch import nn

from onepass import source

digits = source("digits").load()  # 1,433 training and 364 test images of 8x8
images, labels = digits.train.x[::24], digits.train.y[::24]  # 60 of them, as bytes

body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
model = nn.Sequential(*body, nn.Linear(4 * 36, 10))
loader = [(images[i : i + 10] / 255, labels[i : i + 10]) for i in range(0, 60, 10)]
augment = nn.Dropout2d(0.0)  # yours: any function from images to images
criterion = F.cross_entropy
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
