"""Other people's tasks as files: a small GPT on text in the manner of Tiny Shakespeare, a regression."""

GPT = '''
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tokens [B, T] in, logits [B, T, C] out."""

    def __init__(self, letters, width, length):
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width, 2), Block(width, 2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, tokens):
        x = self.letters(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def build(letters=33, width=16, length=24):
    return GPT(letters, width, length)
'''

TEXT = '''
import random

import torch

LETTERS = "\\n abcdefghijklmnopqrstuvwxyz,.:;!"
NAMES = ("romeo", "juliet", "king", "nurse")
WORDS = "thou art my light and love is not so fair as night to see the sun who dies for thee".split()


def text(lines, seed):
    """Somebody speaks, line by line, in words that follow each other at random."""
    draw = random.Random(seed)
    said = (" ".join(draw.choice(WORDS) for _ in range(6)) for _ in range(lines))
    return "\\n".join(f"{draw.choice(NAMES)}:\\n{line}{draw.choice(',.;!')}" for line in said)


def build(train, length=24):
    """Each letter's number, and the number of the letter after it: int64 [N, T] twice."""
    numbers = torch.tensor([LETTERS.index(letter) for letter in text(120 if train else 20, int(train))])
    count = (len(numbers) - 1) // length
    return numbers[: count * length].view(count, length), numbers[1 : count * length + 1].view(count, length)
'''

MLP = '''
from torch import nn


class Named(nn.Module):
    """Takes its inputs by name, gives a column."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x, shift):
        return self.layers(x) + shift


def build(width=16):
    return Named(width)


def other(width=16):
    network = Named(width)
    network.layers[0] = nn.Linear(5, width)
    return network
'''

TABLE = '''
import torch


def build(train):
    """A plane with a bend, and noise; targets [N], which the network gives as [N, 1]."""
    draw = torch.Generator().manual_seed(int(train))
    x = torch.randn(150 if train else 60, 4, generator=draw)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + x[:, 0].abs() + 0.1 * torch.randn(len(x), generator=draw)
    return {"x": x, "shift": torch.ones(len(x), 1)}, y
'''

SCORES = '''
import torch
import torch.nn.functional as F


def perplexity(outputs, targets):
    """Of a batch, 0-d."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten()).exp()


def within(outputs, targets):
    """Which samples are near, [B]: nothing in the name says which way is better."""
    return (outputs.flatten() - targets).abs() < 0.5


within.better, within.words = "higher", "share within a half"


def spread(outputs, targets):
    return (outputs.flatten() - targets).abs()


def third_error(outputs, targets):
    return outputs[:, 2] - targets


def by_hand(outputs, targets):
    """A loss that knows what the network gives."""
    return (outputs.squeeze(1) - targets).square().mean()
'''
