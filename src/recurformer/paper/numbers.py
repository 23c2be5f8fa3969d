"""Numbers that the text of section 4.1 repeats from Table 2."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TextNumber:
    """A number of the text that stands for a cell of Table 2.

    Attributes:
        printed: as printed, digits kept.
        reduction: whether it is a cache reduction in percent, 100·(1 - cell), rather than the cell itself.
        quantity, model, method: the cell.
    """

    printed: str
    quantity: str
    model: str
    method: str
    reduction: bool = False

    @property
    def id(self) -> str:
        """Its name in the ledger."""
        which = f"{self.method.split()[0].lower()}/{self.quantity}"
        return f"text/{self.model}/{which}{'-reduction' if self.reduction else ''}"

    @property
    def value(self) -> float:
        """As a number; percent where `reduction`."""
        return float(self.printed.replace(",", ""))

    @property
    def half_digit(self) -> float:
        """Half a unit of the last printed digit: what rounding can explain."""
        decimals = len(self.printed.partition(".")[2])
        return 0.5 * 10**-decimals


def _reductions(model: str, method: str, *printed: str) -> list[TextNumber]:
    return [
        TextNumber(printed=number, quantity=quantity, model=model, method=method, reduction=True)
        for quantity, number in zip(("cs_10k", "cs_60k"), printed, strict=True)
    ]


NUMBERS = (
    *_reductions("llama2-7b", "RecurFormer", "89.7", "90.0"),
    *_reductions("qwen2-7b", "RecurFormer", "87.3", "87.5"),
    *_reductions("qwen2-0.5b", "RecurFormer", "56.1", "56.3"),
    *_reductions("llama2-7b", "PyramidInfer", "89.46", "89.57"),
    TextNumber(printed="0.839", quantity="h_gq", model="llama2-7b", method="RecurFormer"),
    TextNumber(printed="0.894", quantity="h_gq", model="llama2-7b", method="Original Model"),
    TextNumber(printed="0.462", quantity="h_gq", model="llama2-7b", method="PyramidInfer"),
    TextNumber(printed="71,680", quantity="l_m", model="llama2-7b", method="Original Model"),
    TextNumber(printed="91,800", quantity="l_m", model="llama2-7b", method="RecurFormer"),
    TextNumber(printed="122,880", quantity="l_m", model="qwen2-7b", method="Original Model"),
    TextNumber(printed="132,000", quantity="l_m", model="qwen2-7b", method="RecurFormer"),
)
