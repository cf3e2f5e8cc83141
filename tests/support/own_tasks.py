"""Other people's task as files: a small GPT on text in the manner of Tiny Shakespeare."""

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
