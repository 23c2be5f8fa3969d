"""HashHop with one token a hash, for models small enough to learn it on a CPU.

    <bos> h7 h3 <sep> h12 h7 <sep> … <query> h12 h7 h3 … <eos>
          └───── shuffled pairs ─────┘        start └ answer ┘

The separator stands for the line break of the text form. Without it the hash after the second element of a pair looks
like a partner of that element: a small model did not learn the task in 1,600 steps, and takes 200 with separators.

The layouts are those of the text form (`hashhop`): `official` has several full chains of equal length, `paper` one
chain and lone pairs. All samples of a task have the same length, so batches stack without padding.
"""

import numpy as np
import torch

from recurformer.tasks import IGNORED
from recurformer.tasks.draw import draw_distinct
from recurformer.tasks.sizes import BOS, EOS, HASH_SPECIALS, QUERY, SEPARATOR, HashHopTokenSizes


class HashHopTokens(HashHopTokenSizes):
    """Generator of HashHop problems in tokens, of these sizes."""

    def sample_batch(self, rng: np.random.Generator, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Independent problems.

        Returns:
            input_ids (batch, length) and labels (batch, length), both int64. Labels are aligned with input_ids, as
            transformers expects (the model shifts them itself): the answer's tokens at the answer's positions, -100
            elsewhere.
        """
        hashes = len(HASH_SPECIALS) + draw_distinct(
            rng, self.vocabulary - len(HASH_SPECIALS), batch, self.hashes_needed
        )
        inside = self.full_chains * (self.hops + 1)
        chains = hashes[:, :inside].reshape(batch, self.full_chains, self.hops + 1)
        links = np.stack([chains[..., :-1], chains[..., 1:]], axis=-1).reshape(batch, -1, 2)
        pairs = np.concatenate([links, hashes[:, inside:].reshape(batch, -1, 2)], axis=1)  # (batch, pairs, 2)
        order = rng.permuted(np.tile(np.arange(self.pair_count), (batch, 1)), axis=1)
        pairs = np.take_along_axis(pairs, order[..., None], axis=1)
        separators = np.full((batch, self.pair_count, 1), HASH_SPECIALS.index(SEPARATOR))
        lines = np.concatenate([pairs, separators], axis=2)  # (batch, pairs, 3)

        input_ids = np.empty((batch, self.length), dtype=np.int64)
        answer = slice(self.prompt_length, self.prompt_length + self.hops)
        input_ids[:, 0] = HASH_SPECIALS.index(BOS)
        input_ids[:, 1 : 1 + 3 * self.pair_count] = lines.reshape(batch, -1)
        input_ids[:, self.prompt_length - 2] = HASH_SPECIALS.index(QUERY)
        input_ids[:, self.prompt_length - 1] = chains[:, 0, 0]
        input_ids[:, answer] = chains[:, 0, 1:]
        input_ids[:, -1] = HASH_SPECIALS.index(EOS)
        labels = np.full_like(input_ids, IGNORED)
        labels[:, answer] = chains[:, 0, 1:]
        return torch.from_numpy(input_ids), torch.from_numpy(labels)
