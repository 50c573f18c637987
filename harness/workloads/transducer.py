"""The RNN transducer: an encoder of sound, a predictor of text, a layer that joins them, and the loss.

The loss is from Graves, "Sequence Transduction with RNNs", 2012, section 2. Of all ways to emit a transcript of U
labels over T frames, every one a path of T blanks and U labels from (0, 0) to (T, U), it is minus the logarithm of
their summed probability. Nodes on one anti-diagonal t + u need only the nodes of the one before it (or after it), so
the sums go over T + U diagonals, each in one operation.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.autograd.function import once_differentiable

_BLANK: Final = 0
_NEVER: Final = float("-inf")


class Transducer(torch.nn.Module):
    """RNN-T (Graves 2012) in the form of MLPerf Training: LSTMs that see a third of the frames, then a sixth.

    Layers, dropout and the bias of forget gates are as in MLPerf's baseline_v3-1023sp.yaml, whose vocabulary is word
    pieces; here it is what `symbols` counts.
    """

    STACK = 2
    """Frames that the encoder joins after its first layers."""

    def __init__(
        self,
        *,
        features: int,
        symbols: int,
        encoder_size: int,
        predictor_size: int,
        joint_size: int,
        encoder_dropout: float = 0.1,
        dropout: float = 0.3,
    ) -> None:
        """Make the layers.

        Args:
            features: values of a frame.
            symbols: characters, with the blank.
            encoder_size: cells of a layer of the encoder.
            predictor_size: cells of a layer of the predictor.
            joint_size: units of the layer that joins both.
            encoder_dropout: share of the encoder's values that are dropped, 0.1 by default.
            dropout: the same in predictor and joint, 0.3 by default.
        """
        super().__init__()
        self.first = _lstm(features, encoder_size, 2, encoder_dropout)
        self.second = _lstm(self.STACK * encoder_size, encoder_size, 3, encoder_dropout)
        # The row of the blank stands for the beginning, before any character.
        self.embedding = torch.nn.Embedding(symbols, predictor_size)
        self.predictor = _lstm(predictor_size, predictor_size, 2, dropout)
        self.of_sound = torch.nn.Linear(encoder_size, joint_size)
        self.of_text = torch.nn.Linear(predictor_size, joint_size)
        self.output = torch.nn.Sequential(
            torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(joint_size, symbols)
        )

    def forward(self, features: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (n, ceil(T / STACK), U + 1, symbols).

        `features` are float of shape (n, T, features), of which `lengths`, int64 of shape (n,), are no padding;
        `labels` are int64 of shape (n, U). Padding changes nothing before it: all LSTMs go forward only.
        """
        sound = self.of_sound(self.encode(features, lengths))
        text = self.of_text(self.predict(labels))
        logits: torch.Tensor = self.output(sound[:, :, None] + text[:, None])
        return logits

    def encode(self, features: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the encoding of the sound, shape (n, ceil(T / STACK), encoder_size)."""
        hidden, _ = self.first(features)
        n, frames, size = hidden.shape
        # The last frames that are joined may be half padding.
        padding = torch.arange(frames, device=lengths.device) >= lengths[:, None]
        hidden = hidden.masked_fill(padding[:, :, None], 0.0)
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, -frames % self.STACK))
        hidden, _ = self.second(hidden.reshape(n, -1, self.STACK * size))
        return hidden  # type: ignore[no-any-return]

    def predict(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the predictions after 0 to U characters, shape (n, U + 1, predictor_size)."""
        hidden, _ = self.predictor(self.embedding(torch.nn.functional.pad(labels, (1, 0))))
        return hidden  # type: ignore[no-any-return]

    @classmethod
    def steps(cls, lengths: torch.Tensor) -> torch.Tensor:
        """Return how many of the output's frames belong to samples of these lengths."""
        return (lengths + cls.STACK - 1) // cls.STACK


def _lstm(inputs: int, size: int, layers: int, dropout: float) -> torch.nn.LSTM:
    lstm = torch.nn.LSTM(inputs, size, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
    for name, parameter in lstm.named_parameters():
        if name.startswith("bias_ih"):
            # An LSTM that remembers at first learns long sequences sooner: MLPerf's forget_gate_bias of 1.
            with torch.no_grad():
                parameter[size : 2 * size] = 1.0
        elif name.startswith("bias_hh"):
            with torch.no_grad():
                parameter[size : 2 * size] = 0.0
    return lstm


def rnnt_loss(
    logits: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor, label_lengths: torch.Tensor
) -> torch.Tensor:
    """Return minus the log-likelihood of every transcript, shape (n,), float32 or, of float64 logits, float64.

    Args:
        logits: shape (n, T, U + 1, symbols), not normalised; at (t, u) for frame t after u labels.
        labels: int64 of shape (n, U), 1 to symbols-1; 0 is the blank. Values beyond a sample's length are not read.
        lengths: int64 of shape (n,), 1 to T, the frames of every sample.
        label_lengths: int64 of shape (n,), 0 to U.

    Raises:
        ValueError: the shapes do not belong together.
    """
    n, frames, rows, _ = logits.shape
    if labels.shape != (n, rows - 1) or lengths.shape != (n,) or label_lengths.shape != (n,) or not frames:
        raise ValueError(
            f"logits are {tuple(logits.shape)}, labels {tuple(labels.shape)}, lengths {tuple(lengths.shape)} and "
            f"label_lengths {tuple(label_lengths.shape)}: expected (n, T, U + 1, symbols), (n, U), (n,) and (n,)"
        )
    if logits.dtype != torch.float64:
        logits = logits.float()
    # The two probabilities that count, without a copy of all of them in logarithms.
    total = torch.logsumexp(logits, dim=-1)
    blank = logits[..., _BLANK] - total
    index = labels.clamp(min=0)[:, None, :, None].expand(n, frames, rows - 1, 1)
    label = logits[:, :, :-1].gather(-1, index).squeeze(-1) - total[:, :, :-1]
    losses: torch.Tensor = _PathSum.apply(blank, label, lengths, label_lengths)
    return losses


class _PathSum(torch.autograd.Function):
    """The sum over paths, and its gradient in closed form: the probability that a path takes an edge."""

    @staticmethod
    def forward(
        ctx: Any, blank: torch.Tensor, label: torch.Tensor, lengths: torch.Tensor, label_lengths: torch.Tensor
    ) -> torch.Tensor:
        n, frames, _ = blank.shape
        up, across = _edges(blank, label, lengths, label_lengths)
        end = lengths - 1 + label_lengths  # the diagonal of a sample's last blank
        forward = _forward_sums(up, across)
        sample = torch.arange(n, device=blank.device)
        likelihood = forward[end, sample, label_lengths] + across[end, sample, label_lengths]
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            after = _backward_sums(up, across, end, label_lengths)
            taken = forward - likelihood[None, :, None]
            back_across = -torch.exp(taken + across + after)
            back_up = -torch.exp(taken[..., :-1] + up[..., :-1] + after[..., 1:])
            ctx.save_for_backward(_straight(back_across, frames), _straight(back_up, frames))
        return -likelihood

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        of_blank, of_label = ctx.saved_tensors
        return of_blank * grad[:, None, None], of_label * grad[:, None, None], None, None


def _edges(
    blank: torch.Tensor, label: torch.Tensor, lengths: torch.Tensor, label_lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of labels (up) and blanks (across) by diagonal, shape (T + U, n, U + 1).

    Edges that no path of a sample can take are minus infinity.
    """
    _, frames, rows = blank.shape
    diagonal = torch.arange(frames + rows - 1, device=blank.device)[:, None]
    u = torch.arange(rows, device=blank.device)[None, :]
    t = diagonal - u  # shape (diagonals, rows)
    inside = (t >= 0) & (t < lengths[:, None, None]) & (u <= label_lengths[:, None, None])
    index = t.clamp(0, frames - 1)[None].expand(len(blank), -1, -1)
    across = blank.gather(1, index).masked_fill(~inside, _NEVER)
    padded = torch.nn.functional.pad(label, (0, 1))
    up = padded.gather(1, index).masked_fill(~inside | (u >= label_lengths[:, None, None]), _NEVER)
    return up.transpose(0, 1).contiguous(), across.transpose(0, 1).contiguous()


def _forward_sums(up: torch.Tensor, across: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of reaching every node, by diagonal, shape (T + U, n, U + 1)."""
    sums = torch.full_like(across, _NEVER)
    sums[0, :, 0] = 0.0
    for d in range(1, len(sums)):
        stayed = sums[d - 1] + across[d - 1]
        climbed = sums[d - 1, :, :-1] + up[d - 1, :, :-1]
        sums[d, :, 0] = stayed[:, 0]
        torch.logaddexp(stayed[:, 1:], climbed, out=sums[d, :, 1:])
    return sums


def _backward_sums(
    up: torch.Tensor, across: torch.Tensor, end: torch.Tensor, label_lengths: torch.Tensor
) -> torch.Tensor:
    """Return, for every node, the log-probability of going on to the end after a blank, shape (T + U, n, U + 1).

    The log-probability of going on after a label is one place further in U.
    """
    sums = torch.full_like(across, _NEVER)
    # Beyond a sample's last blank there is nothing left to do.
    sums[end, torch.arange(len(end), device=end.device), label_lengths] = 0.0
    for d in range(len(sums) - 1, 0, -1):
        ahead = sums[d] + across[d]
        climbed = sums[d, :, 1:] + up[d, :, :-1]
        reached = torch.cat((torch.logaddexp(ahead[:, :-1], climbed), ahead[:, -1:]), dim=1)
        # Minus infinity everywhere but for the samples that end on this diagonal.
        sums[d - 1] = torch.maximum(sums[d - 1], reached)
    return sums


def _straight(by_diagonal: torch.Tensor, frames: int) -> torch.Tensor:
    """Return values by diagonal in their places (n, T, rows)."""
    rows = by_diagonal.shape[2]
    t = torch.arange(frames, device=by_diagonal.device)[:, None]
    u = torch.arange(rows, device=by_diagonal.device)[None, :]
    index = (t + u)[None].expand(by_diagonal.shape[1], -1, -1)
    return by_diagonal.transpose(0, 1).gather(1, index)
