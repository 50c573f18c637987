"""The RNN transducer: an encoder of sound, a predictor of text, and a layer that joins them."""

from __future__ import annotations

import torch


class Transducer(torch.nn.Module):
    """RNN-T (Graves 2012) in the form of MLPerf Training: LSTMs that see a third of the frames, then a sixth.

    Layers, their sizes, dropout and the forget gates' bias by default are those of MLPerf's
    baseline_v3-1023sp.yaml; its vocabulary is word pieces, here it is whatever `symbols` counts.
    """

    STACK = 2
    """Frames that the encoder joins after its first layers."""

    def __init__(
        self,
        *,
        features: int,
        symbols: int,
        encoder_size: int = 1024,
        encoder_layers: tuple[int, int] = (2, 3),
        predictor_size: int = 512,
        predictor_layers: int = 2,
        joint_size: int = 512,
        encoder_dropout: float = 0.1,
        dropout: float = 0.3,
    ) -> None:
        """Make the layers.

        Args:
            features: values of a frame.
            symbols: characters, with the blank.
            encoder_size: cells of a layer of the encoder, 1024 by default.
            encoder_layers: layers before and after frames are joined, 2 and 3 by default.
            predictor_size: cells of a layer of the predictor, 512 by default.
            predictor_layers: layers of the predictor, 2 by default.
            joint_size: units of the layer that joins both, 512 by default.
            encoder_dropout: share of the encoder's values that are dropped, 0.1 by default.
            dropout: the same in predictor and joint, 0.3 by default.
        """
        super().__init__()
        before, after = encoder_layers
        self.first = _lstm(features, encoder_size, before, encoder_dropout)
        self.second = _lstm(self.STACK * encoder_size, encoder_size, after, encoder_dropout)
        # The row of the blank stands for the beginning, before any character.
        self.embedding = torch.nn.Embedding(symbols, predictor_size)
        self.predictor = _lstm(predictor_size, predictor_size, predictor_layers, dropout)
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
