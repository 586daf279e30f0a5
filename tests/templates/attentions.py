"""Attentions whose operands are parts of larger tensors."""

from templates.attention import Attention, Operand

ONE_PROJECTION = Attention(
    2, 4, 49, 49, 16, 16, 0.25, "btha", *(Operand(2 * 49 * 192, 64 * i, 49 * 192, 16, 192, 1) for i in range(3))
)
ALONG_CHANNELS_MASKED = Attention(
    1,
    2,
    30,
    30,
    8,
    16,
    order="bhat",
    query=Operand(64 * 30, 0, 0, 32 * 30, 1, 30),
    key=Operand(64 * 30, 8 * 30, 0, 32 * 30, 1, 30),
    value=Operand(64 * 30, 16 * 30, 0, 32 * 30, 1, 30),
    mask=Operand(2 * 30, 0, 0, 30, 0, 1),
)
