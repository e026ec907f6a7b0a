"""Networks that quantise features to a codebook (van den Oord et al. 2017), with codewords per client.

Features z (rows, channels, positions) are cut into tokens: at each position, `segments` contiguous slices of the
channels, each of d = channels / segments numbers. Every token is replaced by the nearest codeword that its client may
use.
"""

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...prng import fold_in, normal
from ...server_state import Weights
from ...training.execution_plan import Kind, resolve
from ...training.objectives import Batch, ClientBatch, Objective
from ..network import register
from ..wrapper import EncoderHeadWrapper

SHARED, OWN, COUNT = "codes.shared", "codes.own", "codes.count"
"""Names of the codewords shared by all clients, of a client's own codewords with spare room, and of their count in the
context.
"""

_CODES = 2**20  # stream number of initial codewords; layers use small numbers


class Codes(NamedTuple):
    """Quantised features: `codes` shaped like z, and the codeword index of every token, (..., tokens)."""

    codes: Tensor
    chosen: Tensor


@register("quantised")
@dataclass(frozen=True)
class QuantizedNetwork(EncoderHeadWrapper):
    """A network of encoder and head whose features are codewords; without codewords it is the inner network.

    `words` codewords are shared; `room` is the capacity for a client's own, and the context gives their count. Training
    adds code_weight (||sg(z) - c||^2 + commitment ||z - sg(c)||^2), averaged over all numbers of a row (UEFL, arXiv
    2402.18888, equation 5; commitment is its beta). The gradient of the logits passes straight through to the encoder.
    """

    words: int = 32
    room: int = 0
    segments: int = 1
    commitment: float = 0.25
    code_weight: float = 1.0
    start_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.segments < 1 or self.inner.encoded[0] % self.segments:
            fit = [s for s in (1, 2, 4, 8) if self.inner.encoded[0] % s == 0]
            raise ValueError(
                f"segments: got {self.segments}, expected a divisor of the {self.inner.encoded[0]} channels of "
                f"the features. Try {' or '.join(map(str, fit))}"
            )

    @property
    def length(self) -> int:
        """Return the numbers in a codeword."""
        return int(self.inner.encoded[0]) // self.segments

    @property
    def tokens(self) -> int:
        """Return the tokens of one row."""
        return int(self.inner.encoded[1]) * self.segments

    @property
    def max_width(self) -> int:
        """Return the number of values of one row in the largest layer, distances to codewords included."""
        return max(super().max_width, self.tokens * (self.words + self.room))

    @property
    def buffers(self) -> tuple[str, ...]:
        """Return the inner network's buffers, and codebooks without codewords."""
        empty = [name for name, count in ((SHARED, self.words), (OWN, self.room)) if not count]
        return (*super().buffers, *empty)

    @property
    def discrete(self) -> bool:
        """Whether there are codewords."""
        return self.words + self.room > 0

    @property
    def quantized(self) -> "QuantizedNetwork | None":
        """Return itself if there are codewords."""
        return self if self.discrete else None

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the inner network's weights, and shared codewords from N(0, start_scale^2)."""
        shared = normal(fold_in(stream, _CODES), (self.words, self.length)) * self.start_scale
        return {**self.inner.init(stream), SHARED: shared}

    def pre_head(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Quantise features and apply the inner network's pre-head."""
        codes = self.quantize(weights, context, z).codes if self.discrete else z
        return super().pre_head(weights, context, codes)

    def pre_head_stack(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        codes = self.quantize_stack(weights, context, z).codes if self.discrete else z
        return super().pre_head_stack(weights, context, codes)

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the objective plus the distance terms of codewords and features."""
        if not self.discrete:
            return super().cost(weights, context, batch, objective)
        z, buffers = self.encode(weights, context, batch.x, batch.used)
        codes = self.quantize(weights, context, z).codes
        embedding = super().pre_head(weights, context, z + (codes - z).detach())
        loss = batch.loss(objective, self.apply_head(weights, embedding, batch.stream))
        distance = (codes - z.detach()) ** 2 + self.commitment * (codes.detach() - z) ** 2
        return loss + self.code_weight * batch.mean(distance.mean((1, 2))), buffers

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if not self.discrete:
            return super().cost_stack(weights, context, batch, objective)
        z, buffers = self.encode_stack(weights, context, batch.x, batch.used, batch.unpadded)
        codes = self.quantize_stack(weights, context, z).codes
        straight_through = z + (codes - z).detach()
        logits = self.apply_head(weights, super().pre_head_stack(weights, context, straight_through), batch.streams)
        codebook_distance = ((z.detach() - codes) ** 2).mean((2, 3))
        encoder_distance = ((z - codes.detach()) ** 2).mean((2, 3))
        distance = batch.mean(codebook_distance + self.commitment * encoder_distance)
        return batch.loss(objective, logits) + self.code_weight * distance, buffers

    def quantize(self, weights: Weights, context: Weights, z: Tensor) -> Codes:
        """Replace every token by the nearest usable codeword, the first of equals (equation 4).

        z: (rows, channels, positions).
        """
        tokens, codebook = (
            self.to_tokens(z),
            torch.cat([weights[SHARED], weights[OWN]]) if self.room else weights[SHARED],
        )
        with torch.no_grad():
            distance = (codebook * codebook).sum(1) - 2 * tokens @ codebook.T
            if self.room:
                unused = torch.arange(len(codebook), device=codebook.device) >= self.words + context[COUNT]
                distance = torch.where(unused, torch.inf, distance)
            index = distance.argmin(1)
        return Codes(self.from_tokens(codebook[index], z), index)

    def quantize_stack(self, weights: Weights, context: Weights, z: Tensor) -> Codes:
        tokens = self.to_tokens(z)
        codebook = torch.cat([weights[SHARED], weights[OWN]], 1) if self.room else weights[SHARED]
        with torch.no_grad():
            index = nearest(tokens, codebook, self.words + context[COUNT] if self.room else None)
        offset = torch.arange(len(codebook), device=codebook.device)[:, None] * codebook.shape[1]
        chosen = codebook.flatten(0, 1).index_select(0, (index + offset).flatten())
        return Codes(self.from_tokens(chosen.view(tokens.shape), z), index)

    def to_tokens(self, z: Tensor) -> Tensor:
        """Cut features into tokens (..., rows * tokens, d), ordered by row, position and slice."""
        return z.transpose(-2, -1).reshape(*z.shape[:-3], -1, self.length)

    def from_tokens(self, tokens: Tensor, like: Tensor) -> Tensor:
        """Assemble tokens to features shaped like `like`, the inverse of `to_tokens`."""
        return tokens.reshape(*like.shape[:-2], like.shape[-1], like.shape[-2]).transpose(-2, -1)


def most_segments(channels: int) -> int:
    """Return the most segments, up to four, that divide the channels."""
    return max(s for s in (1, 2, 4) if channels % s == 0)


def nearest(tokens: Tensor, book: Tensor, usable: Tensor | None = None) -> Tensor:
    """Find the nearest codeword of every token among the first `usable` codewords of each codebook: (clients, tokens).

    tokens: (clients, tokens, d), book: (clients, words, d), usable: (clients,). The squared token length is left out,
    because it is the same for all codewords.
    """
    distance = (book * book).sum(-1)
    if usable is not None:
        unused = torch.arange(book.shape[1], device=book.device) >= usable[:, None]
        distance = distance.masked_fill(unused, torch.inf)
        book = book.masked_fill(unused[..., None], 0)
    return torch.baddbmm(distance[:, None], tokens, book.transpose(1, 2), alpha=-2).argmin(-1)


def perplexity(counts: Tensor) -> Tensor:
    """Compute exp of the entropy of codeword shares, (...), from counts (..., words).

    It is 1 if one codeword is used, and the codebook's size if all are used equally. No tokens give NaN.
    """
    shares = counts.double() / counts.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


_REPORT_ROWS = 100  # rows per batch of the paper's perplexity
_SAMPLE = 256  # tokens per codeword that k-means reads: its centroids are only initial values


def kmeans_centroids(
    tokens: np.ndarray, words: int, seed: int, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Compute k-means++ centroids of tokens (tokens, d), and their weights in tokens.

    There are fewer centroids if there are fewer distinct tokens: a duplicate would never be chosen, because the first
    of equals is. Raises ValueError if a number is not finite.
    """
    centroids, label, sample = _kmeans(tokens, words, seed, weight)
    tokens_per_sample = len(tokens) / len(label)
    mass = tokens_per_sample * np.bincount(label, None if weight is None else weight[sample], len(centroids))
    return centroids[mass > 0].astype(np.float32), mass[mass > 0]


def pooled_centroids(
    tokens: np.ndarray, owner: np.ndarray, words: int, seed: int, least: int
) -> tuple[np.ndarray, np.ndarray]:
    """Compute means of similar tokens that each cover at least `least` different rows, and their token counts.

    K-means clusters with too few rows are dissolved, fewest rows first, and their tokens join the nearest clusters. The
    result is empty if all rows together are too few.

    Args:
        tokens: (tokens, d).
        owner: (tokens,), the row index of each token.
        words: The number of k-means clusters.
        seed: The seed of k-means.
        least: The minimum number of rows per mean.
    """
    from scipy.spatial.distance import cdist

    if len(np.unique(owner)) < least:
        return np.zeros((0, tokens.shape[1]), np.float32), np.zeros(0)
    centroids, label, sample = _kmeans(tokens, words, seed)
    tokens_per_sample = len(tokens) / len(label)
    tokens, owner = tokens[sample], owner[sample]
    clusters = np.unique(label)
    while len(clusters) and (num_rows := _count_rows(label, owner, len(centroids))[clusters]).min() < least:
        dissolved = label == clusters[num_rows.argmin()]
        clusters = np.delete(clusters, num_rows.argmin())
        if len(clusters):
            label[dissolved] = clusters[cdist(tokens[dissolved], centroids[clusters]).argmin(1)]
    means = [tokens[label == cluster].mean(0, dtype=np.float64) for cluster in clusters]
    counts = tokens_per_sample * np.bincount(label, minlength=len(centroids))[clusters]
    return np.array(means, np.float32).reshape(len(clusters), tokens.shape[1]), counts


def _count_rows(label: np.ndarray, owner: np.ndarray, clusters: int) -> np.ndarray:
    """Count the different rows with tokens in each cluster."""
    return np.bincount(np.unique(np.stack([label, owner]), axis=1)[0], minlength=clusters)


def _kmeans(
    tokens: np.ndarray, words: int, seed: int, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | slice]:
    """Return centroids, some possibly unused, the centroid index of each sampled token, and the sampled tokens."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if not np.isfinite(tokens).all():
        raise ValueError(
            "features: got numbers that are not finite, expected finite ones. Try a lower "
            "training.optimiser.learning_rate"
        )
    draw = np.random.default_rng(seed)
    sample: np.ndarray | slice = slice(None)
    if len(tokens) > _SAMPLE * words:
        sample = np.sort(draw.choice(len(tokens), _SAMPLE * words, replace=False))
        tokens, weight = tokens[sample], None if weight is None else weight[sample]
    distinct = len(np.unique(tokens, axis=0))
    # tokens that differ only in their last bit may share a centroid, which leaves one unused
    warnings.filterwarnings("ignore", "Number of distinct clusters", ConvergenceWarning)
    with threadpool_limits(1):  # sums over several threads would differ in their last bits
        clustering = KMeans(min(words, distinct), n_init=1, max_iter=50, random_state=seed).fit(
            tokens, sample_weight=weight
        )
    return clustering.cluster_centers_, clustering.labels_, sample


def code_usage(
    network: QuantizedNetwork, weights: Weights, context: Weights, x: Tensor, counts: Tensor, engine: Kind
) -> dict[str, Tensor]:
    """Measure how each client uses its codewords over its first `counts` rows, (clients,) float64; no rows give NaN.

    weights, context: (clients, ...).

    Returns:
        perplexity: of the whole split.
        perplexity_100: the mean over batches of 100 rows, as the paper reports it; at most the tokens of 100 rows.
        words_used: the number of codewords in use.
        code_loss: equation 5's mean.
    """
    plan, counts_by_batch, perplexities, distances = resolve(network, engine), [], [], []
    with torch.no_grad():
        for start in range(0, max(int(counts.max()), 1), _REPORT_ROWS):
            z = plan.features(weights, context, x[:, start : start + _REPORT_ROWS])
            codes, index = plan.run(network.quantize_stack, network.quantize, weights, context, z)
            real = torch.arange(start, start + z.shape[1], device=x.device) < counts[:, None]
            real_tokens = real.repeat_interleave(network.tokens, 1)
            codeword_counts = z.new_zeros(len(z), network.words + network.room, dtype=torch.float64)
            counts_by_batch.append(codeword_counts.scatter_add_(1, index, real_tokens.double()))
            perplexities.append(perplexity(counts_by_batch[-1]))
            distances.append(((z - codes) ** 2).mean((2, 3)).double().masked_fill(~real, 0).sum(1))
    total = torch.stack(counts_by_batch).sum(0)
    return {
        "perplexity": perplexity(total),
        "perplexity_100": torch.stack(perplexities).nanmean(0),
        "words_used": (total > 0).sum(1).double(),
        "code_loss": torch.stack(distances).sum(0) * (1 + network.commitment) / counts.double(),
    }
