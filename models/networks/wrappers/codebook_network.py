"""Features replaced by the nearest words of a codebook (van den Oord et al. 2017), each client with words of its own.

z (rows, channels, places) is cut into tokens: at each place `segments` contiguous slices of the channels, of
d = channels / segments numbers. Every slice takes the nearest word of the one book that its client may use.
"""

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...prng import fold_in, normal
from ...server_state import Weights
from ...training.batch import Batch, ClientBatch
from ...training.execution_plan import Kind, resolve
from ...training.objectives import Objective
from ..network import register
from ..wrapper import EncoderHeadWrapper

SHARED, OWN, COUNT = "codes.shared", "codes.own", "codes.count"
"""The words of all clients, a client's own with room for more, and in the context how many of those there are."""

_CODES = 2**20  # of the stream of fresh words; the layers' streams have small numbers


class Codes(NamedTuple):
    """What stands in for features: `codes` as long as z, and the number of every token's word, (..., tokens)."""

    codes: Tensor
    chosen: Tensor


@register("quantised")
@dataclass(frozen=True)
class QuantizedNetwork(EncoderHeadWrapper):
    """A network in parts whose features are words of a codebook; without any words it is that network itself.

    `words` are shared, `room` is for a client's own, of which the context says how many are there. Training adds
    code_weight (||sg(z) - c||^2 + commitment ||z - sg(c)||^2), means over all numbers of a row (UEFL, arXiv 2402.18888,
    equation 5; commitment is its beta); the gradient of the logits goes straight through to the encoder.
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
                f"segments is {self.segments}, and must divide the {self.inner.encoded[0]} channels of the features; "
                f"try {' or '.join(map(str, fit))}"
            )

    @property
    def length(self) -> int:
        """Numbers of a word."""
        return int(self.inner.encoded[0]) // self.segments

    @property
    def tokens(self) -> int:
        """Of one row."""
        return int(self.inner.encoded[1]) * self.segments

    @property
    def max_width(self) -> int:
        """Numbers of one row in its largest layer, distances to words included."""
        return max(super().max_width, self.tokens * (self.words + self.room))

    @property
    def buffers(self) -> tuple[str, ...]:
        """The inner network's, and books without words."""
        empty = [name for name, count in ((SHARED, self.words), (OWN, self.room)) if not count]
        return (*super().buffers, *empty)

    @property
    def discrete(self) -> bool:
        """Whether there are words at all."""
        return self.words + self.room > 0

    @property
    def coded(self) -> "QuantizedNetwork | None":
        """Itself, if there are any words."""
        return self if self.discrete else None

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The inner network's weights, and shared words from N(0, start_scale^2)."""
        shared = normal(fold_in(stream, _CODES), (self.words, self.length)) * self.start_scale
        return {**self.inner.init(stream), SHARED: shared}

    def settle(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Words, and what the inner network makes of them up to the first dropout."""
        codes = self.quantise(weights, context, z).codes if self.discrete else z
        return super().settle(weights, context, codes)

    def settle_stack(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """`settle` for a stack."""
        codes = self.quantise_stack(weights, context, z).codes if self.discrete else z
        return super().settle_stack(weights, context, codes)

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective, and what words and features pay for their distance."""
        if not self.discrete:
            return super().cost(weights, context, batch, objective)
        z, moved = self.encode(weights, context, batch.x, batch.used)
        codes = self.quantise(weights, context, z).codes
        settled = super().settle(weights, context, z + (codes - z).detach())
        loss = batch.loss(objective, self.finish(weights, settled, batch.stream))
        paid = (codes - z.detach()) ** 2 + self.commitment * (codes.detach() - z) ** 2
        return loss + self.code_weight * batch.mean(paid.mean((1, 2))), moved

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`cost` for a stack."""
        if not self.discrete:
            return super().cost_stack(weights, context, batch, objective)
        z, moved = self.encode_stack(weights, context, batch.x, batch.used, batch.whole)
        codes = self.quantise_stack(weights, context, z).codes
        straight = z + (codes - z).detach()
        logits = self.finish(weights, super().settle_stack(weights, context, straight), batch.streams)
        towards_features = ((z.detach() - codes) ** 2).mean((2, 3))
        towards_words = ((z - codes.detach()) ** 2).mean((2, 3))
        distance = batch.mean(towards_features + self.commitment * towards_words)
        return batch.loss(objective, logits) + self.code_weight * distance, moved

    def quantise(self, weights: Weights, context: Weights, z: Tensor) -> Codes:
        """The nearest usable word of every token, the first of equals (equation 4); z (rows, channels, places)."""
        tokens, book = self.cut(z), torch.cat([weights[SHARED], weights[OWN]]) if self.room else weights[SHARED]
        with torch.no_grad():
            far = (book * book).sum(1) - 2 * tokens @ book.T
            if self.room:
                beyond = torch.arange(len(book), device=book.device) >= self.words + context[COUNT]
                far = torch.where(beyond, torch.inf, far)
            index = far.argmin(1)
        return Codes(self.join(book[index], z), index)

    def quantise_stack(self, weights: Weights, context: Weights, z: Tensor) -> Codes:
        """`quantise` for a stack."""
        tokens, book = self.cut(z), torch.cat([weights[SHARED], weights[OWN]], 1) if self.room else weights[SHARED]
        with torch.no_grad():
            index = nearest(tokens, book, self.words + context[COUNT] if self.room else None)
        first = torch.arange(len(book), device=book.device)[:, None] * book.shape[1]
        chosen = book.flatten(0, 1).index_select(0, (index + first).flatten())
        return Codes(self.join(chosen.view(tokens.shape), z), index)

    def cut(self, z: Tensor) -> Tensor:
        """Features to tokens (..., rows * tokens, d), a row's places in order and a place's slices in order."""
        return z.transpose(-2, -1).reshape(*z.shape[:-3], -1, self.length)

    def join(self, tokens: Tensor, like: Tensor) -> Tensor:
        """Tokens to features: the inverse of `cut`."""
        return tokens.reshape(*like.shape[:-2], like.shape[-1], like.shape[-2]).transpose(-2, -1)


def most_segments(channels: int) -> int:
    """Four slices of the channels, or as many below that as divide them."""
    return max(s for s in (1, 2, 4) if channels % s == 0)


def nearest(tokens: Tensor, book: Tensor, usable: Tensor | None = None) -> Tensor:
    """The word with the least distance to every token: (clients, tokens); the first `usable` words of each book count.

    tokens: (clients, tokens, d), book: (clients, words, d), usable: (clients,). The token's own length is the same for all
    words, and left out.
    """
    lengths = (book * book).sum(-1)
    if usable is not None:
        beyond = torch.arange(book.shape[1], device=book.device) >= usable[:, None]
        lengths = lengths.masked_fill(beyond, torch.inf)
        book = book.masked_fill(beyond[..., None], 0)
    return torch.baddbmm(lengths[:, None], tokens, book.transpose(1, 2), alpha=-2).argmin(-1)


def perplexity(counts: Tensor) -> Tensor:
    """exp of the entropy of the words' shares, (...): 1 if one word is used, as many as there are if all equally.

    counts: (..., words). No tokens give NaN.
    """
    shares = counts.double() / counts.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


_SAMPLE = 256  # tokens a word that k-means looks at: it only gives a start


def centres(
    tokens: np.ndarray, words: int, seed: int, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """k-means++ centres of tokens (tokens, d), and how much weight each has; fewer if fewer tokens differ.

    A duplicate would never be chosen, since the first of equals is. ValueError if a number is not finite.
    """
    centroids, label, sample = _clusters(tokens, words, seed, weight)
    every = len(tokens) / len(label)  # tokens for each that was looked at
    share = every * np.bincount(label, None if weight is None else weight[sample], len(centroids))
    return centroids[share > 0].astype(np.float32), share[share > 0]


def centres_of_many(
    tokens: np.ndarray, owner: np.ndarray, words: int, seed: int, least: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means of tokens that are alike, of `least` different rows or more each, and of how many tokens each is.

    owner: (tokens,), the number of the row that a token is of. The clusters of k-means, of which the one with tokens of the
    fewest rows goes into those that are nearest, until all have enough; none where there are fewer rows than that.
    """
    from scipy.spatial.distance import cdist

    if len(np.unique(owner)) < least:
        return np.zeros((0, tokens.shape[1]), np.float32), np.zeros(0)
    centroids, label, sample = _clusters(tokens, words, seed)
    every = len(tokens) / len(label)  # tokens for each that was looked at
    tokens, owner = tokens[sample], owner[sample]
    clusters = np.unique(label)
    while len(clusters) and (rows := _rows_of(label, owner, len(centroids))[clusters]).min() < least:
        lost = label == clusters[rows.argmin()]
        clusters = np.delete(clusters, rows.argmin())
        if len(clusters):
            label[lost] = clusters[cdist(tokens[lost], centroids[clusters]).argmin(1)]
    means = [tokens[label == cluster].mean(0, dtype=np.float64) for cluster in clusters]
    share = every * np.bincount(label, minlength=len(centroids))[clusters]
    return np.array(means, np.float32).reshape(len(clusters), tokens.shape[1]), share


def _rows_of(label: np.ndarray, owner: np.ndarray, clusters: int) -> np.ndarray:
    """How many different rows have tokens in each cluster."""
    return np.bincount(np.unique(np.stack([label, owner]), axis=1)[0], minlength=clusters)


def _clusters(
    tokens: np.ndarray, words: int, seed: int, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | slice]:
    """Centres, some of which may stand for nothing, the place of each token's, and which tokens were looked at."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if not np.isfinite(tokens).all():
        raise ValueError("its features are no finite numbers; a lower training.optimiser.learning_rate may help")
    draw = np.random.default_rng(seed)
    sample: np.ndarray | slice = slice(None)
    if len(tokens) > _SAMPLE * words:
        sample = np.sort(draw.choice(len(tokens), _SAMPLE * words, replace=False))
        tokens, weight = tokens[sample], None if weight is None else weight[sample]
    different = len(np.unique(tokens, axis=0))
    # tokens that differ in their last bit only may share a centre, and then one is left over
    warnings.filterwarnings("ignore", "Number of distinct clusters", ConvergenceWarning)
    with threadpool_limits(1):  # sums of several threads would differ in their last bits
        clustering = KMeans(min(words, different), n_init=1, max_iter=50, random_state=seed).fit(
            tokens, sample_weight=weight
        )
    return clustering.cluster_centers_, clustering.labels_, sample


def code_usage(
    network: QuantizedNetwork, weights: Weights, context: Weights, x: Tensor, counts: Tensor, engine: Kind
) -> dict[str, Tensor]:
    """How each client uses its words over its first `counts` rows, (clients,) float64; no rows give NaN.

    perplexity of the whole split; perplexity_100, the mean over batches of 100 rows, as the paper reports it (capped by the
    tokens of 100 rows); words_used; code_loss, equation 5's mean. weights, context: (clients, ...).
    """
    plan, words, by_hundred, distance = resolve(network, engine), [], [], []
    with torch.no_grad():
        for at in range(0, max(int(counts.max()), 1), _HUNDRED):
            z = plan.features(weights, context, x[:, at : at + _HUNDRED])
            codes, index = plan.run(network.quantise_stack, network.quantise, weights, context, z)
            used = torch.arange(at, at + z.shape[1], device=x.device) < counts[:, None]
            by_token = used.repeat_interleave(network.tokens, 1)
            uses = z.new_zeros(len(z), network.words + network.room, dtype=torch.float64)
            words.append(uses.scatter_add_(1, index, by_token.double()))
            by_hundred.append(perplexity(words[-1]))
            distance.append(((z - codes) ** 2).mean((2, 3)).double().masked_fill(~used, 0).sum(1))
    total = torch.stack(words).sum(0)
    return {
        "perplexity": perplexity(total),
        "perplexity_100": torch.stack(by_hundred).nanmean(0),
        "words_used": (total > 0).sum(1).double(),
        "code_loss": torch.stack(distance).sum(0) * (1 + network.commitment) / counts.double(),
    }


_HUNDRED = 100
