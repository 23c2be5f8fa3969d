"""lm-eval's HFLM, with texts that begin once."""

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM


class OneBeginning(HFLM):
    """HFLM itself puts a beginning token before a text that is scored whole, besides the one that a tokenizer adds."""

    add_bos_token: bool | None

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> Any:
        """The log-likelihood of each whole text after one beginning token, nats."""
        usual, self.add_bos_token = self.add_bos_token, False
        try:
            return super().loglikelihood_rolling(requests, disable_tqdm)
        finally:
            self.add_bos_token = usual
